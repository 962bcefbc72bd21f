"""Each limit in the table of kept states is that of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"
TABLE = PAGE.read_text().partition("## What ends a kept connection")[2]
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", TABLE, re.MULTILINE)[1:]


@pytest.mark.parametrize(("state", "end", "limit"), ROWS)
def test_each_kept_state_has_an_end(state: str, end: str, limit: str) -> None:
    assert end.strip(), state
    named = re.fullmatch(r"`([a-z_.]+?)\.([A-Z]\w*)(?:\.(\w+))?`: (\d+) s ", limit)
    if named is None:
        assert "at once" in end
        return
    module, name, field, seconds = named.groups()
    value = getattr(importlib.import_module(f"mainspring.{module}"), name)
    assert (value if field is None else getattr(value(), field)) == float(seconds)

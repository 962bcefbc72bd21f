"""Today's code goes on with the histories that earlier code has recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .programs import GOLDENS
from .recorded import DIRECTORY, files, read, record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", ["1", "2"])
def test_each_golden_history_agrees_with_the_code(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.goldens.replay"],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [f"ok {one.type} {len(one.events)}" for one in read(files())]


def test_each_golden_workflow_has_a_history() -> None:
    """To record those of new workflows, run: python -m tests.goldens.record."""
    assert set(GOLDENS) <= {history.type for history in read(files())}


def test_a_golden_history_is_never_replaced(tmp_path: Path) -> None:
    (file,) = record("steps_each", tmp_path)
    (history,) = read([file])
    (golden,) = read([DIRECTORY / file.name])
    assert [type(event) for event in history.events] == [type(event) for event in golden.events]
    with pytest.raises(FileExistsError, match="steps_each is recorded already"):
        record("steps_each", tmp_path)

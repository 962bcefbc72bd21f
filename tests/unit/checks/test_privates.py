"""A test that uses a private name gives the reason in its `noqa` comment for SLF001."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
REASON = re.compile(r"# noqa: (\w+, )*SLF001 - \w")


def without_reason(text: str) -> list[str]:
    return [line for line in text.splitlines() if "noqa" in line and "SLF001" in line and not REASON.search(line)]


def test_each_use_of_a_private_has_its_reason() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {line}"
        for directory in ("unit", "on_servers")
        for path in TESTS.joinpath(directory).rglob("*.py")
        if path != Path(__file__)
        for line in without_reason(path.read_text("utf-8"))
    ]
    assert found == []


def test_a_missing_reason_is_found() -> None:
    assert without_reason("x._y  # noqa: SLF001") == ["x._y  # noqa: SLF001"]
    assert without_reason("x._y  # noqa: ASYNC110, SLF001 - why\nx.y  # noqa: S101") == []

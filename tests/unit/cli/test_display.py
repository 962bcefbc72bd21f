from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.display import GAP, LONGEST_WORD, print_fields, print_json, print_table, printable

from .terminal import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31m\n\tb\x9b") == "a\\x1b[31m\\n\\tb\\x9b"
    assert printable("grün 日本") == "grün 日本"


def test_values() -> None:
    assert printable(None) == "-"
    assert printable("") == "-"
    assert printable(True) == "yes"
    assert printable(1.5) == "1.5"
    assert printable(3) == "3"
    assert printable({"type": "ValueError", "message": "bad", "traceback": "…"}) == "ValueError: bad"
    assert printable({"high": 1, "low": 2}) == "high=1 low=2"


def test_piped_tables_have_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [{"a": 1, "b": "x y"}, {"b": "z\tz", "c": 2}])
    assert capsys.readouterr().out == "a\tb\n1\tx y\n-\tz\\tz\n"


def test_fields_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"a": 1, "longer": None})
    assert capsys.readouterr().out == "a:      1\nlonger: -\n"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": ["\n", "ü"]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": ["\n", "ü"]}


def table(columns: Sequence[str], rows: Sequence[Mapping[str, object]], width: int = 80) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    return shown(lambda: print_table(columns, rows), width)


HANDLE = "H:laptop:1000000000001"
TIME = "2030-01-31T12:00:00"


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_a_table_never_breaks_a_name(width: int) -> None:
    error = "ValueError: " + "no such thing " * 20
    row = {"handle": HANDLE, "unique": "", "state": "failed", "created_at": f"{TIME}.123456Z", "error": error}
    head, *lines = table(("handle", "unique", "state", "created_at", "error"), [row, row | {"error": None}], width)
    assert head.split() == ["HANDLE", "STATE", "CREATED_AT", "ERROR"], "the column of uniques is empty"
    assert [line.split()[:3] for line in lines if line.startswith("H:")] == [[HANDLE, "failed", f"{TIME}Z"]] * 2
    assert "".join(lines).count("thing") == 20
    least = len(HANDLE) + len("failed") + len(f"{TIME}Z") + len("ValueError:") + 3 * GAP
    assert max(len(line) for line in lines) <= max(width, least)


def test_a_table_without_rows_has_its_heads() -> None:
    assert [line.split() for line in table(("handle", "state"), [])] == [["HANDLE", "STATE"]]


def test_an_overlong_word_is_broken() -> None:
    assert max(map(len, table(("error",), [{"error": "x" * 500}], 60))) == LONGEST_WORD

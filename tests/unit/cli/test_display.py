from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mainspring.cli.display import print_fields, print_json, print_table, printable

if TYPE_CHECKING:
    import pytest


def test_nothing_that_others_named_commands_the_terminal() -> None:
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


def test_fields_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"a": 1, "longer": None})
    assert capsys.readouterr().out == "a:      1\nlonger: -\n"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": ["\n", "ü"]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": ["\n", "ü"]}

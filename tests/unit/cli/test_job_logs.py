"""Lines of a log for people."""

from __future__ import annotations

from typing import Any

from mainspring.cli.job_output import text_of


def line(message: str = "m", **more: Any) -> dict[str, Any]:
    given = {"attempt": 1, "number": 1, "at": "2030-01-31T12:00:00Z", "level": "info", "logger": "", "fields": {}}
    return {**given, "message": message, **more}


def test_a_line_has_its_logger_and_its_fields() -> None:
    assert text_of(line(), colours=False) == "2030-01-31T12:00:00Z INFO     m"
    shown = text_of(line(logger="a.b", fields={"x": 1, "y": "two words"}, level="critical"), colours=False)
    assert shown == "2030-01-31T12:00:00Z CRITICAL a.b: m x=1 y=two words"
    assert text_of(line(level="error"), colours=True) == "2030-01-31T12:00:00Z \x1b[31mERROR   \x1b[0m m"


def test_further_lines_of_a_message_are_indented() -> None:
    shown = text_of(line("first\n\n\tthird", fields={"x": 1}), colours=False)
    assert shown == "2030-01-31T12:00:00Z INFO     first x=1\n    \n        third"


def test_missing_lines_are_counted() -> None:
    assert text_of(line(missed=7), colours=False).splitlines()[0] == "(7 lines are not kept)"


def test_no_server_can_control_the_terminal() -> None:
    shown = text_of(line("\x1b[2J", logger="\x07", fields={"\r": "\x9b"}), colours=False)
    assert shown == "2030-01-31T12:00:00Z INFO     \\x07: \\x1b[2J \\r=\\x9b"

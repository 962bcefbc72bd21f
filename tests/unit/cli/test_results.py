from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from mainspring.cli.display import print_json
from mainspring.cli.job_output import describe, print_raw
from mainspring.client.outcomes import Outcome, Reason

HANDLE = "H:node:1000000000001"


class Output(io.TextIOWrapper):
    """Standard output, on a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("data", "shown"), [(b"", b""), (b"5", b"5\n"), (b"a\nb\n", b"a\nb\n"), ("grün".encode(), "grün\n".encode())]
)
def test_a_result_is_exact_and_ends_its_line_on_a_terminal(
    data: bytes, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal, expected in ((False, data), (True, shown)):
        output = Output(terminal=terminal)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            print_raw(data)
        written = output.detach()
        assert isinstance(written, io.BytesIO)
        assert written.getvalue() == expected


def printed(outcome: Outcome | None, capsys: pytest.CaptureFixture[str]) -> Any:
    print_json(describe(HANDLE, outcome))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out, parse_float=str)


@pytest.mark.parametrize(
    ("data", "encoding", "result"),
    [
        (b'{"a": [1,\n 2.50]}', "json", {"a": [1, "2.50"]}),
        (b"123456789012345678901234567890", "json", 123456789012345678901234567890),
        (b"1e400", "json", "1e400"),
        (b'"\\u001b"', "json", "\x1b"),
        (b"null", "json", None),
        (b"", "json", None),
        (b"two words", "text", "two words"),
        (b"NaN", "text", "NaN"),
        (b"\x1b[31m", "text", "\x1b[31m"),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b'"\xff"', "base64", "Iv8i"),
        (b"\x00\xff", "base64", "AP8="),
    ],
)
def test_results(data: bytes, encoding: str, result: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Outcome(HANDLE, "succeeded", 2, None, data), capsys) == {
        "handle": HANDLE,
        "state": "succeeded",
        "attempt": 2,
        "result": result,
        "encoding": encoding,
        "error": None,
        "traceback": None,
    }


@pytest.mark.parametrize(
    ("reason", "error", "traceback"),
    [
        (Reason("ValueError", "no good", "Traceback …"), "ValueError: no good", "Traceback …"),
        (Reason("ValueError", "", None), "ValueError", None),
        (Reason("", "somebody changed their mind", None), "somebody changed their mind", None),
        (None, None, None),
    ],
)
def test_errors(
    reason: Reason | None, error: str | None, traceback: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(Outcome(HANDLE, "failed", 1, reason, b""), capsys) == {
        "handle": HANDLE,
        "state": "failed",
        "attempt": 1,
        "result": None,
        "encoding": None,
        "error": error,
        "traceback": traceback,
    }


def test_a_job_that_has_not_ended_has_no_state(capsys: pytest.CaptureFixture[str]) -> None:
    described = printed(None, capsys)
    assert described.pop("handle") == HANDLE
    assert set(described.values()) == {None}

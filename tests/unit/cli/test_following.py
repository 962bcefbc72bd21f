"""Commands that follow a job."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring.cli import follow_loop
from mainspring.cli.job_output import LiveView, PlainView, follow_job
from mainspring.client.outcomes import Notice, Outcome
from mainspring.errors import ConnectionLostError, UsageError

if TYPE_CHECKING:
    from mainspring.client.aio import AsyncClient

DONE = Outcome("H:n:1", "succeeded", 1, None, b"r")


def line(number: int) -> dict[str, Any]:
    given = {"attempt": 1, "number": number, "at": "2030-01-31T12:00:00Z", "level": "info", "logger": "", "fields": {}}
    return {**given, "message": f"m{number}"}


def answer(*numbers: int, ended: bool = False) -> dict[str, Any]:
    return {"items": [line(number) for number in numbers], "next": f"after {max(numbers, default=0)}", "ended": ended}


class Server:
    """A client whose server gives these answers; the job ends when all are given."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self._answers = list(answers)
        self._ended = asyncio.Event()
        self.asked: list[str] = []

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert method == "jobs.logs"
        self.asked.append(params.get("cursor", ""))
        given = self._answers.pop(0) if self._answers else answer(ended=True)
        if not self._answers:
            self._ended.set()
        if isinstance(given, Exception):
            raise given
        return given

    async def outcome(self, handle: str, limit: float | None, *, on_notice: Any) -> Outcome:
        del handle, limit
        on_notice(Notice("warning", 0, 0, b"hot"))
        await self._ended.wait()
        return DONE

    async def close(self) -> None: ...


def followed(*answers: dict[str, Any] | Exception, json_lines: bool = False) -> tuple[str, list[str]]:
    out = io.StringIO()
    server = Server(*answers)
    assert follow_job(cast("AsyncClient", server), "H:n:1", PlainView(out, json=json_lines)) == DONE
    return out.getvalue(), server.asked


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAST_LINES", "NO_LINES", "INTERVAL"):
        monkeypatch.setattr(follow_loop, name, 0.0)


def test_each_line_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown, asked = followed(answer(1, 2), answer(3), answer(4))
    assert [row.rpartition(" ")[2] for row in shown.splitlines()] == ["m1", "m2", "m3", "m4"]
    assert asked[:3] == ["", "after 2", "after 3"]
    assert capsys.readouterr().err == "warning: hot\n"


def test_a_reader_goes_on_after_its_last_line_when_a_connection_ends() -> None:
    shown, asked = followed(answer(1), ConnectionLostError("gone"), answer(2))
    assert [row.rpartition(" ")[2] for row in shown.splitlines()] == ["m1", "m2"]
    assert asked[:3] == ["", "after 1", "after 1"]


def test_a_server_without_logs_is_followed_without_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert followed(UsageError("there is no method 'jobs.logs'"))[0] == ""
    assert "no lines are shown: there is no method" in capsys.readouterr().err


def test_lines_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    followed(answer(1), json_lines=True)
    assert json.loads(capsys.readouterr().out)["message"] == "m1"


def test_a_terminal_shows_lines_and_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView("H:n:1")
    with view.progress:
        view.notice(Notice("progress", 2, 4, b""))
        view.lines([line(1)])
        view.notice(Notice("warning", 0, 0, b"\x1b[2Jhot"))
    (task,) = view.progress.tasks
    assert (task.completed, task.total, task.fields["share"]) == (2, 4, "2 of 4")
    shown = capsys.readouterr().err
    assert "m1" in shown
    assert "warning: \\x1b[2Jhot" in shown

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from mainspring.cli import worker_process
from mainspring.errors import ConnectionLostError, UsageError

if TYPE_CHECKING:
    import pytest


DECLARED = worker_process.Declared("schedules.declare", "schedules", {"app": "x"})


class Server:
    """A server that gives these answers in order; further calls wait for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.out_of_answers = asyncio.Event()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        self.calls.append((method, params))
        if not self._answers:
            self.out_of_answers.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def about_code() -> dict[str, Any]:
    return {"functions": ["f"]}


def changes(*kinds_and_texts: tuple[str, str], governs: bool = True) -> dict[str, Any]:
    return {
        "governs": governs,
        "changes": [
            {"kind": kind, "name": "a", "text": text, "warning": "!" in text} for kind, text in kinds_and_texts
        ],
    }


def logged_lines(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[str]:
    """Return the lines that are logged while a server gives these answers."""
    monkeypatch.setattr(worker_process, "DECLARE_INTERVAL", 0)
    monkeypatch.setattr(worker_process, "RETRY_DELAY", 0)

    async def main() -> None:
        server = Server(*answers)
        task = asyncio.create_task(worker_process.keep_declaring(server, DECLARED, about_code))
        await server.out_of_answers.wait()
        task.cancel()
        await asyncio.wait([task])
        assert {method for method, _ in server.calls} == {"schedules.declare"}

    with capture_logs() as logs:
        asyncio.run(main())
    for entry in logs:
        assert (entry["log_level"] == "warning") is ("!" in entry["event"])
    return [entry.get("error") or entry["event"] for entry in logs]


def test_each_change_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged_lines(monkeypatch, changes(("added", "added a"), ("removed", "removed b")), changes(), changes()) == [
        "schedule added a",
        "schedule removed b",
    ]


def test_lasting_differences_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left = changes(("left alone", "left a alone"))
    assert logged_lines(monkeypatch, left, left, changes(), left) == ["left a alone", "left a alone"]
    two = changes(("left alone", "left ab alone!"), ("left alone", "left a alone"), ("removed", "removed c!"))
    assert logged_lines(monkeypatch, left, two, two)[:3] == ["left a alone", "schedule removed c!", "left ab alone!"]
    older = changes(governs=False)
    (line,) = logged_lines(monkeypatch, older, older)
    assert "newer version of x" in line


def test_a_refusal_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = UsageError("schedule 'a' has the parent 'b', which does not exist")
    assert logged_lines(monkeypatch, refused, refused, changes(("added", "added a"))) == [
        str(refused),
        "schedule added a",
    ]


def test_a_server_of_an_earlier_version_gets_the_schedules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "DECLARE_INTERVAL", 0)

    async def main() -> None:
        unknown = "the params of schedules.declare cannot be read: Object contains unknown field `functions`"
        server = Server(UsageError(unknown), changes(("added", "added a")))
        task = asyncio.create_task(worker_process.keep_declaring(server, DECLARED, about_code))
        await server.out_of_answers.wait()
        task.cancel()
        await asyncio.wait([task])
        assert [params for _, params in server.calls[:2]] == [{"app": "x", "functions": ["f"]}, {"app": "x"}]

    with capture_logs() as logs:
        asyncio.run(main())
    assert [entry["event"] for entry in logs] == ["schedule added a"]


def test_the_declaration_is_repeated_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged_lines(monkeypatch, ConnectionLostError("gone"), changes(("added", "added a"))) == ["schedule added a"]

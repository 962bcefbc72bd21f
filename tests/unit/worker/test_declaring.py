from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from mainspring.errors import ConnectionLostError, UsageError
from mainspring.worker import declaring

if TYPE_CHECKING:
    import pytest


class Server:
    """Answers one call after the other; the last one is never answered."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.asked_for_more = asyncio.Event()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        self.calls.append((method, params))
        if not self._answers:
            self.asked_for_more.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def changes(*kinds_and_texts: tuple[str, str], governs: bool = True) -> dict[str, Any]:
    return {
        "governs": governs,
        "changes": [{"kind": kind, "name": "a", "text": text} for kind, text in kinds_and_texts],
    }


def said(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[str]:
    """What is logged while a server gives these answers."""
    monkeypatch.setattr(declaring, "EVERY", 0)
    monkeypatch.setattr(declaring, "AGAIN", 0)

    async def main() -> None:
        server = Server(*answers)
        task = asyncio.create_task(declaring.keep_declaring(server, {"app": "x", "schedules": []}))
        await server.asked_for_more.wait()
        task.cancel()
        await asyncio.wait([task])
        assert {method for method, _ in server.calls} == {"schedules.declare"}

    with capture_logs() as logs:
        asyncio.run(main())
    return [entry.get("error") or entry["event"] for entry in logs]


def test_changes_are_told_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, changes(("added", "added a"), ("removed", "removed b")), changes(), changes()) == [
        "schedule added a",
        "schedule removed b",
    ]


def test_what_stays_so_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left = changes(("left alone", "left a alone"))
    assert said(monkeypatch, left, left, changes(), left) == ["left a alone", "left a alone"]
    older = changes(governs=False)
    (line,) = said(monkeypatch, older, older)
    assert "newer code of x" in line


def test_a_refusal_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = UsageError("schedule 'a' has the parent 'b', which does not exist")
    assert said(monkeypatch, refused, refused, changes(("added", "added a"))) == [str(refused), "schedule added a"]


def test_a_lost_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, ConnectionLostError("gone"), changes(("added", "added a"))) == ["schedule added a"]

"""The early end of results: which jobs a node deletes, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mainspring.jobs import settlement_records
from mainspring.jobs.model import Job, Options
from mainspring.jobs.settlement_records import ResultRetention
from mainspring.jobs.user_data import KEPT_ARGUMENTS, ArgumentRules

if TYPE_CHECKING:
    import pytest


class Commits:
    def __init__(self) -> None:
        self.taken: list[int] = []

    def put(self, operation: Any, *_: object) -> None:
        self.taken.append(operation.id)

    def take(self) -> list[int]:
        taken, self.taken = self.taken, []
        return taken


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.commits = Commits()
        self.rules = ArgumentRules()
        self.results = ResultRetention(cast("Any", self.commits), lambda: self.now, self.rules)

    def end(self, job_id: int, function: bytes = b"f", options: Options | None = None) -> None:
        self.results.note(Job(id=job_id, function=function, payload=b"", options=options))

    def deleted(self, now: float) -> list[int]:
        self.now = now
        self.results.run_once()
        return self.commits.take()


def test_jobs_are_deleted_when_their_time_has_passed() -> None:
    scene = Scene()
    scene.results.declare({b"f": 60.0, b"g": 10.0, b"h": None})
    for job_id, function in enumerate([b"f", b"g", b"h", b"f"], 1):
        scene.end(job_id, function)
    scene.end(5, options=Options(keep_unique=5.0))
    assert scene.deleted(9) == []
    assert scene.deleted(10) == [2]
    scene.end(6)
    assert scene.deleted(60) == [1, 4]
    assert scene.deleted(1000) == [6]


def test_another_declaration_applies_to_later_ends() -> None:
    scene = Scene()
    scene.results.declare({b"f": 60.0})
    scene.end(1)
    scene.results.declare({b"f": 10.0})
    scene.end(2)
    assert scene.deleted(59) == []
    assert scene.deleted(60) == [1, 2]
    scene.end(3)
    scene.results.declare({b"f": None})
    scene.end(4)
    assert scene.rules.kept_whole == KEPT_ARGUMENTS
    assert scene.deleted(70) == [3]
    assert scene.results.seconds_of(b"f") is None


def test_memory_and_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement_records, "MAX_RETAINED", 5)
    monkeypatch.setattr(settlement_records, "DELETED_PER_STEP", 2)
    scene = Scene()
    scene.results.declare({b"f": 1.0, b"g": 1.0})
    for job_id in range(7):
        scene.end(job_id, b"fg"[job_id % 2 :][:1])
    assert [scene.deleted(1) for _ in range(4)] == [[0, 2], [4, 1], [3], []]
    scene.end(8)
    assert scene.deleted(2) == [8]

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from mainspring.workflows.decider_workers import Builds

DEFINITION = ("default", "order", "1")


@dataclass(eq=False)
class Worker:
    credit: int = 1


def connected(**workers: Worker) -> Builds:
    builds = Builds()
    for digest, worker in workers.items():
        builds.connected((*DEFINITION, digest), cast("Any", worker))
    return builds


def chosen(builds: Builds, failed: tuple[str, ...], cached: Worker | None = None) -> Any:
    return builds.other_than(failed, DEFINITION, cast("Any", cached))


def test_each_build_is_listed_once_while_a_worker_has_it() -> None:
    first, second = cast("Any", Worker()), cast("Any", Worker())
    builds = Builds()
    for worker in (first, second):
        builds.connected((*DEFINITION, "a"), worker)
    builds.connected((*DEFINITION, "b"), second)
    assert list(builds.all()) == [(*DEFINITION, "a"), (*DEFINITION, "b")]
    builds.disconnected((*DEFINITION, "a"), first)
    builds.disconnected((*DEFINITION, "a"), first)
    assert len(list(builds.all())) == 2
    for digest in ("a", "b"):
        builds.disconnected((*DEFINITION, digest), second)
    assert list(builds.all()) == []


def test_a_decision_goes_to_a_build_that_has_not_failed() -> None:
    a, b, c = Worker(), Worker(credit=0), Worker()
    builds = connected(a=a, b=b, c=c)
    assert chosen(builds, ("a",)) is c, "it has credit"
    assert chosen(builds, ("a",), cached=b) is b, "it has the run in memory"
    assert chosen(builds, ("a", "c"), cached=a) is b
    assert chosen(builds, ("a", "b", "c"), cached=a) is None
    assert builds.other_than(("a",), ("default", "order", "2"), None) is None

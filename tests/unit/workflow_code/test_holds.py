"""The code of a run that holds slots, and the answers to its requests in any order with its timers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypedDict

import pytest

from mainspring import App, HoldTimedOut, Resource, workflow
from mainspring.errors import PayloadError
from mainspring.resources.holds import HeldItem, HoldAnswer
from mainspring.workflows.requests import RecordMarker

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from mainspring.workflows.requests import Decision


class Cluster(TypedDict):
    id: str


class Spark(Resource):
    async def create(self, key: str) -> Cluster:
        return {"id": key}

    async def release(self, meta: Cluster) -> None: ...


app = App()
licences = app.resource("licence", total=2)
sparks = app.resource("spark", Spark())
GRANT = HoldAnswer((HeldItem("licence", "", 2, 7),))


def commands(decisions: tuple[Decision, ...]) -> list[tuple[str, int]]:
    """Return the names and numbers of the markers about holds."""
    return [(one.name, one.number) for one in decisions if isinstance(one, RecordMarker)]


async def holding() -> str:
    try:
        async with licences.hold(2, timeout=60) as held:
            number = held.number
    except HoldTimedOut as error:
        number = -error.before
    await workflow.sleep(5)
    return str(number)


def begun() -> tuple[FakeNode, FakeWorker]:
    """Return a run whose code waits for slots, and has a timer."""
    node = FakeNode()
    worker = FakeWorker(code_of(holding), node)
    assert commands(worker.decide().decisions) == [("hold", 1)]
    return node, worker


def ends_as(node: FakeNode, worker: FakeWorker, result: bytes, *, replays: bool) -> None:
    """Let a run end, and check its result; with ``replays`` another worker goes on with it."""
    if replays:
        worker.restart()
    node.fire()
    worker.decide()
    assert node.closed.result == result


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_grant_that_comes_with_the_end_of_the_wait_counts(replays: bool, is_first: bool) -> None:
    node, worker = begun()
    if is_first:
        node.answer_hold(1, GRANT)
    node.fire()
    if not is_first:
        node.answer_hold(1, GRANT)
    assert commands(worker.decide().decisions) == [("release", 1)], "nothing was given up"
    ends_as(node, worker, b'"7"', replays=replays)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize(
    ("given", "result", "expected"),
    [(GRANT, b'"7"', [("release", 1)]), (HoldAnswer(lacks=("licence",), before=3), b'"-3"', [])],
)
def test_a_wait_that_is_over_is_answered(
    replays: bool, given: HoldAnswer, result: bytes, expected: list[tuple[str, int]]
) -> None:
    node, worker = begun()
    node.fire()
    assert commands(worker.decide().decisions) == [("withdraw", 1)]
    node.answer_hold(1, given)
    if replays:
        worker.restart()
    assert commands(worker.decide().decisions) == expected
    ends_as(node, worker, result, replays=replays)


def test_a_cancelled_wait_takes_its_request_back_at_once() -> None:
    node, worker = begun()
    node.request_cancel()
    assert commands(worker.decide().decisions) == [("release", 1)]


@pytest.mark.parametrize("grants", [False, True])
def test_a_node_of_an_earlier_version_parks_a_run_that_has_asked_another_one(grants: bool) -> None:
    """Such a node would leave the slots with the run, or the run without an answer."""
    node, worker = begun()
    if grants:
        node.answer_hold(1, GRANT)
    else:
        node.fire()
    worker.instance.takes_holds = False
    parked = worker.decide().parked
    assert parked is not None
    assert "update the node" in parked.message
    worker.restart()
    assert commands(worker.decide().decisions) == [("release" if grants else "withdraw", 1)]


def test_an_answer_that_comes_too_late_is_ignored() -> None:
    async def code() -> str:
        try:
            async with asyncio.timeout(10):
                async with licences.hold(2):
                    return "held"
        except TimeoutError:
            await workflow.sleep(5)
            return "late"

    node = FakeNode()
    worker = FakeWorker(code_of(code), node)
    worker.decide()
    node.fire()
    assert commands(worker.decide().decisions) == [("release", 1)]
    node.answer_hold(1, GRANT)
    assert commands(worker.decide().decisions) == []
    ends_as(node, worker, b'"late"', replays=True)


def test_slots_whose_meta_cannot_be_read_are_given_back() -> None:
    async def code() -> str:
        try:
            async with sparks.hold():
                return "held"
        except PayloadError:
            await workflow.sleep(5)
            return "another meta"

    node = FakeNode()
    worker = FakeWorker(code_of(code), node)
    worker.decide()
    node.answer_hold(1, HoldAnswer((HeldItem("spark", "spark-1", 1, 7, {"id": 5}),)))
    assert commands(worker.decide().decisions) == [("release", 1)]
    ends_as(node, worker, b'"another meta"', replays=True)

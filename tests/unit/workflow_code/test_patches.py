"""``workflow.patched``: code that changes under open runs, against a fake node."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, UsageError, WorkflowUsageError, workflow
from mainspring.workflows import history as h
from mainspring.workflows.history import MarkerName
from mainspring.workflows.requests import RecordMarker

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()


@app.task
async def old(number: int) -> str:
    return f"old {number}"


@app.task
async def new(number: int) -> str:
    return f"new {number}"


TASKS: dict[str, Callable[..., Any]] = {name: lambda number, name=name: f"{name} {number}" for name in ("old", "new")}


def start(call: Any) -> FakeWorker:
    return FakeWorker(code_of(call), FakeNode(), TASKS)


def deploy(worker: FakeWorker, call: Any) -> FakeWorker:
    """Go on with the run by other code, in another worker."""
    return FakeWorker(code_of(call), worker.node, TASKS)


def result(closed: Any) -> Any:
    assert isinstance(closed, h.WorkflowExecutionCompleted), closed
    return json.loads(closed.result)


def finish(worker: FakeWorker) -> Any:
    """Go on to the end, and return the result."""
    if not worker.node.decision_waits:
        worker.do_activity(next(iter(worker.node.activities)))
    return result(worker.until_closed())


def patches(worker: FakeWorker) -> list[str]:
    return [
        event.function
        for event in worker.node.events
        if isinstance(event, h.MarkerRecorded) and event.name == MarkerName.PATCH
    ]


def replays(worker: FakeWorker, call: Any) -> None:
    """Replay each prefix of a history."""
    node = worker.node
    for end in node.commits[:-1]:
        turn = FakeWorker(code_of(call), FakeNode(), TASKS).instance.deliver(
            node.events[:end], node.events[end - 1].at_us
        )
        assert turn.parked is None, (end, turn.parked)


def looping(patch: str = "") -> Any:
    async def loop() -> list[str]:
        done = []
        for number in range(4):
            task = new if patch and workflow.patched(patch) else old
            done.append(await task.submit(number))
        return done

    return loop


def test_old_iterations_of_a_loop_stay_old_and_new_ones_are_new() -> None:
    worker = start(looping())
    worker.decide()
    worker.do_activity("1")
    worker.decide()
    newer = deploy(worker, looping("x"))
    assert finish(newer) == ["old 0", "old 1", "new 2", "new 3"]
    assert patches(newer) == ["x"], "one marker for all iterations"
    replays(newer, looping("x"))


def test_a_decision_that_waits_at_the_deploy_is_a_new_one() -> None:
    worker = start(looping())
    worker.decide()
    worker.do_activity("1")
    assert finish(deploy(worker, looping("x"))) == ["old 0", "new 1", "new 2", "new 3"]


def test_a_new_run_has_the_patch_and_code_without_its_mark_goes_on() -> None:
    worker = start(looping("x"))
    worker.decide()
    worker.do_activity("1")

    async def final() -> list[str]:
        return [await new.submit(number) for number in range(4)]

    newer = deploy(worker, final)
    assert finish(newer) == ["new 0", "new 1", "new 2", "new 3"], "patches have no command numbers"
    replays(newer, final)


def test_code_without_the_old_way_parks_a_run_that_needs_it() -> None:
    worker = start(looping())
    worker.decide()

    async def final() -> list[str]:
        workflow.patched("x")
        return [await new.submit(number) for number in range(4)]

    worker.do_activity("1")
    parked = deploy(worker, final).decide().parked
    assert parked is not None
    assert (parked.recorded, parked.code) == (("activity #1 old [0]",), ("activity #1 new [0]",))


def test_a_patch_on_other_commands_is_compared_by_its_effects() -> None:
    async def one() -> None:
        workflow.patched("x")
        await new.submit(1)
        await old.submit(2)

    async def other() -> None:
        workflow.patched("x")
        await new.submit(1)
        await old.submit(3)

    worker = start(one)
    worker.decide()
    worker.do_activity("1")
    worker.decide()
    parked = deploy(worker, other).decide_only().parked
    assert parked is not None
    assert parked.at == 1
    assert parked.recorded == ("activity #1 new [1]", "activity #2 old [2]")
    assert parked.code == ("activity #1 new [1]", "activity #2 old [3]")


def test_a_difference_is_shown_without_the_patches() -> None:
    def differing(number: int) -> Any:
        async def both() -> None:
            first = new.submit(number)
            workflow.patched("x")
            await asyncio.gather(first, old.submit(2))

        return both

    worker = start(differing(1))
    worker.decide()
    worker.do_activity("1")
    parked = deploy(worker, differing(9)).decide_only().parked
    assert parked is not None
    assert parked.recorded == ("activity #1 new [1]", "activity #2 old [2]")
    assert parked.code == ("activity #1 new [9]", "activity #2 old [2]")


def steps(patch: str = "", *, first: bool = False) -> Any:
    async def two_steps() -> list[Any]:
        asked = [workflow.patched("y")] if first else []
        one = await workflow.step(double, 1)
        if patch:
            asked.append(workflow.patched(patch))
        two = await workflow.step(double, 20 if asked and asked[-1] else 2)
        repeated = patch and workflow.patched(patch)
        await old.submit(1)
        later = patch and workflow.patched(patch)
        return [one, two, asked, repeated, later]

    return two_steps


def double(number: int) -> int:
    return 2 * number


def test_a_resumed_decision_does_not_get_a_patch_that_its_markers_lack() -> None:
    worker = start(steps())
    worker.decide()
    worker.end_steps()
    assert worker.node.state.steps, "the decision has recorded a step, and is lost"
    newer = deploy(worker, steps("x"))
    newer.decide()
    assert newer.executed == []
    newer.end_steps()
    assert newer.executed == [("double", (2,))]
    assert finish(newer) == [2, 4, [False], False, True], "the decision after it has the patch"
    replays(newer, steps("x"))


def test_a_resumed_decision_keeps_a_patch_that_was_recorded() -> None:
    worker = start(steps("x", first=True))
    worker.decide()
    assert patches(worker) == ["y"], "a patch is recorded before the next step starts"
    worker.end_steps()
    assert patches(worker) == ["y", "x"]
    worker.end_steps()
    newer = deploy(worker, steps("x", first=True))
    assert finish(newer) == [2, 40, [True, True], True, True]
    assert newer.executed == []
    replays(newer, steps("x", first=True))


def test_each_run_has_patches_of_its_own_and_an_eviction_keeps_them() -> None:
    async def two() -> list[Any]:
        asked = [workflow.patched("x"), workflow.patched("y"), workflow.patched("x")]
        await old.submit(1)
        return [*asked, workflow.patched("z")]

    worker = start(two)
    turn = worker.decide()
    numbers = [(one.number, one.function) for one in turn.decisions if isinstance(one, RecordMarker)]
    assert numbers == [(1, "x"), (2, "y")]
    worker.restart()
    assert finish(worker) == [True, True, True, True]
    assert patches(worker) == ["x", "y", "z"]


def test_wrong_ids_and_calls_outside_of_a_workflow_are_refused() -> None:
    with pytest.raises(WorkflowUsageError, match=r"workflow\.patched works only inside of a workflow"):
        workflow.patched("x")
    wrong: Any = 5
    for patch in ("", "x" * 257, wrong):

        async def call(patch: Any = patch) -> list[str]:
            try:
                workflow.patched(patch)
            except UsageError as error:
                return [str(error)]
            return []

        assert "the id of a patch" in finish(start(call))[0]

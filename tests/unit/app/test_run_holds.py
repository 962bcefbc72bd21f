"""Workflows that hold slots of resources: blocks, waits and their ends, crashes of the worker, and what shows them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, HeldSlots, HoldTimedOut, JobFailed, UsageError, WorkflowUsageError, current_job, workflow
from mainspring.testing import InMemory, assert_replays, in_memory
from mainspring.workflow_code import instance as instances
from mainspring.workflows.hold_calls import MOST_HOLDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.client.run import Run

app = App()
licences = app.resource("licence", total=2)
printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})
go = app.signal("go", str)
used: list[str] = []


@app.task
def use(held: HeldSlots) -> str:
    used.append(held.item)
    return f"{held.resource} {held.item} as number {held.number}"


@app.task(uses={licences: 1})
def licensed() -> int:
    return current_job().resource(licences).number


@app.workflow
async def part(held: HeldSlots) -> str:
    return await use.submit(held)


@app.workflow
async def colour() -> list[str]:
    async with printers.hold(where={"colour"}) as printer:
        done = [await use.submit(printer), await part.submit(printer)]
        return [*done, await go.receive()]


@app.workflow
async def both(within: str) -> list[str]:
    try:
        async with workflow.hold({licences: 2, printers["colour"]: 1}, timeout=within) as held:
            await workflow.sleep(1)
            return [held[printers].item, str(held[licences].items)]
    except HoldTimedOut as error:
        return [*error.lacking, str(error.before), str(error.impossible)]


@app.workflow
async def licence(number: int, sleep: float = 0) -> int:
    async with licences.hold(number) as held:
        await workflow.sleep(sleep)
        return held.number


@app.workflow
async def misuses(how: str) -> object:
    if how == "twice":
        block = licences.hold()
        async with block:
            pass
        async with block:
            pass
    if how == "many":
        async with asyncio.TaskGroup() as group:
            for _ in range(MOST_HOLDS + 1):
                group.create_task(_holds())
    if how == "another":
        async with workflow.hold({licences: 1}) as held:
            return held[printers]
    if how == "none":
        async with licences.hold(0):
            pass
    return None


async def _holds() -> None:
    async with licences.hold():
        await workflow.sleep(10)


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    used.clear()
    with in_memory(app) as fleet:
        yield fleet


def holds(run: Run[Any]) -> list[tuple[str, str, str, list[str]]]:
    """Return what a run holds and waits for, as its details show it."""
    shown = run.details()["holds"]
    return [(one["state"], one["resource"], one["item"], one["lacks"]) for one in shown]


def test_a_block_has_slots_for_activities_and_children(fleet: InMemory) -> None:
    run = colour.submit()
    fleet.settle()
    assert holds(run) == [("held", "printer", "p1", [])]
    run.signal(go, "end")
    assert fleet.result(run) == ["printer p1 as number 1", "printer p1 as number 1", "end"]
    assert used == ["p1", "p1"]
    assert fleet.result(both.submit("1h")) == ["p1", "{'': 2}"], "the block has given them back"


def test_a_block_outlives_the_crash_of_its_worker(fleet: InMemory) -> None:
    run, other = colour.submit(), colour.submit()
    fleet.settle()
    fleet.crash_worker()
    assert (holds(run), holds(other)) == (
        [("held", "printer", "p1", [])],
        [("waits", "printer", "colour", ["printer"])],
    )
    run.signal(go, "one")
    fleet.result(run)
    fleet.settle()
    fleet.crash_worker()
    other.signal(go, "two")
    assert fleet.result(other)[0] == "printer p1 as number 2"


def test_several_resources_are_held_all_or_none(fleet: InMemory) -> None:
    run = colour.submit()
    fleet.settle()
    waiting = both.submit("1h")
    fleet.settle()
    assert holds(waiting) == [
        ("waits", "licence", "", ["printer"]),
        ("waits", "printer", "colour", ["printer"]),
    ]
    assert "licence 2, printer[colour] 1" in waiting.details()["waits_for"]
    shown = waiting.details()["holds"][0]
    assert (shown["behind"], shown["impossible"]) == ([], False)
    run.signal(go, "end")
    assert fleet.result(waiting) == ["p1", "{'': 2}"]


def test_a_timeout_says_what_was_lacking(fleet: InMemory) -> None:
    holder, first = colour.submit(), colour.submit()
    fleet.settle()
    begun = fleet.now
    assert fleet.result(both.submit("10m")) == ["printer", "1", "False"]
    assert timedelta(minutes=10) <= fleet.now - begun < timedelta(minutes=11)
    assert fleet.result(licence.submit(2)) == 1, "nothing was kept of the request"
    for run in (holder, first):
        run.signal(go, "end")
        fleet.result(run)
    with pytest.raises(JobFailed, match=r"HoldTimedOut: no slots of printer in time: .* even if nobody holds any"):
        fleet.result(_too_many.submit())


@app.workflow
async def _too_many() -> None:
    async with printers.hold(3, timeout="1m"):
        raise AssertionError


def test_a_timeout_of_zero_takes_what_is_free_at_once(fleet: InMemory) -> None:
    assert fleet.result(both.submit("0")) == ["p1", "{'': 2}"]
    held = licence.submit(2, 3600)
    fleet.settle()
    assert fleet.result(both.submit("0")) == ["licence", "0", "False"]
    held.terminate()


def test_a_cancelled_wait_takes_its_request_back(fleet: InMemory) -> None:
    holder, waiting, last = (colour.submit() for _ in range(3))
    fleet.settle()
    waiting.cancel("not needed")
    fleet.settle()
    assert waiting.details()["status"] == "cancelled"
    holder.signal(go, "end")
    last.signal(go, "end")
    assert fleet.result(last)[0] == "printer p1 as number 2"


@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_the_end_of_a_run_gives_its_slots_to_the_next(fleet: InMemory, end: str) -> None:
    first, second = colour.submit(), colour.submit()
    fleet.settle()
    getattr(first, end)("enough")
    fleet.settle()
    assert holds(second) == [("held", "printer", "p1", [])]
    second.terminate()


def test_runs_and_jobs_share_the_slots(fleet: InMemory) -> None:
    run = licence.submit(2, 3600)
    fleet.settle()
    job = licensed.submit()
    fleet.settle()
    assert job.state == "leased"
    begun = fleet.now
    assert fleet.result(job) == 2
    assert fleet.now - begun >= timedelta(hours=1), "the block has ended before"
    assert fleet.result(run) == 1


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("twice", "a hold is for one block"),
        ("many", f"the run has {MOST_HOLDS} requests and holds of resources"),
        ("another", "the block has nothing of the resource 'printer'"),
        ("none", "uses of licence must be"),
    ],
)
def test_a_misuse_parks_the_run(fleet: InMemory, how: str, why: str) -> None:
    run = misuses.submit(how)
    fleet.settle()
    parked = run.details()["parked"]
    assert parked is not None
    assert why in parked["message"]
    run.terminate()


def test_code_outside_of_workflows_holds_nothing() -> None:
    with pytest.raises(WorkflowUsageError, match="only workflows hold resources in a block"):
        licences.hold()
    with pytest.raises(WorkflowUsageError, match="only inside of a workflow"):
        workflow.hold({licences: 1})
    with pytest.raises(UsageError, match="where must be a set of labels"):
        printers.hold(where="colour")


def test_a_node_of_an_earlier_version_parks_the_run(fleet: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a node would record the request as a marker, and grant nothing."""
    monkeypatch.setattr(instances.Instance, "takes_holds", property(lambda _: False, lambda *_: None), raising=False)
    run = licence.submit(1)
    fleet.settle()
    assert "update the node" in run.details()["parked"]["message"]
    run.terminate()


def test_replays_compare_what_code_asks_for(fleet: InMemory, tmp_path: Path) -> None:
    run = licence.submit(2)
    fleet.result(run)
    path = tmp_path / "run.json"
    fleet.history(run).save(path)
    assert_replays(app, path)
    other = App()
    fewer = other.resource("licence", total=2)

    @other.workflow(name="licence")
    async def changed(number: int, sleep: float = 0) -> int:
        async with fewer.hold(number - 1, timeout="5s") as held:
            await workflow.sleep(sleep)
            return held.number

    with pytest.raises(AssertionError, match=r"hold #1 licence 2.*hold #1 licence 1"):
        assert_replays(other, path)


@app.workflow
async def patient() -> int:
    async with licences.hold(2, timeout=3600) as held:
        return held.number


def test_a_grant_at_the_last_moment_counts(fleet: InMemory) -> None:
    """The slots and the end of the wait come with one decision."""
    first = licence.submit(2, 3600)
    fleet.settle()
    waiting = patient.submit()
    fleet.settle()
    assert fleet.result(waiting) == 2
    kinds = fleet.history(waiting).kinds()
    assert kinds.count("TimerFired") == 1
    assert fleet.result(first) == 1

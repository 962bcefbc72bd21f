"""Children of runs, and requests to other runs, with a node and a worker in memory. Each decision is checked by a replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, CompensationFailed, JobCancelled, NotFoundError, workflow
from mainspring.errors import WorkflowUsageError
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring.testing.app import InMemory

app = App()
go = app.signal("go", int)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.workflow
async def part(number: int) -> int:
    return await double.submit(number)


@app.workflow
async def waiting() -> int:
    return await go.receive()


@app.workflow
async def failing() -> None:
    raise ValueError("no part")


@app.workflow
async def leaving() -> str:
    """Clean up when it is cancelled, and end with a result all the same."""
    try:
        await workflow.sleep("1d")
    except asyncio.CancelledError:
        await double.submit(1)
    return "left"


bodies: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {}


@app.workflow
async def parent(name: str) -> Any:
    return await bodies[name]()


def body(call: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Coroutine[Any, Any, Any]]:
    bodies[call.__name__] = call
    return call


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    with in_memory(app) as running:
        yield running


def result_of(fleet: InMemory, call: Callable[[], Coroutine[Any, Any, Any]], advance: str = "1s") -> Any:
    run = parent.submit(call.__name__)
    fleet.advance(advance)
    return run.result(5)


# ---- results and errors ----


@body
async def many() -> list[int]:
    both = await asyncio.gather(part.submit(1), part(2))
    return [*both, await part.submit(sum(both))]


def test_children_return_their_results(fleet: InMemory) -> None:
    assert result_of(fleet, many) == [2, 4, 12]


@body
async def errors() -> list[Any]:
    found: list[Any] = [
        await failing.submit().outcome(),
        await waiting.options(timeout="5s").submit().outcome(),
    ]
    held = waiting.options(id="held").submit()
    found.append(await waiting.options(id="held").submit().outcome())
    held.cancel()
    return [(type(one.error).__name__, str(one.error)) for one in found]


def test_children_raise_as_runs_do_outside(fleet: InMemory) -> None:
    failed, timed_out, refused = result_of(fleet, errors, "10s")
    assert failed == ["JobFailed", "job failing #1 failed at attempt 1: ValueError: no part"]
    assert timed_out[0] == "JobTimedOut"
    assert "the run took longer than its execution timeout" in timed_out[1]
    assert refused[0] == "JobFailed"
    assert "WorkflowAlreadyRunning: the workflow id held has an open run" in refused[1]


@app.workflow(start_within="1h", deadline="5h")
async def dated() -> None: ...


@body
async def with_times() -> None:
    await asyncio.gather(dated.submit(), dated.options(deadline="2h").submit(), part.submit(1))


def test_children_have_the_times_of_their_options(fleet: InMemory) -> None:
    run = parent.submit("with_times")
    fleet.advance("1s")
    initiated = [one for one in fleet.history(run).events if one["event"] == "StartChildWorkflowExecutionInitiated"]
    times = [(one.get("start_within"), one.get("deadline")) for one in initiated]
    assert times == [(3600, 18000), (3600, 7200), (None, None)]


@body
async def unregistered() -> str:
    outcome = await part.options(version="9").submit(1).outcome()
    return str(outcome.error)


def test_an_unregistered_version_is_named(fleet: InMemory) -> None:
    assert "no worker has registered version 9 of the workflow part" in result_of(fleet, unregistered)


@body
async def terminated() -> str:
    return str((await waiting.options(id="ended from outside").submit().outcome()).error)


def test_a_child_that_is_terminated_fails(fleet: InMemory) -> None:
    run = parent.submit("terminated")
    fleet.advance("1s")
    waiting.get("ended from outside").terminate("enough")
    fleet.advance("1s")
    assert "WorkflowTerminated: the run was terminated: enough" in run.result(5)


# ---- cancelling ----


@body
async def tries() -> str:
    try:
        async with asyncio.timeout(10):
            await leaving.options(id="tried").submit()
    except TimeoutError:
        return "went on at once"
    return "waited"


@body
async def waits() -> str:
    async with asyncio.timeout(10):
        return await leaving.options(id="waited", cancel="wait").submit()


@body
async def abandons() -> str:
    try:
        async with asyncio.timeout(10):
            await leaving.options(id="abandoned", cancel="abandon").submit()
    except TimeoutError:
        return "went on at once"
    return "waited"


@pytest.mark.parametrize(
    ("call", "key", "status"), [(tries, "tried", "completed"), (abandons, "abandoned", "open")], ids=["try", "abandon"]
)
def test_cancelling_a_wait_cancels_the_child_as_its_option_says(
    fleet: InMemory, call: Any, key: str, status: str
) -> None:
    assert result_of(fleet, call, "20s") == "went on at once"
    assert leaving.get(key).details()["status"] == status


def test_cancelling_a_wait_may_wait_for_the_child(fleet: InMemory) -> None:
    assert result_of(fleet, waits, "20s") == "left"
    assert leaving.get("waited").result(5) == "left"


def test_cancelling_a_run_cancels_the_child_that_it_waits_for(fleet: InMemory) -> None:
    run = parent.submit("terminated")
    fleet.advance("1s")
    run.cancel()
    fleet.advance("1s")
    for one in (run, waiting.get("ended from outside")):
        with pytest.raises(JobCancelled):
            one.result(5)


@body
async def leaves_one() -> None:
    _ = waiting.options(id="left").submit()


def test_a_child_that_nobody_awaits_outlives_its_parent(fleet: InMemory) -> None:
    assert result_of(fleet, leaves_one) is None
    waiting.get("left").signal(go, 4)
    fleet.settle()
    assert waiting.get("left").result(5) == 4


@body
async def with_policies() -> None:
    await asyncio.gather(
        waiting.options(id="terminate").submit(),
        waiting.options(id="cancel", child_policy="cancel").submit(),
        waiting.options(id="abandon", child_policy="abandon").submit(),
    )


@pytest.mark.parametrize(
    ("override", "statuses"),
    [(None, ["terminated", "cancelled", "open"]), ("abandon", ["open", "open", "open"])],
)
def test_child_policies(fleet: InMemory, override: Any, statuses: list[str]) -> None:
    run = parent.submit("with_policies")
    fleet.advance("1s")
    details = run.details()
    assert [child["policy"] for child in details["children"]] == ["terminate", "cancel", "abandon"]
    assert waiting.get("cancel").details()["parent"] == details["run"]
    run.terminate(children=override)
    fleet.settle()
    assert [waiting.get(key).details()["status"] for key in ("terminate", "cancel", "abandon")] == statuses


# ---- requests to other runs ----


@body
async def requests() -> list[Any]:
    child = waiting.options(id="child").submit()
    await child.asignal(go, 5)
    other = workflow.external("other")
    await other.signal(go, 6)
    await other.cancel("no more")
    try:
        await workflow.external("nobody").signal(go, 7)
    except NotFoundError as error:
        return [await child, str(error)]
    raise AssertionError


def test_requests_to_other_runs(fleet: InMemory) -> None:
    other = leaving.options(id="other").submit()
    child, error = result_of(fleet, requests)
    assert child == 5
    assert "cannot signal go to the run nobody: no open run has this name" in error
    assert other.result(5) == "left"
    assert other.details()["cancel_requested"]


def test_requests_are_for_workflows_alone() -> None:
    with pytest.raises(WorkflowUsageError, match=r"workflow.external works only inside"):
        workflow.external("other")


@body
async def by_handle() -> None:
    key = await go.receive()
    await workflow.external(f"H:test:{key}").signal(go, 8)


def test_a_request_by_handle(fleet: InMemory) -> None:
    other = waiting.submit()
    run = parent.submit("by_handle")
    run.signal(go, int(other.handle.rpartition(":")[2]))
    fleet.advance("1s")
    assert (run.result(5), other.result(5)) == (None, 8)


# ---- maps and sagas ----


def test_a_workflow_is_mapped(fleet: InMemory) -> None:
    @body
    async def mapped() -> list[int]:
        return await workflow.map(part, range(5), limit=2)

    assert result_of(fleet, mapped) == [0, 2, 4, 6, 8]


def test_a_saga_undoes_by_a_child(fleet: InMemory) -> None:
    @body
    async def undone() -> str:
        try:
            async with workflow.Saga() as saga:
                saga.undo(failing)
                saga.undo(part, 3)
                await failing()
        except CompensationFailed as failed:
            return f"{failed.exceptions[0]} after {failed.__cause__}"
        return "done"

    assert result_of(fleet, undone) == (
        "job failing #3 failed at attempt 1: ValueError: no part after "
        "job failing #1 failed at attempt 1: ValueError: no part"
    )

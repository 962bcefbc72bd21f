"""The code of a rerun gets the results that it has taken over, and executes what is new."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, NotFoundError, workflow
from mainspring.worker.workflows.replay_checks import replay
from mainspring.workflows import history as h
from mainspring.workflows.carrying import Choice, plan_rerun

from .fake_node import FakeNode, FakeWorker, code_of
from .other_runs import OtherRuns

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()
ROOM = 10_000


@app.task
def label(item: str) -> str:
    return item


@app.workflow
async def child(item: str) -> int:
    return len(item)


class Shop:
    """Executes what runs ask for, notes it, and fails for the items that are ``broken``."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.broken: set[str] = set()
        self.failed: list[str] = []

    def do(self, item: str) -> str:
        self.executed.append(item)
        if item in self.broken:
            self.failed.append(item)
            raise ValueError(item)
        return item.upper()

    def run(self, call: Callable[..., Any], payload: bytes = b"", carried: Any = (), seed: int = 7) -> FakeWorker:
        worker = FakeWorker(code_of(call), FakeNode(payload, carried=carried, seed=seed), {"label": self.do})
        worker.until_closed()
        return worker

    def rerun(self, worker: FakeWorker, payload: bytes = b"", choice: Choice | None = None) -> FakeWorker:
        self.executed.clear()
        plan = plan_rerun(worker.node.events, choice or Choice(), ROOM)
        return self.run(worker.code.call, payload, plan.carried)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_what_has_succeeded_is_not_executed_again(shop: Shop) -> None:
    async def run() -> list[str]:
        found = [await label.submit("a"), await workflow.step(shop.do, "b")]
        return [*found, await label.submit("c"), await workflow.step(shop.do, "d")]

    shop.broken = {"c"}
    failed = shop.run(run)
    assert isinstance(failed.node.closed, h.WorkflowExecutionFailed)
    assert shop.executed == ["a", "b", "c"]
    shop.broken = set()
    second = shop.rerun(failed)
    assert shop.executed == ["c", "d"]
    assert second.node.closed.result == b'["A","B","C","D"]'


def test_a_rerun_records_nothing_for_what_it_carries(shop: Shop) -> None:
    async def run() -> str:
        for number in range(50):
            await label.submit(str(number))
            await workflow.step(shop.do, str(number))
        return "done"

    second = shop.rerun(shop.run(run))
    assert shop.executed == []
    kinds = [type(event).__name__ for event in second.node.events]
    assert kinds[0] == "WorkflowExecutionStarted"
    assert kinds[1:101] == ["MarkerRecorded"] * 100
    assert kinds[101:] == [
        "DecisionTaskScheduled",
        "DecisionTaskStarted",
        "DecisionTaskCompleted",
        "WorkflowExecutionCompleted",
    ]


def test_another_input_repeats_what_depends_on_it_alone(shop: Shop) -> None:
    async def run(changed: str) -> list[str]:
        fixed = [await label.submit("a"), await workflow.step(shop.do, "b")]
        other = await label.submit(changed)
        return [*fixed, other, await workflow.step(shop.do, f"after {other}"), await label.submit("e")]

    first = shop.run(run, b'["x"]')
    second = shop.rerun(first, b'["y"]')
    assert shop.executed == ["y", "after Y"]
    assert second.node.closed.result == b'["A","B","Y","AFTER Y","E"]'


def test_the_nth_of_the_same_calls_gets_the_nth_result(shop: Shop) -> None:
    numbers = iter(range(100))

    def count() -> int:
        return next(numbers)

    async def run() -> list[int]:
        return [await workflow.step(count), await workflow.step(count), await workflow.step(count)]

    second = shop.rerun(shop.run(run))
    assert second.node.closed.result == b"[0,1,2]"
    assert next(numbers) == 3


def test_a_given_result_takes_the_place_of_one_call_or_of_each(shop: Shop) -> None:
    async def run() -> list[str]:
        return [await label.submit("a"), await label.submit("b"), await workflow.step(shop.do, "c", name="read")]

    first = shop.run(run)
    one = shop.rerun(first, choice=Choice(skip={"label#2": b'"given"'}))
    assert one.node.closed.result == b'["A","given","C"]'
    each = shop.rerun(first, choice=Choice(skip={"label": b'"given"', "read": b'"too"'}))
    assert each.node.closed.result == b'["given","given","too"]'
    assert shop.executed == []


def test_a_result_that_the_code_cannot_read_any_more_is_executed_again(shop: Shop) -> None:
    def text() -> str:
        return "one"

    def number() -> int:
        return 1

    async def run() -> Any:
        return await workflow.step(text, name="read")

    async def changed() -> Any:
        return await workflow.step(number, name="read")

    plan = plan_rerun(shop.run(run).node.events, Choice(), ROOM)
    assert shop.run(changed, carried=plan.carried).node.closed.result == b"1"


def test_side_effects_and_random_numbers_are_those_of_the_run_before(shop: Shop) -> None:
    async def run() -> list[Any]:
        drawn = [workflow.side_effect(lambda: random.randrange(10**9)) for _ in range(3)]
        await label.submit(str(drawn[1]))
        return [*drawn, str(workflow.uuid()), workflow.rng().random()]

    first = shop.run(run)
    second = shop.rerun(first)
    assert shop.executed == []
    assert second.node.closed.result == first.node.closed.result


def test_a_replay_that_begins_in_the_middle_gives_the_next_side_effect_its_own_result(shop: Shop) -> None:
    async def run() -> list[Any]:
        before = workflow.side_effect(lambda: random.randrange(10**9))
        await workflow.sleep(1)
        return [before, workflow.side_effect(lambda: random.randrange(10**9))]

    first = shop.run(run)
    plan = plan_rerun(first.node.events, Choice(), ROOM)
    worker = FakeWorker(code_of(run), FakeNode(carried=plan.carried))
    worker.decide()
    worker.restart()
    worker.node.fire()
    worker.until_closed()
    assert worker.node.closed.result == first.node.closed.result


def test_a_carried_child_takes_no_signal(shop: Shop) -> None:
    async def run() -> str:
        job = child.submit("a")
        value = str(await job)
        try:
            await job.asignal("news", 1)
        except NotFoundError:
            return f"{value}, and refused"
        return value

    node = FakeNode(others=OtherRuns(random.Random(3)))
    worker = FakeWorker(code_of(run), node)
    worker.decide()
    node.do_errands(10)
    node.end_children(*node.children)
    worker.decide()
    plan = plan_rerun(node.events, Choice(), ROOM)
    assert [one.name for one in plan.carried] == ["carried-child"]
    second = shop.run(run, carried=plan.carried)
    assert b"and refused" in second.node.closed.result
    assert not second.node.others.errands


def test_a_decision_of_older_code_of_ours_executes_everything(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        return [await label.submit("a"), await label.submit("b")]

    first = shop.run(run)
    plan = plan_rerun(first.node.events, Choice(), ROOM)
    shop.executed.clear()
    with monkeypatch.context() as patched:
        patched.setattr("mainspring.workflow_code.instance.SEMANTICS", 2)
        worker = FakeWorker(code_of(run), FakeNode(carried=plan.carried), {"label": shop.do})
        worker.decide()  # by a worker of the version before
    worker.restart()
    worker.do_activity(next(iter(worker.node.activities)))
    worker.until_closed()
    assert shop.executed == ["a"]  # its command is recorded, and the next decision carries
    assert worker.node.closed.result == b'["A","B"]'
    assert replay(code_of(run), worker.node.events).difference is None


# ---- random runs ----


def program(chance: random.Random, depth: int = 3) -> list[Any]:
    leaves = ("activity", "step", "together", "side")
    kind = chance.choice((*leaves, "all", "loop", "all", "loop") if depth else leaves[:2])
    if kind in ("all", "loop"):
        return [kind, chance.randrange(5), [program(chance, depth - 1) for _ in range(chance.randint(1, 4))]]
    return [kind, chance.randrange(5), []]


def code_for(shop: Shop, parts: list[Any]) -> Any:
    """Return a workflow whose outcome does not depend on the order in which its calls end."""

    async def part(one: list[Any], value: str) -> str:
        kind, number, inner = one
        if kind == "activity":
            return await label.submit(f"{value[-20:]}{number}")
        if kind == "step":
            return await workflow.step(shop.do, f"{value[-20:]}{number}")
        if kind == "together":
            return await workflow.step(shop.do, f"{value[-20:]}{number}", record="together")
        if kind == "side":
            return f"{workflow.side_effect(lambda: random.randrange(10**6))}"
        if kind == "all":
            return "".join(await asyncio.gather(*(part(below, value) for below in inner)))
        for below in inner:
            value = await part(below, value)
        return value

    async def run(begin: str) -> str:
        return await part(parts, begin)

    return run


@pytest.mark.parametrize("seed", range(40))
def test_reruns_of_a_failing_run_end_as_a_run_that_never_failed(seed: int) -> None:
    chance = random.Random(seed)
    shop = Shop()
    run = code_for(shop, ["loop", 0, [program(chance) for _ in range(4)]])
    whole = shop.run(run, b'["s"]', seed=seed)
    everything = list(shop.executed)
    # The side effects of the run that never failed are given to it.
    sides = [one for one in plan_rerun(whole.node.events, Choice(), ROOM).carried if one.name == "carried-side"]
    shop.executed.clear()
    shop.broken = set(chance.sample(everything, min(3, len(everything))))
    worker = shop.run(run, b'["s"]', sides, seed)
    executed = list(shop.executed)
    while isinstance(worker.node.closed, h.WorkflowExecutionFailed):
        assert shop.broken
        shop.broken.pop()
        worker = shop.rerun(worker, b'["s"]')
        executed += shop.executed
        assert replay(worker.code, worker.node.events).difference is None
    assert worker.node.closed.result == whole.node.closed.result
    assert sorted(executed) == sorted([*everything, *shop.failed]), "what has succeeded executed once"

"""One workflow for each feature. Its golden history, recorded once, is replayed in every run of the tests, for ever.

Never change the code of a recorded workflow: add another one. `docs/contributing/golden-histories.md` says how.
"""

from __future__ import annotations

import asyncio
import contextlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from pydantic import BaseModel, Field

from mainspring import (
    App,
    CompensationFailed,
    HeldSlots,
    HoldTimedOut,
    JobCancelled,
    JobError,
    JobFailed,
    Retry,
    workflow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.definitions import Workflow
    from mainspring.testing import InMemory

P = ParamSpec("P")
R = TypeVar("R")

app = App()
letters = app.signal("letters", str)
numbers = app.signal("numbers", int)


class Golden(NamedTuple):
    """A workflow, its arguments, and what happens to its run from outside while it is recorded."""

    workflow: Any
    args: tuple[Any, ...]
    drive: Callable[[InMemory, Any], object]


GOLDENS: dict[str, Golden] = {}


def golden(
    *args: Any, drive: Callable[[InMemory, Any], object] = lambda _fleet, _job: None, **options: Any
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Define a workflow with a golden history. ``drive`` is called with its run, before the recorder waits for the result."""

    def define(code: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        defined: Workflow[P, R] = app.workflow(**options)(code)
        GOLDENS[code.__name__] = Golden(defined, args, drive)
        return defined

    return define


# ---- tasks ----


@app.task
def double(number: int) -> int:
    return number * 2


@app.task
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slow"


@app.task(retry=Retry(max_attempts=3, initial="1m", jitter=0))
def flaky(number: int) -> int:
    raise OSError(number)


def add(first: int, second: int) -> int:
    return first + second


# ---- the core ----


@golden(3)
async def steps_each(number: int) -> int:
    first = await double.step(number)
    return await workflow.step(add, first, 1)


@golden(3)
async def steps_together(number: int) -> list[int]:
    return await asyncio.gather(*(workflow.step(add, number, one, record="together") for one in range(5)))


@golden(3)
async def steps_concurrent(number: int) -> list[int]:
    jobs = [workflow.step(add, number, one) for one in range(5)]
    other = double.submit(number)
    return [*await asyncio.gather(*jobs), await other]


@golden(3)
async def activities(number: int) -> list[int]:
    return [await double.submit(number), await double.options(priority="high", timeout="1m").submit(number + 1)]


@golden(3)
async def retries(number: int) -> str:
    try:
        await flaky.submit(number)
    except JobFailed as error:
        text = f"{error.type_name} after {error.attempt}"
    with contextlib.suppress(JobFailed, OSError):
        await flaky.step(number)
    return text


@golden()
async def timers() -> float:
    before = workflow.now()
    await workflow.sleep("30d")
    await asyncio.sleep(0.5)
    await asyncio.gather(*(workflow.sleep(one) for one in (3, 1, 2, 1)))
    return (workflow.now() - before).total_seconds()


@golden(10)
async def gather(number: int) -> list[Any]:
    jobs = [double.submit(one) for one in range(number)]
    *found, error = await asyncio.gather(*jobs, flaky.submit(1), return_exceptions=True)
    return [*found, type(error).__name__]


@golden()
async def wait() -> list[Any]:
    jobs = [asyncio.ensure_future(workflow.sleep(one)) for one in (5, 1, 3)]
    done, pending = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    found = [len(done), len(pending)]
    for one in asyncio.as_completed([double.submit(one) for one in range(3)]):
        found.append(await one)  # noqa: PERF401 - one after the other
    return found


@golden()
async def groups() -> list[str]:
    trace = []

    async def part(number: int) -> None:
        trace.append(f"begin {number}")
        await workflow.sleep(number)
        await double.submit(number)
        trace.append(f"end {number}")
        if number == 2:
            raise ValueError("two")

    try:
        async with asyncio.TaskGroup() as group:
            for one in (1, 2, 3):
                group.create_task(part(one))
    except* ValueError as errors:
        trace.append(repr(errors.exceptions))
    return trace


@golden()
async def timeouts() -> list[str]:
    trace = []
    try:
        async with asyncio.timeout(5):
            await workflow.sleep("1h")
    except TimeoutError:
        trace.append("timeout")
    async with asyncio.timeout(3600):
        await double.submit(1)
    try:
        await asyncio.wait_for(letters.receive(), 60)
    except TimeoutError:
        trace.append("wait_for")
    try:
        await letters.receive(timeout="1m")
    except TimeoutError:
        trace.append("receive")
    return trace


def cancel_later(fleet: InMemory, job: Any) -> None:
    fleet.advance(1)
    job.cancel("enough")


@golden(drive=cancel_later)
async def cancel_of_the_run() -> None:
    try:
        await asyncio.gather(workflow.sleep("1d"), letters.receive())
    finally:
        await asyncio.shield(double.submit(7))


@golden()
async def cancel_of_activities() -> list[str]:
    trace = []
    job = slow.submit(60.0)
    await double.submit(0)
    job.cancel("not needed")
    try:
        await job
    except JobCancelled:
        trace.append("cancelled")
    task = asyncio.ensure_future(slow.submit(60.0))
    await double.submit(1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        trace.append("task")
    return trace


def send(fleet: InMemory, job: Any) -> None:
    for number in range(5):
        job.signal(numbers, number)
        job.signal(letters, "abcde"[number])
    fleet.advance(60)
    job.signal(numbers, 5)


@golden(drive=send)
async def signals() -> list[Any]:
    found: list[Any] = [await letters.receive()]
    await workflow.sleep(30)
    found += [await numbers.receive() for _ in range(6)]
    found.append(letters.pending())
    return found


@golden(drive=send)
async def wait_until() -> list[int]:
    found: list[int] = []

    async def collect() -> None:
        async for number in numbers:
            found.append(number)  # noqa: PERF401 - one after the other

    task = asyncio.ensure_future(collect())
    await workflow.wait_until(lambda: len(found) >= 3)
    await double.submit(1)
    await workflow.wait_until(lambda: len(found) >= 6)
    try:
        await workflow.wait_until(lambda: len(found) > 10, timeout="1m")
    except TimeoutError:
        task.cancel()
    return found


@golden()
async def side_effects() -> list[Any]:
    found: list[Any] = [workflow.side_effect(lambda: {"n": 1})]
    await workflow.sleep(1)
    found += [workflow.side_effect(lambda: [2, 3]), workflow.side_effect(lambda: None)]
    await workflow.step(add, 1, 2)
    return found


@golden()
async def chance() -> list[Any]:
    found: list[Any] = [str(workflow.uuid()), workflow.rng().randrange(1000)]
    await workflow.sleep(workflow.rng().randrange(1, 100))
    await double.submit(workflow.rng().randrange(1000))
    return [*found, workflow.rng().choice("abc"), workflow.now().isoformat()]


@golden()
async def outcomes() -> list[str]:
    found = [await double.submit(1).outcome(), await flaky.submit(2).outcome()]
    return [f"{one.ok} {one.value if one.ok else type(one.error).__name__}" for one in found]


@golden()
async def failure() -> None:
    await double.submit(1)
    raise LookupError("no such order")


@golden(200)
async def big_batch(number: int) -> int:
    results = await asyncio.gather(*(double.submit(one) for one in range(number)))
    steps = await asyncio.gather(*(workflow.step(add, one, 1, record="together") for one in range(number)))
    await asyncio.gather(*(workflow.sleep(one) for one in range(1, number)))
    return sum(results) + sum(steps)


@golden(100)
async def loop(number: int) -> int:
    total = 0
    for one in range(number):
        total += await double.submit(one)
        total += await workflow.step(add, total, one)
        await workflow.sleep(60)
    return total


# ---- on top of the core ----


@app.workflow
async def child(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    await workflow.sleep(number)
    return await double.submit(number)


@golden()
async def children() -> list[Any]:
    results = await asyncio.gather(*(child.submit(one) for one in (3, 1, 2)))
    failed = await child.submit(-1).outcome()
    return [*results, failed.ok]


def send_late(fleet: InMemory, job: Any) -> None:
    fleet.settle()
    job.signal(numbers, 5)
    job.signal(numbers, 6)


@golden(drive=send_late)
async def external() -> None:
    other = child.options(id="other-run").submit(86_400)
    await numbers.receive()
    await workflow.external("other-run").signal(letters, "a")
    await workflow.external("other-run").cancel("enough")
    with contextlib.suppress(JobError):
        await other


@golden(3, drive=lambda _fleet, job: [job.signal(numbers, one) for one in range(3)])
async def continued(rounds: int) -> int:
    await double.submit(rounds)
    if rounds:
        raise workflow.continue_as_new(rounds - 1)
    return sum([await numbers.receive() for _ in range(3)])


@golden(retry=Retry(max_attempts=2, initial="1m", jitter=0))
async def retried_run() -> int:
    await double.submit(1)
    if workflow.info().attempt == 1:
        raise OSError("away")
    return workflow.info().attempt


@golden()
async def saga() -> str:
    try:
        async with workflow.Saga() as undoing:
            await double.submit(1)
            undoing.undo(double, 10)
            await workflow.step(add, 1, 2)
            undoing.undo(double, 20)
            await flaky.submit(3)
    except JobFailed as error:
        return error.type_name
    return "done"


@golden(3)
async def patched(rounds: int) -> list[str]:
    found = []
    for one in range(rounds):
        if workflow.patched("twice"):
            await double.submit(one)
        found.append("new")
        await workflow.sleep(1)
    return found


@golden()
async def mapped() -> list[Any]:
    results: list[Any] = await workflow.map(double, range(30), limit=4)
    workflow.progress(30, 30, "mapped")
    more = await workflow.map(flaky, range(2), return_exceptions=True)
    return [*results, len(more)]


async def _put_back(number: int) -> None:
    await asyncio.gather(double.submit(number), workflow.sleep(2))
    await double.step(number)


@golden(drive=cancel_later)
async def undone_by_cancel() -> None:
    try:
        async with workflow.Saga() as undoing:
            undoing.undo(double, 1)
            undoing.undo(flaky.options(retry=Retry(max_attempts=1)), 2)
            undoing.undo(_put_back, 3)
            await double.submit(2)
            await workflow.sleep("1d")
    except CompensationFailed as failed:
        await double.submit(len(failed.exceptions))
        raise asyncio.CancelledError from None


@golden()
async def cancel_modes() -> list[Any]:
    trace: list[Any] = []
    left: Any = app.function("nobody").options(cancel="abandon").submit(b"")
    left.cancel()
    late = asyncio.ensure_future(_late(trace))
    await workflow.sleep(1)
    late.cancel()
    await asyncio.wait([late])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            await workflow.map(_item, range(5), limit=2)
    return [*trace, left.cancelled()]


async def _late(trace: list[Any]) -> None:
    try:
        await asyncio.gather(app.function("nobody").options(cancel="wait").submit(b"w"), workflow.sleep(60))
    finally:
        trace.append("late")


async def _item(number: int) -> int:
    await workflow.sleep(1)
    return int(await double.submit(number))


@golden()
async def cancelled_jobs() -> list[str]:
    trace = []
    for mode in ("try", "wait", "abandon"):
        job = slow.options(cancel=mode).submit(60.0 if mode != "abandon" else 0.01)
        await double.submit(0)
        job.cancel("not needed")
        try:
            trace.append(f"{mode}: {await job}")
        except (asyncio.CancelledError, JobCancelled) as error:
            trace.append(f"{mode}: {type(error).__name__}")
    return trace


# ---- from semantics 1 on ----


def cancel_twice(fleet: InMemory, job: Any) -> None:
    for _ in range(2):
        fleet.advance(1)
        job.cancel("enough")


@golden(drive=cancel_twice)
async def cancelled_once() -> None:
    try:
        await workflow.sleep("1d")
    finally:
        await double.submit(1)
        await workflow.sleep(60)
        await double.submit(2)


@golden()
async def left_tasks() -> str:
    async def hold(number: int) -> None:
        try:
            await workflow.sleep("1d")
        finally:
            await double.submit(number)
            await workflow.sleep(number)

    tasks = [asyncio.ensure_future(hold(one)) for one in (2, 1)]
    await workflow.sleep(1)
    return f"left {len(tasks)}"


def fail(text: str) -> None:
    raise LookupError(text)


@golden()
async def failed_side_effects() -> list[str]:
    found = []
    for text in ("one", "two"):
        try:
            workflow.side_effect(lambda text=text: fail(text))  # type: ignore[misc]
        except LookupError as error:
            found.append(repr(error))
        await workflow.sleep(1)
    return found


@golden(2)
async def map_continued(rounds: int) -> list[int]:
    async def one(number: int) -> int:
        await double.submit(number)
        if number == 1 and rounds:
            raise workflow.continue_as_new(rounds - 1)
        return number

    return await workflow.map(one, range(3))


# ---- models and declared types of results ----


class Item(BaseModel):
    sku: str
    price: Decimal = Decimal("0.10")


class Basket(BaseModel):
    number: int = Field(alias="basketNumber")
    items: list[Item] = []
    tags: set[str] = set()


@app.task
def priced(basket: Basket) -> Decimal:
    return sum((item.price for item in basket.items), Decimal(0))


@app.task
def refilled(basket: Basket, *items: Item) -> Basket:
    return basket.model_copy(update={"items": [*basket.items, *items]})


baskets = app.signal("baskets", Basket)


@golden(
    Basket(basketNumber=1, items=[Item(sku="a")], tags={"one", "two", "three"}),
    drive=lambda _fleet, run: run.signal(baskets, Basket(basketNumber=2)),
)
async def models(basket: Basket) -> Basket:
    full = await refilled.submit(basket, Item(sku="b"), Item(sku="c"))
    cost = await priced.step(full)
    other = await baskets.receive()
    await workflow.map(priced, [full, other])
    return full.model_copy(update={"number": int(cost * 100) + other.number})


@golden()
async def wrong_result() -> int:
    await workflow.sleep(1)
    return "text"  # type: ignore[return-value]


licences = app.resource("licence", total=2)
printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})


@app.task
def printed(held: HeldSlots) -> str:
    return f"{held.resource} {held.item} {held.number}"


@golden()
async def holds() -> list[str]:
    found: list[str] = []
    async with printers.hold(where={"colour"}, timeout="1h") as printer:
        found.append(await printed.submit(printer))
        async with workflow.hold({licences: 2, printers: 1}) as both:
            found.append(str(both[licences].items))
            try:
                async with workflow.hold({licences: 1, printers["colour"]: 1}, timeout="10m"):
                    found.append("not both")
            except HoldTimedOut as error:
                found += error.lacking
        try:
            async with asyncio.timeout(60):
                async with printers["colour"].hold():
                    found.append("not two")
        except TimeoutError:
            found.append("cancelled")
    async with licences.hold(timeout=0) as licence:
        found.append(str(licence.number))
    return found


def reset_late(fleet: InMemory, job: Any) -> None:
    """Signal a run twice, and reset it to the decision between: with an open activity, timer and child, and a later signal."""
    fleet.settle()
    job.signal(numbers, 1)
    fleet.settle()
    job.signal(numbers, 2)
    fleet.settle()
    app.runs.get(job.handle).reset(last=True)


@golden(drive=reset_late)
async def reset_run() -> list[Any]:
    found: list[Any] = [add(await double.submit(1), workflow.rng().randrange(100)), str(workflow.uuid())]
    sleeping = asyncio.ensure_future(workflow.sleep(90))
    part = child.submit(60)
    found.append(await double.step(await numbers.receive()))
    found.append(await double.submit(await numbers.receive()))
    await sleeping
    return [*found, await part]

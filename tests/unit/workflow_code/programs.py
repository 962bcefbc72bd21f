"""Random workflows for the determinism fuzz."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from tests.unit.workflow_code.fake_node import code_of

from mainspring import App, CompensationFailed, MapFailed, workflow
from mainspring.errors import JobError, NotFoundError
from mainspring.workflow_code.channels import Channel

app = App()
recording: list[bool] = []
"""Whether side effects have random values. Each replay goes on after its prefix, and must do so in the same way as others."""
deployed: list[bool] = [True]
"""Whether the code is the new one. The old one has no patches; a recording may begin with it."""
channels: list[Channel[int]] = [Channel(f"c{number}") for number in range(3)]


@app.task
def act(number: int) -> int:
    return number + 1


@app.task
def unstable(number: int) -> int:
    raise ValueError(number)


@app.workflow
async def child(number: int) -> int:
    return number  # other runs are only played


@app.workflow
async def unregistered(number: int) -> int:
    return number


def compute(number: int) -> int:
    return number * 3


def fail(number: int) -> int:
    raise KeyError(number)


# ---- programs: nested lists of a name and its arguments ----

_LEAVES = [
    "act",
    "act",
    "unstable",
    "step",
    "step",
    "joint",
    "failing_step",
    "sleep",
    "sleep",
    "receive",
    "chance",
    "side",
    "change",
    "long",
    "long",
    "child",
    "child_outcome",
    "leave",
    "tell",
    "gathers",
]
_NODES = [
    "sequence",
    "sequence",
    "gather",
    "gather",
    "wait_first",
    "wait_all",
    "completed",
    "group",
    "timeout",
    "wait_for",
    "cancel",
    "shield",
    "loop",
    "final",
    "lock",
    "queue",
    "until",
    "generator",
    "jobs",
    "steps",
    "saga",
    "saga",
    "late",
    "abandon",
    "map",
    "children",
    "children",
    "family",
    "requests",
]


def make(chance: random.Random, depth: int = 3) -> list[Any]:
    """Return a random program."""
    kind = chance.choice(_LEAVES if depth == 0 or chance.random() < 0.25 else _NODES)
    number = chance.randrange(100)
    if kind in _LEAVES:
        return [kind, number]
    parts = [make(chance, depth - 1) for _ in range(chance.randint(1, 4))]
    return [kind, number, parts]


async def run_part(part: list[Any], trace: list[Any]) -> Any:
    """Run a program; its outcome depends on the order of everything in it."""
    kind, number, *rest = part
    trace.append(kind)
    try:
        value = await _RUNNERS[kind](number, *rest, trace)
    except (JobError, NotFoundError) as error:
        value = type(error).__name__
    except TimeoutError:
        value = "late"
    trace.append(value)
    return value


async def _act(number: int, _trace: Any) -> Any:
    return await act.submit(number)


async def _unstable(number: int, _trace: Any) -> Any:
    outcome = await unstable.submit(number).outcome()
    return outcome.ok


async def _step(number: int, _trace: Any) -> Any:
    return await workflow.step(compute, number)


async def _joint(number: int, _trace: Any) -> Any:
    return await workflow.step(compute, number, record="together")


async def _failing_step(number: int, _trace: Any) -> Any:
    return await workflow.step(fail, number)


async def _sleep(number: int, _trace: Any) -> Any:
    await asyncio.sleep(number / 10)
    return workflow.now().timestamp()


async def _receive(number: int, _trace: Any) -> Any:
    return await channels[number % 3].receive(timeout=number)


async def _chance(number: int, _trace: Any) -> Any:
    if number % 2:
        await act.submit(workflow.rng().randrange(1000))
    return str(workflow.uuid())


async def _side(number: int, _trace: Any) -> Any:
    value: int = workflow.side_effect(lambda: random.randrange(10**9) if recording else number)
    return await act.submit(value)


async def _change(number: int, _trace: Any) -> Any:
    if deployed and workflow.patched(f"p{number % 3}"):
        return await act.submit(-number)
    return await workflow.step(compute, -number) if number % 2 else await act.submit(number)


async def _long(number: int, _trace: Any) -> Any:
    return await (act.submit(-number) if workflow.should_continue() else workflow.step(compute, -number))


async def _gathers(number: int, _trace: Any) -> Any:
    done, _ = await asyncio.wait({asyncio.gather(workflow.step(compute, number + place)) for place in range(4)})
    return [one.result() for one in done]


async def _sequence(_number: int, parts: Any, trace: Any) -> Any:
    return [await run_part(part, trace) for part in parts]


async def _gather(number: int, parts: Any, trace: Any) -> Any:
    return await asyncio.gather(*(run_part(part, trace) for part in parts), return_exceptions=bool(number % 2))


def _tasks(parts: Any, trace: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(run_part(part, trace), name=str(place)) for place, part in enumerate(parts)]


async def _wait_first(number: int, parts: Any, trace: Any) -> Any:
    done, pending = await asyncio.wait(
        set(_tasks(parts, trace)), timeout=number / 5 if number % 3 else None, return_when=asyncio.FIRST_COMPLETED
    )
    for task in pending:
        task.cancel()
    for task in done:
        trace.append(task.get_name())
        await act.submit(int(task.get_name()))
    return [task.get_name() for task in pending]


async def _wait_all(number: int, parts: Any, trace: Any) -> Any:
    waiting: set[asyncio.Future[Any]] = {asyncio.gather(run_part(part, trace)) for part in parts}
    waiting |= set(_tasks(parts[:1], trace))
    done, pending = await asyncio.wait(waiting, timeout=number)
    for one in pending:
        one.cancel()
    return [repr(one.exception() or one.result()) for one in done if not one.cancelled()]


async def _completed(number: int, parts: Any, trace: Any) -> Any:
    values = []
    with contextlib.suppress(TimeoutError):
        for one in asyncio.as_completed([run_part(part, trace) for part in parts], timeout=number or None):
            values.append(await one)
            trace.append(len(values))
    return values


async def _group(_number: int, parts: Any, trace: Any) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_part(part, trace)) for part in parts]
    except BaseExceptionGroup as error:
        return len(error.exceptions)
    return [task.result() for task in tasks]


async def _timeout(number: int, parts: Any, trace: Any) -> Any:
    async with asyncio.timeout(number / 4):
        return await _sequence(number, parts, trace)


async def _wait_for(number: int, parts: Any, trace: Any) -> Any:
    return await asyncio.wait_for(_sequence(number, parts, trace), number / 7 - 2)


async def _cancel(number: int, parts: Any, trace: Any) -> Any:
    tasks = _tasks(parts, trace)
    if number % 2:
        await act.submit(number)
    else:
        await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    return [repr(one) for one in await asyncio.gather(*tasks, return_exceptions=True)]


async def _shield(number: int, parts: Any, trace: Any) -> Any:
    inner = asyncio.gather(*_tasks(parts, trace), return_exceptions=True)
    try:
        async with asyncio.timeout(number / 10):
            return repr(await asyncio.shield(inner))
    except TimeoutError:
        return repr(await inner)


async def _loop(number: int, parts: Any, trace: Any) -> Any:
    return [await run_part(parts[place % len(parts)], trace) for place in range(number % 4 + 1)]


async def _final(number: int, parts: Any, trace: Any) -> Any:
    try:
        async with asyncio.timeout(number / 3):
            return await _sequence(number, parts, trace)
    finally:
        trace.append("cleanup")
        await act.submit(number)


async def _lock(number: int, parts: Any, trace: Any) -> Any:
    lock = asyncio.Semaphore(number % 2 + 1)

    async def one(part: Any) -> Any:
        async with lock:
            return await run_part(part, trace)

    return await asyncio.gather(*(one(part) for part in parts))


async def _queue(_number: int, parts: Any, trace: Any) -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def one(part: Any) -> None:
        queue.put_nowait(await run_part(part, trace))

    tasks = [asyncio.create_task(one(part)) for part in parts]
    return [await queue.get() for _ in tasks]


async def _until(number: int, parts: Any, trace: Any) -> Any:
    ended: list[Any] = []

    async def one(part: Any) -> None:
        ended.append(await run_part(part, trace))

    tasks = [asyncio.create_task(one(part)) for part in parts]
    await workflow.wait_until(lambda: len(ended) >= len(tasks) // 2, timeout=number + 1)
    return len(ended)


async def _generator(_number: int, parts: Any, trace: Any) -> Any:
    async def values() -> Any:
        try:
            for part in parts:
                yield await run_part(part, trace)
        finally:
            trace.append("generator ended")
            await act.submit(1)

    async for value in values():
        return value
    return None


async def _jobs(number: int, parts: Any, _trace: Any) -> Any:
    jobs: set[Any] = {
        act.submit(number),
        workflow.step(compute, number),
        *(act.submit(place) for place, _ in enumerate(parts)),
    }
    done, pending = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    for job in pending:
        trace_of = job.cancel("not needed")
        assert trace_of
    return [job.handle for job in done]


async def _steps(number: int, parts: Any, trace: Any) -> Any:
    modes: Any = ("each", "together")
    steps = [workflow.step(compute, number + place, record=modes[place % 2]) for place in range(len(parts) + 1)]
    following = [asyncio.create_task(_follow(step, trace)) for step in steps]
    return await asyncio.gather(*following, *_tasks(parts, trace))


async def _follow(job: Any, trace: Any) -> Any:
    """Make the order of the ends of jobs visible in the history."""
    try:
        value = await job
    except JobError as error:
        value = len(str(error))
    trace.append(value)
    return await act.submit(value)


async def _saga(number: int, parts: Any, trace: Any) -> Any:
    async def undo(place: int) -> None:
        trace.append(f"undo {place}")
        await run_part(parts[place % len(parts)], trace)

    try:
        async with workflow.Saga() as saga:
            for place, part in enumerate(parts):
                await run_part(part, trace)
                undos: list[Any] = [(act, number), (unstable, number), (undo, place), (act.step, place), (child, place)]
                saga.undo(*undos[(number + place) % 5])
            if number % 3:
                await unstable.submit(number)
    except CompensationFailed as error:
        return [type(one).__name__ for one in error.exceptions]


async def _late(number: int, parts: Any, trace: Any) -> Any:
    job: Any = act.options(cancel="wait").submit(number)
    tasks = [*_tasks(parts, trace), asyncio.create_task(_pass(job, trace))]
    async with asyncio.timeout(number / 20):
        return await asyncio.gather(*tasks, job)


async def _pass(job: Any, trace: Any) -> Any:
    trace.append(await job)
    return await act.submit(1)


async def _abandon(number: int, parts: Any, trace: Any) -> Any:
    tasks = _tasks(parts, trace)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(number / 20):
            await act.options(cancel="abandon").submit(number)
    for task in tasks[number % 2 :]:  # others end with the workflow
        await asyncio.wait([task])


async def _map(number: int, parts: Any, trace: Any) -> Any:
    async def one(place: int) -> Any:
        return await run_part(parts[place % len(parts)], trace)

    function: Any = [act, one, unstable, act.options(cancel="wait"), child.submit][number % 5]
    try:
        async with asyncio.timeout(number / 5):
            return await workflow.map(function, range(number % 7), limit=number % 3 + 1)
    except MapFailed as error:
        return list(error.failures)


# ---- other runs ----

_MODES: Any = ("try", "wait", "abandon")
_POLICIES: Any = ("terminate", "cancel", "abandon")


def _child_of(number: int) -> Any:
    """Return a workflow to submit as a child: mostly one with a random cancel mode, some with a name that may be taken."""
    if number % 17 == 0:
        return unregistered
    chosen: Any = child.options(cancel=_MODES[number % 3], child_policy=_POLICIES[number // 3 % 3])
    return chosen.options(id=f"name-{number}") if number // 3 % 3 == 0 else chosen


def _another(number: int) -> workflow.External:
    return workflow.external("nobody" if number % 4 == 0 else f"run-{number % 3}")


async def _child(number: int, _trace: Any) -> Any:
    return await _child_of(number).submit(number)


async def _child_outcome(number: int, _trace: Any) -> Any:
    return (await _child_of(number).submit(number).outcome()).ok


async def _leave(number: int, _trace: Any) -> Any:
    return _child_of(number).submit(number).handle  # nothing waits for it; the run may continue as new before it ends


async def _tell(number: int, _trace: Any) -> Any:
    return await (_another(number).signal("news", number) if number % 3 else _another(number).cancel("enough"))


async def _children(number: int, parts: Any, trace: Any) -> Any:
    jobs = [_child_of(number + place).submit(place) for place in range(len(parts) + 2)]
    following = [asyncio.create_task(_follow(job, trace)) for job in jobs]
    async with asyncio.timeout(number / 10):
        return await asyncio.gather(*following, *jobs, *_tasks(parts, trace), return_exceptions=bool(number % 3))


async def _family(number: int, parts: Any, trace: Any) -> Any:
    jobs: set[Any] = {_child_of(number * 7 + place).submit(place) for place in range(len(parts) + 2)}
    tasks = _tasks(parts[:1], trace)
    done, pending = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    trace += [job.handle for job in done]
    answers = [job.signal("news", number) for job in jobs]  # those that have ended get none
    for job in pending:
        if number % 3:
            job.cancel("not needed")
    trace += [repr(one) for one in await asyncio.gather(*answers, *tasks, return_exceptions=True)]
    return [repr(one) for one in await asyncio.gather(*pending, return_exceptions=True)]


async def _requests(number: int, parts: Any, trace: Any) -> Any:
    other = _another(number)
    sent: list[Any] = [other.signal("news", place) for place, _ in enumerate(parts)]
    sent.append(_another(number + 1).cancel("enough"))
    tasks = _tasks(parts, trace)
    for one in asyncio.as_completed([*sent, *tasks]):
        try:
            trace.append(await one)
        except NotFoundError:
            trace.append("nobody")
    return len(sent)


_RUNNERS: dict[str, Any] = {name: globals()[f"_{name}"] for name in dict.fromkeys(_LEAVES + _NODES)}


async def program(part: list[Any]) -> list[Any]:
    """Run a random program as a workflow; its result is the trace of everything that happened, in order."""
    trace: list[Any] = []
    try:
        await run_part(part, trace)
    except asyncio.CancelledError:
        trace.append("cancelled")
        await asyncio.shield(act.submit(0))
        raise
    if workflow.should_continue() and len(trace) % 2:
        number = len(trace)
        parts = [["receive", number], ["children", number, [["receive", number + 1], ["tell", number]]], ["long", 0]]
        child.submit(number)  # it is open when the run closes
        raise workflow.continue_as_new(["sequence", 0, parts])
    return [repr(one) for one in trace]


CODE = code_of(program)

"""Invariants of a node: at any moment, while nothing is in progress, and when nothing can happen before time passes.

Also what has not ended yet when there are no more faults, for the check that all of it moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainspring.jobs.model import State
from tests.progress import Position, why_waiting

from .actors import Client

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.held import FunctionQueue, Held, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService

    from .actors import Actor
    from .life import Life
    from .wires import Wire


class Sound(Protocol):
    """The part of a node's life that can be checked by itself."""

    service: JobService

    def workers(self) -> list[Worker]: ...


def always(life: Sound) -> None:
    """Check that the counters are right, and that every job in memory is in exactly one place."""
    table, dispatch = life.service.table, life.service.dispatch
    running: dict[bytes, Held] = {}
    for worker in life.workers():
        for handle, held in worker.running.items():
            assert handle not in running, f"{handle!r} runs twice"
            assert held.worker is worker
            assert not held.queued
            running[handle] = held
        assert (worker.woken_for is None) or not worker.asleep
        for queue in worker.abilities:
            assert (worker in queue.sleepers) == worker.asleep
            assert (worker in queue.takers) == (worker.credit > 0), (worker.credit, worker.streams)
            assert worker in queue.workers
    for handle, held in running.items():
        assert table.held.get(handle) is held, f"{handle!r} runs and is not held"
    for handle, held in table.held.items():
        assert held.handle == handle
        assert (held.worker is not None) == (handle in running), f"{handle!r} runs nowhere"
    for key, held in table.foreground.items():
        assert (held.job.function, held.job.unique) == key
        assert table.held.get(held.handle) is held
        assert not held.stored
    for queue in dispatch.queues.values():
        _counters(queue, life, running)
        if not dispatch.holds_back():
            able = queue.startable(queue.woken + 1)
            assert queue.woken >= able or not queue.sleepers, f"{queue.name!r} has jobs and sleepers: stranded"
            patient = (
                0 if queue.prefer is None else len(queue.prefer)
            )  # jobs that wait a moment for the worker with their run
            assert able <= patient or not queue.takers, f"{queue.name!r} has jobs and takers: stranded"
    if dispatch.paused:
        waiting = [held.handle for held in table.held.values() if held.stored and held.worker is None]
        assert not waiting, f"{waiting} wait at a node that assigns no jobs"
    expected = sum(len(held.job.payload) for held in table.held.values() if not held.stored)
    assert table.foreground_bytes == expected


def _counters(queue: FunctionQueue, life: Sound, running: dict[bytes, Held]) -> None:
    held_here = [held for held in life.service.table.held.values() if held.queue is queue]
    ready = [held for ready in queue.ready for held in ready if held.queued]
    waiting = ready if queue.admission is None else queue.queued()
    if queue.prefer is not None:
        waiting = waiting + queue.prefer.jobs()
    assert queue.size == len(waiting), f"size of {queue.name!r}"
    assert len(set(map(id, waiting))) == len(waiting)
    assert all(held in held_here for held in waiting), "a waiting job is not held"
    assert queue.running == sum(held.queue is queue for held in running.values()), f"running of {queue.name!r}"
    woken = [worker for worker in life.workers() if worker.woken_for is queue]
    assert queue.woken == len(woken), f"woken of {queue.name!r}: {queue.woken}, not {len(woken)}"
    assert queue.foreground == sum(not held.stored for held in held_here), f"foreground of {queue.name!r}"
    assert set(queue.workers) <= set(life.workers())
    parts = (*queue.backlog, queue.inflight, queue.leased, queue.away, queue.foreground)
    assert min(parts) >= 0, f"counts of {queue.name!r}: {parts}"
    assert queue.leased >= sum(held.stored for held in held_here), f"leased of {queue.name!r}: {queue.leased}"
    assert queue.total() >= queue.running + sum(queue.waiting_by_priority()), f"total of {queue.name!r}"


def idle(life: Life) -> None:
    """Check that memory and store agree while no operation is in progress."""
    assert life.commits.idle
    service = life.service
    counts = life.store.counts()
    live: dict[bytes, int] = {}
    for (function, state, _), number in counts.items():
        if not State(state).ended:
            live[function] = live.get(function, 0) + number
    unsettled: dict[bytes, int] = {}
    for pending in service.ends.unsettled:
        function = pending.settlement.job.function
        unsettled[function] = unsettled.get(function, 0) + 1
    for name, queue in service.dispatch.queues.items():
        assert queue.inflight == 0, f"inflight of {name!r}"
        assert not queue.claiming, f"{name!r} never stops claiming"
        if not queue.counted:
            assert life.clock.monotonic() - life.store.failed < 0.5, f"{name!r} is not counted"
            continue
        assert queue.live == live.get(name, 0), f"live of {name!r}: {queue.live}, not {live.get(name, 0)}"
        waiting = [counts.get((name, State.PENDING, priority), 0) for priority in range(3)]
        assert queue.backlog == waiting, f"backlog of {name!r}: {queue.backlog}, not {waiting}"
        if queue.is_root:
            continue  # nobody holds root jobs
        leased = sum(counts.get((name, State.LEASED, priority), 0) for priority in range(3))
        stored = sum(held.stored for held in service.table.held.values() if held.queue is queue)
        assert leased == stored + unsettled.get(name, 0), f"{leased} leased of {name!r}, {stored} held"
        assert queue.leased == leased, f"leased of {name!r}: {queue.leased}, not {leased}"
    for (function, unique), held in service.table.foreground.items():
        rival = life.store.find_unique(function, unique)
        assert rival is None, f"{held.handle!r} and {rival} are both live"
    assert not service.uniques.questions
    assert not service.ends.deferred


def rest(life: Life) -> None:
    """Check that no job waits while a worker could run it, when nothing can happen before time passes."""
    if life.store.full or life.clock.monotonic() - life.store.failed < 0.5:
        return  # failed operations are retried after a delay
    silent = [worker for wire in life.wires if wire.peer.silence.since_us for worker in wire.peer.workers]
    for queue in life.service.dispatch.queues.values():
        if sum(queue.backlog) and not all(worker in silent for worker in queue.workers):
            assert queue.size, f"{queue.name!r} has stored jobs, and nothing in memory: stranded"
    assert not any(worker.grabbing for worker in life.workers()), "a request for a job was forgotten"


# ---- without faults ----


def jobs_left(jobs: Iterable[Job], wall: float) -> dict[str, Position]:
    """Return where jobs are that have not ended."""
    found = {}
    for job in jobs:
        state = State(job.state).name.lower()
        why = why_waiting(state, due_in=job.due_us / 1e6 - wall)
        found[f"job {job.id}"] = Position((state, job.attempt, job.term, job.due_us), why)
    return found


def clients_left(actors: Iterable[Actor]) -> dict[str, Position]:
    """Return the clients that wait for something."""
    return {
        actor.name: Position((actor.expected, actor.awaited, actor.results, actor.calls))
        for actor in actors
        if isinstance(actor, Client) and actor.waits
    }


def ends_left(wires: Iterable[Wire]) -> dict[str, Position]:
    """Return the connections that the server keeps although their peers have ended them."""
    return {f"connection {id(wire)}": Position(f"half open, {wire.left}") for wire in wires if wire.half_open}

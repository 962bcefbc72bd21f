"""Matching of a function's jobs to the workers that they prefer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Held, Worker
    from mainspring.jobs.preference import Preference


def match_preferred(
    dispatch: Dispatch, queue: FunctionQueue, prefer: Preference[Held, Worker], now: float
) -> Iterator[tuple[Worker, Held]]:
    """Assign a function's jobs to workers with credit, each to the worker that it prefers.

    While a preferred worker has no credit and another one has, the job waits for it, up to `PREFERRED_WAIT` seconds. Sleeping
    workers of the plain protocol are not woken.
    """
    if dispatch.holds_back():
        return
    for worker in prefer.workers():
        if worker.gone or queue not in worker.abilities:
            for held in reversed(prefer.release(worker)):
                queue.ready_queues()[held.job.priority].appendleft(held)
        while worker.credit > 0 and (waited := prefer.first_for(worker)) is not None:
            dispatch.drop(waited)
            yield _give(dispatch, queue, worker, waited)
    while (taker := _taker(queue)) is not None and (overdue := prefer.overdue(now)) is not None:
        dispatch.drop(overdue)
        yield _give(dispatch, queue, taker, overdue)
    while (taker := _taker(queue)) is not None and (ready := dispatch.pop(queue)) is not None:
        wanted = prefer.of(ready)
        if wanted is None or wanted.gone or queue not in wanted.abilities:
            wanted = taker
        if wanted.credit > 0:
            yield _give(dispatch, queue, wanted, ready)
        elif queue.admission is not None:  # the job has tokens of a limit already, and must not wait with them
            yield _give(dispatch, queue, taker, ready)
        else:
            prefer.wait(ready, wanted, now)
            ready.queued = True
            queue.size += 1


def _taker(queue: FunctionQueue) -> Worker | None:
    """Return the next worker of a function with credit."""
    while queue.takers:
        worker = next(iter(queue.takers))
        if not worker.gone:
            return worker
        del queue.takers[worker]
    return None


def _give(dispatch: Dispatch, queue: FunctionQueue, worker: Worker, held: Held) -> tuple[Worker, Held]:
    """Use one of a worker's places for a job; workers take turns."""
    worker.credit -= 1
    if worker.credit > 0:
        queue.takers.pop(worker, None)
        queue.takers[worker] = None
    else:
        dispatch.withdraw(worker)
    return worker, held

"""Operations of one node, for the tests of several nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.events import Settled
from mainspring.jobs import store as ops
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Store

ANYTHING: Final = ops.InNamespace(DEFAULT)
"""Any function of the default namespace."""


def submit(store: Store, *jobs: Job, waiter: bool = False) -> ops.Submit:
    """Return an operation that stores jobs; with ``waiter``, a client of this node waits for each."""
    return ops.Submit(list(jobs), store.term if waiter else 0)


def submit_waited(store: Store, **values: Any) -> Job:
    """Submit a job that a client of this node waits for."""
    job = store.job(**values)
    assert store.group(submit(store, job, waiter=True)) == [{}]
    return job


def wait(store: Store, *ids: int) -> dict[int, Job]:
    """Record that clients of this node wait for jobs, and return the jobs."""
    (found,) = store.group(ops.Subscribe(store.term, list(ids), room=2**40))
    assert isinstance(found, dict)
    return found


def leave(store: Store, *ids: int) -> set[int]:
    """Record that no client of this node waits for jobs any more; return the dropped ones."""
    (dropped,) = store.group(ops.Unsubscribe(store.term, list(ids)))
    assert isinstance(dropped, set)
    return dropped


def subscribers(store: Store, *ids: int) -> dict[int, list[int]]:
    """Return the nodes of other waiters, by job."""
    (found,) = store.group(ops.FindSubscribers(store.term, list(ids)))
    assert isinstance(found, dict)
    return {job_id: sorted(terms) for job_id, terms in found.items()}


def recover(store: Store, *terms: int, limit: int = 1000) -> ops.Recovered:
    """Recover the jobs of ended terms."""
    (recovered,) = store.group(ops.Recover(store.term, list(terms), limit))
    assert isinstance(recovered, ops.Recovered)
    return recovered


def backlog(store: Store, *functions: bytes) -> ops.Backlog:
    """Return the backlog of some functions, or of all."""
    (found,) = store.group(ops.ReadBacklog(functions or None))
    assert isinstance(found, ops.Backlog)
    return found


def wait_for_settled(store: Store, *ids: int) -> None:
    """Wait until the node was notified that jobs have ended."""
    store.wait_for(
        lambda heard: (
            set(ids) <= {job_id for message in heard if isinstance(message, Settled) for job_id in message.ids}
        )
    )

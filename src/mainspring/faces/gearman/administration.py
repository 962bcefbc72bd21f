"""The administration protocol: one line of text in, text out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mainspring.faces.gearman.calls import COST
from mainspring.faces.gearman.clients import said_unique
from mainspring.jobs.model import FUNCTION_LIMIT, State
from mainspring.queries.jobs import JobFilter, ListJobs
from mainspring.wire.gearman import admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import MainspringError
    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.model import Job
    from mainspring.wire.gearman.admin import Command

LISTED = 10_000
"""Jobs that ``show`` lists of each state."""


def command(peer: Peer, args: list[bytes]) -> None:
    """Answer a line."""
    parsed = admin.parse(args[0])
    if isinstance(parsed, bytes):
        peer.outbox.send(parsed)
    else:
        _COMMANDS[parsed.name](peer, parsed)


def _status(peer: Peer, _: Command) -> None:
    _count(peer, admin.status_line)


def _priority_status(peer: Peer, _: Command) -> None:
    _count(peer, admin.priority_line)


def _count(peer: Peer, line: Callable[[admin.FunctionStatus], bytes]) -> None:
    slot = peer.outbox.reserve(COST)

    def counted() -> None:
        queues = peer.service.dispatch.queues.values()
        peer.outbox.fill(slot, admin.listing(line(_function(peer, queue)) for queue in queues))

    peer.service.counted(counted)


def _function(peer: Peer, queue: FunctionQueue) -> admin.FunctionStatus:
    total, running, workers = queue.total(), queue.running, sum(queue.workers.values())
    if peer.face.elsewhere is not None:
        others = peer.face.elsewhere(queue.name)
        total, workers = total + others.foreground, workers + others.workers
        # What other nodes say may be some seconds old: of the jobs that the store has, no more can run there than it counts.
        running += min(others.running, queue.away + others.foreground)
    return admin.FunctionStatus(queue.name, total, running, workers, *queue.waiting_by_priority())


def _workers(peer: Peer, _: Command) -> None:
    lines = []
    for other in reversed(peer.face.peers):
        worker = other.worker
        functions = [queue.name for queue in reversed(worker.abilities)] if worker is not None else []
        lines.append(
            admin.worker_line(admin.ConnectedPeer(other.descriptor, other.address, other.client_id, functions))
        )
    peer.outbox.send(admin.listing(lines))


def _show_jobs(peer: Peer, _: Command) -> None:
    handle = peer.service.handles.of

    def line(job: Job, stored: bool) -> bytes:
        return admin.job_line(admin.JobLine(handle(job.id), job.attempt, cancelled=False, background=stored))

    _show(peer, line)


def _show_unique_jobs(peer: Peer, _: Command) -> None:
    _show(peer, lambda job, _: admin.unique_line(said_unique(job.unique)))


def _show(peer: Peer, line: Callable[[Job, bool], bytes]) -> None:
    """List the live jobs: those in memory, then those in the store."""
    service = peer.service
    lines = [line(held.job, held.stored) for held in service.window.held.values()]
    slot = peer.outbox.reserve(COST)
    states = [State.PENDING, State.SCHEDULED]

    def more(stored: list[Job]) -> None:
        lines.extend(line(job, True) for job in reversed(stored))
        if states:
            which = JobFilter(state=states.pop(0), limit=LISTED)
            service.commits.put(ListJobs(which, more, failed))
        else:
            peer.outbox.fill(slot, admin.listing(lines))

    def failed(error: MainspringError) -> None:
        peer.outbox.fill(slot, f"ERR STORE {error}\r\n".encode())

    more([])


def _cancel_job(peer: Peer, asked: Command) -> None:
    job_id = peer.service.handles.parse(asked.args[0])
    if job_id is None:
        peer.outbox.send(admin.UNKNOWN_JOB)
        return
    slot = peer.outbox.reserve()

    def done(state: str) -> None:
        known = state in {"cancelled", "running"}
        peer.outbox.fill(slot, admin.OK if known else admin.UNKNOWN_JOB)

    reason = "cancelled by an administrator"
    peer.service.clients.cancel(job_id, reason, done, lambda _: peer.outbox.fill(slot, admin.UNKNOWN_JOB))


def _create_function(peer: Peer, asked: Command) -> None:
    if len(asked.args[0]) > FUNCTION_LIMIT:
        peer.outbox.send(b"ERR ARGUMENT_TOO_LARGE a+function's+name+has+at+most+%d+bytes\r\n" % FUNCTION_LIMIT)
        return
    peer.service.dispatch.queue(asked.args[0])
    peer.outbox.send(admin.OK)


def _drop_function(peer: Peer, asked: Command) -> None:
    """Unlike gearmand, also refuse where jobs are queued: they would never run."""
    queues = peer.service.dispatch.queues
    queue = queues.get(asked.args[0])
    if queue is None:
        peer.outbox.send(admin.FUNCTION_NOT_FOUND)
    elif queue.workers or queue.total():
        peer.outbox.send(admin.FUNCTION_IN_USE)
    else:
        del queues[queue.name]
        peer.outbox.send(admin.OK)


def _maxqueue(peer: Peer, asked: Command) -> None:
    dispatch = peer.service.dispatch
    queue = dispatch.queues.get(asked.args[0])
    if queue is not None:
        queue.maximum = admin.queue_limits(asked.args[1:])
        dispatch.limited = any(any(other.maximum) for other in dispatch.queues.values() if other.maximum)
    peer.outbox.send(admin.OK)


def _getpid(peer: Peer, _: Command) -> None:
    peer.outbox.send(admin.pid_reply(os.getpid()))


def _version(peer: Peer, _: Command) -> None:
    peer.outbox.send(admin.version_reply(peer.face.settings.version))


def _verbose(peer: Peer, _: Command) -> None:
    peer.outbox.send(admin.verbose_reply(peer.face.settings.verbosity))


def _shutdown(peer: Peer, asked: Command) -> None:
    if not (peer.address == "localhost" or peer.address.startswith("127.") or peer.address == "::1"):
        peer.outbox.send(b"ERR REFUSED shutdown+is+taken+from+this+machine+only\r\n")
        return
    peer.outbox.send(admin.OK)
    peer.face.shut_down(asked.args == (b"graceful",))


_COMMANDS: dict[str, Callable[[Peer, Command], None]] = {
    "status": _status,
    "prioritystatus": _priority_status,
    "workers": _workers,
    "show jobs": _show_jobs,
    "show unique jobs": _show_unique_jobs,
    "cancel job": _cancel_job,
    "create function": _create_function,
    "drop function": _drop_function,
    "maxqueue": _maxqueue,
    "getpid": _getpid,
    "version": _version,
    "verbose": _verbose,
    "shutdown": _shutdown,
}

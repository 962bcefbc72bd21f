"""Frozen worker processes: their event loops are blocked, and their watchdogs report them before the processes are replaced.

The report comes on another connection, because nothing can use the worker's own one. It names deliveries of the worker by their
tokens. The node gives back all that the process has: also jobs that it has sent and that the process has not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.access.roles import Permission
from mainspring.clock import to_us
from mainspring.jobs.failures import encode_failure, fitting
from mainspring.jobs.model import DECISIONS
from mainspring.namespaces import split
from mainspring.workflows.model import decisions_of, function_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.access.caller import Caller
    from mainspring.faces.gearman.peers import Connected
    from mainspring.jobs.failures import JobFailure
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService


def give_back(
    service: JobService,
    peers: Iterable[Connected],
    caller: Caller,
    deliveries: Iterable[tuple[str, str]],
    blocking: tuple[str, str] | None,
    error: JobFailure,
) -> int:
    """Give back the jobs of the workers that have some of these deliveries; return how many jobs they had.

    The attempt of ``blocking`` fails with ``error``; if it is a decision, its run is parked, because its code would block the
    next worker, too. The other deliveries do not count. The workers get no work until they send something.

    Raises ForbiddenError if the caller may not run a function of these jobs.
    """
    error = fitting(error)
    tokens = {handle.encode(): token.encode() for handle, token in deliveries}
    frozen = [peer for peer in peers if any(tokens.get(held.handle) == held.token for held in _running(peer))]
    jobs = [(peer, held) for peer in frozen for held in _running(peer)]
    for _, held in jobs:
        caller.check(Permission.DEVELOP, *_function_of(held))
    for peer in frozen:  # before its jobs wait again, so that it does not get them
        peer.silence.begin(to_us(service.wall()))
    for peer, held in reversed(jobs):  # so that each is put before the ones that came after it
        if blocking is None or (held.handle, held.token) != (blocking[0].encode(), blocking[1].encode()):
            service.released(held)
        elif peer.decisions is not None and held.job.function[:1] == DECISIONS:
            peer.decisions.park(held, error.message)
        else:
            service.failed(held, encode_failure(error), exception=f"{error.type}: {error.message}".encode())
    return len(jobs)


def _running(peer: Connected) -> list[Held]:
    return [held for worker in peer.workers for held in worker.running.values()]


def _function_of(held: Held) -> tuple[str, str]:
    """Return the namespace of a job, and the name of its function or workflow."""
    decided = decisions_of(held.job.function)
    if decided is not None:
        return decided[0], decided[1]
    namespace, name = split(held.job.function)
    return namespace, function_text(name)

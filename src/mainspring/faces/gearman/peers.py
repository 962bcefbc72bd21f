"""The peers that are connected to the Gearman ports of a node, and workers among them that are silent or frozen.

A silent worker, which sends nothing, gets no work until it sends again.

| a worker | is silent | its connection is ended |
|---|---|---|
| that has announced heartbeats (`worker.beats`) | after twice the time between two of them | after twelve times that time |
| any other one of the extension | when a job or a decision was lost for its silence | never |
| of plain Gearman, which has no heartbeats | never | never |

Workers of earlier versions announce nothing. The node counts its own checks in place of reading a clock: a node that was stopped
itself must not take all of its workers for silent before it has read what they sent meanwhile.

The event loop of a frozen worker process is blocked, and its watchdog reports it before the process is replaced. The report
comes on another connection, because nothing can use the worker's own one. It names deliveries of the worker by their tokens.
The node gives back all that the process has: also jobs that it has sent and that the process has not read.
"""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.access.caller import Permission
from mainspring.clock import to_us
from mainspring.jobs.model import DECISIONS, encode_failure, fitting
from mainspring.namespaces import split
from mainspring.workflows.model import decisions_of, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.access.caller import Caller
    from mainspring.faces.gearman.peer_io import Reading
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import JobFailure
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import Pace
    from mainspring.wire.gearman_protocol import Connection
    from mainspring.workflows.decider_workers import DeciderRow


class About(NamedTuple):
    """A worker's description of itself."""

    version: str = ""
    """Its version of Mainspring; empty if it has not declared it."""
    stops: bool = False
    """Whether it stops on request."""


SILENT_AFTER: Final = 2.0
"""Heartbeats that a worker leaves out before it is silent."""
GONE_AFTER: Final = 12.0
"""Heartbeats that a worker leaves out before its connection is ended, so that its jobs go to others."""
LONGEST_PASSED: Final = 2.0
"""Seconds that one check counts at most."""


ENDED: Final = "its connection has ended"
IS_SILENT: Final = "it is silent"
CUT: Final = "this node has ended its connection"
"""Why a worker is lost."""


class Silence:
    """The silence of a peer. ``changed`` is called when it begins (True) or another job is lost for it, and when it ends (False).

    Times in microseconds are wall times.
    """

    __slots__ = ("_changed", "_last_read", "_quiet", "_reading", "beats", "since_us")

    def __init__(self, reading: Reading, changed: Callable[[bool], None]) -> None:
        self._reading = reading
        self._changed = changed
        self._last_read = 0.0
        self._quiet = 0.0
        self.beats = 0.0
        """Seconds between the heartbeats that the peer has announced; 0 without an announcement."""
        self.since_us = 0
        """When the silence began; 0 if the peer is not silent."""

    def expect_beats(self, seconds: float) -> None:
        """Check that heartbeats come at these intervals from now on."""
        self.beats = seconds

    def begin(self, now_us: int) -> None:
        """Take the peer for silent until it sends something."""
        self._last_read = self._reading.last_read
        if not self.since_us:
            self.since_us = now_us - int(self._quiet * 1_000_000)
        self._changed(True)

    def end(self) -> None:
        """End the silence: the peer has sent something."""
        self.since_us = 0
        self._changed(False)

    def check(self, passed: float, now_us: int) -> bool:
        """Count ``passed`` seconds since the last check; return whether the connection must be ended."""
        last_read = self._reading.last_read
        if last_read != self._last_read:
            self._last_read = last_read
            self._quiet = 0.0
            return False
        if not self.beats or self._reading.paused_by_server:
            return False
        self._quiet += min(passed, LONGEST_PASSED)
        if not self.since_us and self._quiet >= SILENT_AFTER * self.beats:
            self.begin(now_us)
        return self._quiet >= GONE_AFTER * self.beats


class TaskWorker(Protocol):
    """The part of a peer's worker that lists and operators use; `worker_side.WorkerSide` implements it."""

    number: int
    connected_us: int
    about: About
    draining: bool
    worker: Worker | None

    @property
    def pace(self) -> Pace | None:
        """Return its last report about its heartbeats, if there is one."""

    @property
    def silent_us(self) -> int:
        """Return since when it is silent, as wall time in microseconds; 0 if it is not."""

    def name(self) -> str:
        """Return its name for people."""

    def drain(self, draining: bool) -> None:
        """Give it no more jobs from now on, or give it jobs again."""

    def end(self) -> bool:
        """Ask it to stop once its jobs have ended; return False if it does not take such requests."""


class DecidingWorker(Protocol):
    """The part of a peer's worker for decisions that operators and reports of frozen workers use."""

    def park(self, held: Held, why: str) -> None:
        """Park the run of a decision that the worker has."""

    def usage(self) -> tuple[int, int, int]:
        """Return how many decisions the worker has, how many of them only keep a step, and its places for the others."""

    def row(self) -> DeciderRow:
        """Return the worker with its versions and its last report."""


class Connected(Protocol):
    """The part of a peer that the face and the list of workers use."""

    address: str
    descriptor: int
    client_id: bytes
    namespace: str
    reading: Reading
    silence: Silence
    wire: Connection

    @property
    def worker_side(self) -> TaskWorker:
        """Return its worker for tasks."""

    @property
    def decisions(self) -> DecidingWorker | None:
        """Return its worker for decisions, if it has one."""

    @property
    def workers(self) -> list[Worker]:
        """Return the workers of this peer."""

    def busy(self) -> bool:
        """Return whether the peer waits for an answer or is a worker."""

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""

    def close(self, why: str = ...) -> None:
        """End the connection once the written data is sent."""

    def abort(self, why: str = ...) -> None:
        """End the connection now."""

    def end_overdue(self, now: float) -> bool:
        """Cut the connection if it has been ending for too long, or its other end has gone. Return whether it is ending."""

    def notice_end(self) -> None:
        """Read on to the end of what a worker has sent if it has come: a loop that pauses does not detect it."""


class Peers:
    """The peers of all Gearman ports of a node, in the order of their connection."""

    def __init__(self) -> None:
        self.connected: dict[Connected, None] = {}
        self.total = 0
        """Number of connections since the start."""
        self._paused = False

    def add(self, peer: Connected) -> None:
        """Add a new peer."""
        self.connected[peer] = None
        self.total += 1
        if self._paused:
            peer.reading.pause("store", paused=True)

    def remove(self, peer: Connected) -> None:
        """Remove a disconnected peer."""
        self.connected.pop(peer, None)

    def pause(self, paused: bool) -> None:
        """Pause or resume reading from all current and future peers, because the store cannot keep up."""
        self._paused = paused
        for peer in self.connected:
            peer.reading.pause("store", paused=paused)


class Strangers:
    """The peers that still have to sign in, on ports that need it: they have a deadline, and few places.

    A new one takes the place of the oldest: an honest peer signs in at once, so others cannot keep it out by waiting.
    """

    def __init__(self, most: int, per_address: int, seconds: float) -> None:
        self._most = most
        self._per_address = per_address
        self._seconds = seconds
        self._since: dict[Connected, float] = {}
        """Monotonic times of their connections, oldest first."""
        self._of: dict[bytes, dict[Connected, None]] = {}
        """Those of each address, oldest first."""

    def __len__(self) -> int:
        """Return their number."""
        return len(self._since)

    def add(self, peer: Connected, now: float) -> Connected | None:
        """Add a new peer; return the one that has to end for it, if its address or all addresses have too many."""
        of_address = self._of.setdefault(_origin(peer.address), {})
        of_address[peer] = None
        self._since[peer] = now
        if len(of_address) > self._per_address:
            oldest = next(iter(of_address))
        elif len(self._since) > self._most:
            oldest = next(iter(self._since))
        else:
            return None
        self.remove(oldest)
        return oldest

    def take_oldest(self) -> Connected | None:
        """Remove the oldest one and return it, because another connection needs its place."""
        oldest = next(iter(self._since), None)
        if oldest is not None:
            self.remove(oldest)
        return oldest

    def remove(self, peer: Connected) -> None:
        """Remove a peer that has signed in or ended."""
        if self._since.pop(peer, None) is None:
            return
        origin = _origin(peer.address)
        of_address = self._of[origin]
        del of_address[peer]
        if not of_address:
            del self._of[origin]

    def is_late(self, peer: Connected, now: float) -> bool:
        """Return whether a peer still has to sign in after its deadline."""
        since = self._since.get(peer)
        return since is not None and now - since > self._seconds


def _origin(text: str) -> bytes:
    """Return what one machine cannot choose of its address: all of IPv4's, and the network of IPv6's."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text.encode()
    if isinstance(address, IPv4Address):
        return address.packed
    return address.packed[:8] if address.ipv4_mapped is None else address.ipv4_mapped.packed


def give_back(
    service: JobService,
    peers: Iterable[Connected],
    caller: Caller,
    deliveries: Iterable[tuple[str, str]],
    blocking: tuple[str, str] | None,
    error: JobFailure,
) -> int:
    """Give back the jobs of the workers that have some of these deliveries; return how many jobs they had.

    The attempt of ``blocking`` fails with ``error``. If it is a decision, its run is parked, because its code would block the
    next worker, too. If its work is submitted to another system, the work goes on, and the delivery does not count, as the
    others do not. The workers get no work until they send something.

    Raises ForbiddenError if the caller may not run a function of these jobs.
    """
    error = fitting(error)
    tokens = {handle.encode(): token.encode() for handle, token in deliveries}
    frozen = [peer for peer in peers if any(tokens.get(held.handle) == held.token for held in _running(peer))]
    jobs = [(peer, held) for peer in frozen for held in _running(peer)]
    for _, held in jobs:
        caller.check(Permission.DEVELOP, *_function_of(held))
    for peer in frozen:  # before its jobs wait again, so that it does not get them
        peer.silence.begin(to_us(service.clock.wall()))
    for peer, held in reversed(jobs):  # so that each is put before the ones that came after it
        if blocking is None or (held.handle, held.token) != (blocking[0].encode(), blocking[1].encode()):
            service.settling.released(held)
        elif peer.decisions is not None and held.job.function[:1] == DECISIONS:
            peer.decisions.park(held, error.message)
        elif held.elsewhere is not None and held.elsewhere.is_submitted:
            service.settling.blocked(held, error.message)
        else:
            service.settling.failed(held, encode_failure(error), exception=f"{error.type}: {error.message}".encode())
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

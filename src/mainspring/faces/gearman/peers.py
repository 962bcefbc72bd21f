"""The peers that are connected to the Gearman ports of a node."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainspring.faces.gearman.reading import Reading
    from mainspring.faces.gearman.silence import Silence
    from mainspring.faces.gearman.worker_about import About
    from mainspring.jobs.held import Held, Worker
    from mainspring.wire.gearman.connection import Connection


class TaskWorker(Protocol):
    """The part of a peer's worker that lists and operators use; `worker_side.WorkerSide` implements it."""

    number: int
    connected_us: int
    about: About
    draining: bool
    worker: Worker | None

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

    def close(self) -> None:
        """End the connection once the written data is sent."""

    def abort(self) -> None:
        """End the connection now."""

    def end_overdue(self, now: float) -> bool:
        """Cut the connection if it has been ending for too long, or its other end has gone. Return whether it is ending."""


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

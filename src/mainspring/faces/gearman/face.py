"""What all peers of the Gearman port share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from mainspring.faces.gearman.calls import Calls
from mainspring.faces.gearman.kept_pieces import Kept
from mainspring.ids import TERM_SPAN
from mainspring.log_limit import LogLimit
from mainspring.wire.gearman.connection import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.answers.registry import Api
    from mainspring.faces.gearman.peers import Connected, Peers
    from mainspring.jobs.service import JobService


@dataclass(frozen=True, slots=True)
class GearmanSettings:
    """What the Gearman port does, and its bounds for one peer."""

    max_packet: int = MAX_BODY
    """Bytes of one packet's body."""
    max_value: int = 2**32 - 1
    """Bytes of a payload or result that the store can take: a larger payload is refused, a larger result is a failure."""
    queued_jobs: int = 4096
    """Submits of a peer that wait for the store; above it reading from it pauses, until half of them are stored."""
    queued_bytes: int = 8 * 2**20
    """The same in bytes of what they hold in memory; a single larger submit is taken, and the next one waits."""
    functions: int = 10_000
    """Functions that one worker may register for."""
    unanswered: int = 1024
    """Questions of a peer that wait for the store, a CALL and a list of jobs as 64; above it reading from it pauses likewise. The
    bound in bytes is the one of submits."""
    slice: float = 0.02
    """Seconds that a peer's requests of one read may take at a time; then it is the others' turn."""
    exceptions: bool = False
    """Send WORK_EXCEPTION also to clients that did not ask for it."""
    version: str = "1.1.20"
    """What ``version`` answers."""
    verbosity: str = "ERROR"
    """What ``verbose`` answers: the log's level in gearmand's words."""
    unsent_bytes: int = 8 * 2**20
    """Answers that a peer has not read; above it reading from it pauses, and above 16 times as much it is disconnected."""
    connections: int = 0
    """How many at a time; 0: as many as there may be."""
    idle_timeout: float | None = None
    """Seconds without a byte after which a peer without jobs is disconnected."""
    packet_timeout: float = 60.0
    """Seconds without a byte in the middle of a packet after which a peer is disconnected."""


TOLD_EVERY = 60.0
"""Seconds between two lines of the log about the same trouble."""

log = structlog.get_logger("mainspring.gearman")


class Elsewhere(NamedTuple):
    """The jobs and workers that the other nodes have for a function, as of their last heartbeats."""

    running: int
    workers: int
    foreground: int
    """Jobs that are in a node's memory alone: the store does not count them."""


class GearmanFace:
    """What a node's Gearman ports do, and for whom."""

    def __init__(
        self,
        service: JobService,
        peers: Peers,
        settings: GearmanSettings,
        *,
        api: Api,
        job_calls: JobCalls,
        shut_down: Callable[[bool], None],
        elsewhere: Callable[[bytes], Elsewhere] | None = None,
    ) -> None:
        self.service = service
        self.settings = settings
        self.api = api
        self.calls = Calls(api, job_calls)
        """Answers the CALLs of the extension."""
        self.shut_down = shut_down
        """Ends the node; True: politely."""
        self.peers = peers
        self.elsewhere = elsewhere
        """Where ``status`` counts a fleet: returns the other nodes' part."""
        self.kept = Kept(service.monotonic)
        """Pieces of long answers that several peers ask for."""
        self._crowded = LogLimit(TOLD_EVERY)
        self._created: dict[int, bytes] = {}

    def created(self, job_id: int) -> bytes:
        """Return ``JOB_CREATED`` with ``%d`` for the id, right for all ids of one term: they have the same number of digits.

        The node's term changes where its store is shared, and answers to what was asked under the last one come later.
        """
        term = job_id // TERM_SPAN
        template = self._created.get(term)
        if template is None:
            handle = self.service.handle_of(job_id)
            prefix = handle[: handle.rindex(b":") + 1]
            template = b"\0RES\0\0\0\x08\0\0\0" + bytes([len(handle)]) + prefix.replace(b"%", b"%%") + b"%d"
            self._created[term] = template
        return template

    def arrived(self, peer: Connected) -> bool:
        """Take a new peer; return False where there are too many."""
        self.peers.add(peer)
        limit = self.settings.connections
        if not limit or len(self.peers.connected) <= limit:
            return True
        if self._crowded.left_out(self.service.monotonic()) is not None:
            log.warning(
                "connections are refused",
                connections=self.settings.connections,
                do="raise --max-connections, or the limit of open files (ulimit -n; systemd's LimitNOFILE=)",
            )
        return False

    def left(self, peer: Connected) -> None:
        """Forget a peer that is gone."""
        self.peers.remove(peer)

    def end_silent(self) -> None:
        """Disconnect the peers that have been silent for too long; to be called every second or so."""
        now = self.service.monotonic()
        packet, idle = self.settings.packet_timeout, self.settings.idle_timeout
        for peer in list(self.peers.connected):
            silent = now - peer.reading.heard
            if peer.reading.held_up:
                continue  # it is the server that does not read
            if (peer.wire.buffered and silent > packet) or (idle is not None and silent > idle and not peer.busy()):
                peer.close()

    def close(self) -> None:
        """End all connections once what was written to them is out."""
        for peer in list(self.peers.connected):
            peer.close()

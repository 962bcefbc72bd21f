"""The state that all peers of the Gearman port share.

`KeyedSubmits` answers SUBMIT with a request key: a repeated one joins the job of the first, even if that job has ended or its
answer was lost.

`PieceCache` keeps pieces of long answers for one second: scripts often list the functions, and several at the same time. It
has only pieces from the store: those from memory are built in about a millisecond.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from mainspring.access.idempotency import FindReply, IdempotencyKey, KeptReply, RepeatedError, Reservation
from mainspring.api.request import ApiError, Code, Problem, lacking, problem_of
from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.errors import MainspringError
from mainspring.faces.gearman.calls import Calls
from mainspring.faces.gearman.guard import NO_CREDENTIALS
from mainspring.faces.gearman.peers import IS_SILENT, Strangers
from mainspring.features import Feature
from mainspring.ids import TERM_SPAN
from mainspring.log_limit import LogLimit
from mainspring.wire.gearman_protocol import MAX_BODY, unique_of_payload

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mainspring.access.caller import Caller, Refusals
    from mainspring.access.idempotency import ReplyService
    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.registry import Api
    from mainspring.api.handlers.submitting import SubmitCalls
    from mainspring.api.submitting import JobOptions, Submission
    from mainspring.conflicts.service import ConflictService
    from mainspring.external.service import WorkService
    from mainspring.faces.gearman.guard import Credentials
    from mainspring.faces.gearman.peers import Connected, Peers
    from mainspring.job_logs.service import LogService
    from mainspring.jobs.service import JobService
    from mainspring.streams.service import StreamService
    from mainspring.values.service import ValueService
    from mainspring.workflows.service import WorkflowService


@dataclass(frozen=True, slots=True)
class GearmanSettings:
    """Settings of the Gearman port, and its limits for one peer."""

    max_packet: int = MAX_BODY
    """Bytes of one packet's body."""
    max_value: int = 2**32 - 1
    """Bytes of a payload or result that the store accepts: a larger payload is refused, a larger result fails its job."""
    queued_jobs: int = 4096
    """Submits of a peer that wait for the store. Above it reading from the peer pauses, until half of them are stored."""
    queued_bytes: int = 8 * 2**20
    """The same limit in bytes of memory. A single larger submit is accepted, and the next one waits."""
    functions: int = 10_000
    """Functions that one worker may register for."""
    unanswered: int = 1024
    """Requests of a peer that wait for the store; a CALL and a list of jobs count as 64, a signal as 1. Above it reading from
    the peer pauses, until half of them are answered. Their limit in bytes is the one of submits."""
    slice: float = 0.02
    """Seconds that the requests of one read of a peer may take before other peers are served."""
    exceptions: bool = False
    """Send WORK_EXCEPTION also to clients that did not request it."""
    version: str = "1.1.20"
    """The answer to ``version``."""
    verbosity: str = "ERROR"
    """The answer to ``verbose``: the log's level in gearmand's terms."""
    unsent_bytes: int = 8 * 2**20
    """Bytes of answers that a peer has not read. Above it reading from the peer pauses; above 16 times it the peer is cut off."""
    connections: int = 0
    """Connections at the same time; 0: no limit."""
    idle_timeout: float | None = None
    """Seconds without a byte after which a peer without jobs is disconnected."""
    require_token: bool = False
    """Whether each connection needs a token, a client certificate or a Unix socket."""
    allow_shutdown: bool = False
    """Whether ``shutdown`` is accepted from loopback addresses too, and not only on Unix sockets."""
    sign_in_timeout: float = 10.0
    """Seconds until a peer that needs a token must have sent it."""
    strangers: int = 1024
    """Peers that still have to sign in. A new one takes the place of the oldest."""
    strangers_per_address: int = 64
    """The same limit for the peers of one address: of one IPv4 address, or of one network of IPv6 (/64)."""
    packet_timeout: float = 60.0
    """Seconds without a byte in the middle of a packet after which a peer is disconnected."""


SIGN_IN_BYTES = 4096
"""Bytes of a packet from a peer that still has to sign in."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines about refused connections."""

log = structlog.get_logger("mainspring.gearman")


class RemoteLoad(NamedTuple):
    """The jobs and workers of a function on the other nodes, according to their last heartbeats."""

    running: int
    workers: int
    foreground: int
    """Jobs that are only in a node's memory: the store does not count them."""


class GearmanFace:
    """The state and the services of a node's Gearman ports."""

    def __init__(
        self,
        service: JobService,
        peers: Peers,
        settings: GearmanSettings,
        *,
        api: Api,
        job_calls: JobCalls,
        shut_down: Callable[[bool], None],
        remote_load: Callable[[bytes], RemoteLoad] | None = None,
        workflows: WorkflowService | None = None,
        logs: LogService | None = None,
        works: WorkService | None = None,
        conflicts: ConflictService | None = None,
        values: ValueService | None = None,
        streams: StreamService | None = None,
        access: Credentials | None = None,
        keyed_submits: KeyedSubmits | None = None,
        refusals: Refusals | None = None,
        worker_lost: Callable[[str, str, int, str], object] = lambda *_: None,
    ) -> None:
        """``worker_lost`` is called with the name and the namespace of a worker, the number of its jobs, and why it is lost."""
        self.service = service
        self.worker_lost = worker_lost
        self.access: Credentials = access or NO_CREDENTIALS
        """Finds the callers of tokens."""
        self.keyed_submits = keyed_submits
        """Submits jobs with request keys; None if the node keeps no keys."""
        self.settings = settings
        self.api = api
        self.calls = Calls(api, job_calls, refusals=refusals)
        """Handles the CALLs of the extension."""
        self._workers = 0
        self.shut_down = shut_down
        """Ends the node; True: after its running jobs."""
        self.peers = peers
        self.strangers = Strangers(settings.strangers, settings.strangers_per_address, settings.sign_in_timeout)
        """The peers that still have to sign in."""
        self.workflows = workflows
        """The runs of workflows; None if the node's store keeps none."""
        self.logs = logs
        """The logs of jobs; None if the node's store keeps none."""
        self.works = works
        self.conflicts = conflicts
        """Work in other systems; None if the node's store keeps none."""
        self.values = values
        """The published values of jobs; None if the node's store keeps none."""
        self.streams = streams
        """The streams of jobs; None if the node's store keeps none."""
        self.remote_load = remote_load
        """Returns the other nodes' counts for ``status``; None if the node does not count its fleet."""
        self.piece_cache = PieceCache(service.clock.monotonic)
        """Pieces of long answers that several peers request."""
        self._crowded = LogLimit(LOG_INTERVAL)
        self._refusals: dict[str, LogLimit] = {}
        """By event."""
        self._created: dict[int, bytes] = {}
        self._checked: float | None = None
        """Monotonic time of the last check of silent peers."""

    def next_worker(self) -> int:
        """Return the number of a new worker."""
        self._workers += 1
        return self._workers

    def created(self, job_id: int) -> bytes:
        """Return ``JOB_CREATED`` with ``%d`` for the id. It is right for one term, whose ids have equally many digits.

        On a shared store the node's term may change, and answers to requests of the previous term may come later.
        """
        term = job_id // TERM_SPAN
        template = self._created.get(term)
        if template is None:
            handle = self.service.handles.of(job_id)
            prefix = handle[: handle.rindex(b":") + 1]
            template = b"\0RES\0\0\0\x08\0\0\0" + bytes([len(handle)]) + prefix.replace(b"%", b"%%") + b"%d"
            self._created[term] = template
        return template

    def admit(self, peer: Connected) -> bool:
        """Add a new peer. Return False if there are too many connections, and all others have signed in."""
        self.peers.add(peer)
        limit = self.settings.connections
        if not limit or len(self.peers.connected) <= limit:
            return True
        stranger = self.strangers.take_oldest()
        if stranger is not None and stranger is not peer:
            self._end_stranger(stranger)
            return True
        if self._crowded.left_out(self.service.clock.monotonic()) is not None:
            log.warning(
                "connections are refused",
                connections=self.settings.connections,
                do="raise --max-connections, or the limit of open files (ulimit -n; systemd's LimitNOFILE=)",
            )
        return False

    def add_stranger(self, peer: Connected) -> None:
        """Give a new peer the time to sign in."""
        oldest = self.strangers.add(peer, self.service.clock.monotonic())
        if oldest is not None:
            self._end_stranger(oldest)

    def _end_stranger(self, peer: Connected) -> None:
        self.warn("a connection that did not sign in is ended for a new one", peer.address)
        peer.abort()

    def warn(self, event: str, address: str) -> None:
        """Log that a peer was refused, at most once a minute for each kind of event."""
        left_out = self._refusals.setdefault(event, LogLimit(LOG_INTERVAL)).left_out(self.service.clock.monotonic())
        if left_out is not None:
            log.warning(event, peer=address, left_out=left_out)

    def remove(self, peer: Connected) -> None:
        """Remove a disconnected peer."""
        self.peers.remove(peer)
        self.strangers.remove(peer)

    def end_silent(self) -> None:
        """Find silent workers and ends that no loop detects, and disconnect the peers that are silent or end for too long.

        Call it about every second.
        """
        now = self.service.clock.monotonic()
        passed, self._checked = now - (now if self._checked is None else self._checked), now
        now_us = to_us(self.service.clock.wall())
        packet, idle = self.settings.packet_timeout, self.settings.idle_timeout
        for peer in list(self.peers.connected):
            if peer.end_overdue(now):
                continue
            peer.notice_end()
            if self.strangers.is_late(peer, now) and not peer.reading.paused_by_server:
                self.warn("a connection that did not sign in is ended", peer.address)
                peer.refuse(
                    b"TOKEN_REQUIRED", b"this connection did not sign in within %.0f s" % self.settings.sign_in_timeout
                )
                peer.close()
                continue
            if peer.silence.check(passed, now_us):
                self._log_silence("silent workers are disconnected, and their jobs go to others", peer)
                peer.abort(IS_SILENT)
                continue
            silent = now - peer.reading.last_read
            if peer.reading.paused_by_server:
                continue  # the server itself has paused reading
            if (peer.wire.buffered and silent > packet) or (idle is not None and silent > idle and not peer.busy()):
                peer.close()

    def silent_changed(self, peer: Connected, silent: bool) -> None:
        """Log that a worker is silent, or has sent something again."""
        event = (
            "a worker is silent, and gets no work"
            if silent
            else "a silent worker has sent something, and gets work again"
        )
        self._log_silence(event, peer)

    def _log_silence(self, event: str, peer: Connected) -> None:
        worker = peer.worker_side
        log.warning(
            event, worker=worker.name(), number=worker.number, jobs=sum(len(one.running) for one in peer.workers)
        )

    def close(self) -> None:
        """End all connections once their written data is sent."""
        for peer in list(self.peers.connected):
            peer.close("")


KEY_LIMIT: Final = 255
"""Characters of a request key."""
_PATH: Final = b"SUBMIT"
DEFECT: Final = Problem(
    Code.UNAVAILABLE, "the node could not submit the job because of a defect: its log has the reason"
)


class KeyedSubmits:
    """Submits jobs with request keys. A key belongs to its caller and namespace, and is kept for a day."""

    def __init__(self, submits: SubmitCalls, replies: ReplyService, service: JobService) -> None:
        self._submits = submits
        self._replies = replies
        self._committed = service.commits.committed

    def start(
        self,
        caller: Caller,
        namespace: str,
        key: str,
        args: list[bytes],
        options: JobOptions,
        done: Callable[[str, bool], None],
        failed: Callable[[Problem], None],
    ) -> CallInProgress:
        """Submit the job of a SUBMIT with these arguments.

        ``done`` is called with its handle, and with whether it was submitted before. If the call is ended before, nothing or
        all of it is done.
        """

        def broken(error: Exception) -> None:
            log.error("a submit has failed because of a defect", exc_info=error)
            failed(DEFECT)

        work = self._submit(caller, namespace, key, args, options)
        return CallInProgress(work, lambda answer: done(*answer), lambda error: failed(problem_of(error)), broken)

    async def _submit(
        self, caller: Caller, namespace: str, key: str, args: list[bytes], options: JobOptions
    ) -> tuple[str, bool]:
        if not 0 < len(key) <= KEY_LIMIT:
            raise ApiError(Code.INVALID, f"a request key has 1 to {KEY_LIMIT} characters, and this one has {len(key)}")
        if not self._replies.atomic:
            raise lacking(Feature.REQUEST_KEYS)
        owner = (caller.token or caller.name).encode()
        request = self._replies.key(_digest(owner, _PATH, namespace.encode(), key.encode()), _digest(*args))
        earlier: Reservation | None = await self._committed(
            FindReply(request.key, request.expired_us)
        )  # before the checks: a full queue must not refuse a job that is stored already
        if earlier is None:
            function, unique, _, payload = args
            if unique == b"-" and payload:
                unique = unique_of_payload(payload)
            job = self._submits.job(namespace, function, payload, unique, options, caller)
            try:
                stored = await self._submits.stored(job, IdempotencyKey(request, _reply))
            except RepeatedError as repeated:
                earlier = repeated.earlier
            else:
                return stored.handle or "", bool(stored.joined)
        if earlier.request != request.request:
            raise ApiError(Code.CONFLICT, "this request key was used for another submit: use a new one")
        if earlier.reply is None:
            raise ApiError(Code.CONFLICT, "the submit with this request key is under way: submit again")
        return earlier.reply.body.decode(), True


def _reply(answer: Submission) -> KeptReply:
    return KeptReply(200, {}, (answer.handle or "").encode())


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()


CACHE_SECONDS: Final = 1.0
"""Seconds for which a piece may be sent again: the largest age of the counts in it."""
CACHE_BYTES: Final = 4 * 2**20
"""The largest total size of the cached pieces, in bytes."""

Piece = tuple[bytes, Any]
"""A piece, and the value with which its reader requests the next one."""
BuildPiece = Callable[[Callable[[Piece | MainspringError], None]], None]


class PieceCache:
    """Recently built pieces, and pieces in progress, which are shared by all peers that request them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pieces: OrderedDict[Hashable, tuple[float, Piece]] = OrderedDict()
        self._bytes = 0
        self._building: dict[Hashable, list[Callable[[Piece | MainspringError], None]]] = {}

    def get(self, key: Hashable, build: BuildPiece, then: Callable[[Piece | MainspringError], None]) -> None:
        """Call ``then`` with a piece once it is built."""
        self._evict(0)
        cached = self._pieces.get(key)
        if cached is not None:
            then(cached[1])
        elif key in self._building:
            self._building[key].append(then)
        else:
            self._building[key] = [then]
            build(lambda piece: self._built(key, piece))

    def _built(self, key: Hashable, built: Piece | MainspringError) -> None:
        if not isinstance(built, MainspringError):
            self._evict(len(built[0]))
            self._pieces[key] = (self._monotonic(), built)
            self._bytes += len(built[0])
        for then in self._building.pop(key):
            then(built)

    def _evict(self, size: int) -> None:
        """Remove old pieces, and the oldest ones if a new piece of this size does not fit."""
        now = self._monotonic()
        while self._pieces:
            at, (piece, _) = next(iter(self._pieces.values()))
            if now - at <= CACHE_SECONDS and self._bytes + size <= CACHE_BYTES:
                break
            self._pieces.popitem(last=False)
            self._bytes -= len(piece)

"""The remote end of a connection on the Gearman port: a client, a worker or an administrator."""

from __future__ import annotations

import re
import select
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from mainspring.access.caller import LOCAL, NOBODY
from mainspring.clock import to_us
from mainspring.errors import ConflictError, UsageError
from mainspring.faces.gearman.face import SIGN_IN_BYTES
from mainspring.faces.gearman.guard import Guard
from mainspring.faces.gearman.peer_io import UNREAD, Outbox, Outgoing, Outstanding, Reading
from mainspring.faces.gearman.peers import CUT, ENDED, IS_SILENT, Silence, give_back
from mainspring.faces.gearman.submits import PlainListener, ResultListener, Submits
from mainspring.faces.gearman.worker_side import WorkerSide
from mainspring.jobs.model import DECISIONS
from mainspring.namespaces import DEFAULT, key, key_of_text, name_text
from mainspring.resources.holds import resource_of
from mainspring.resources.rules import NO_TIMES
from mainspring.streams.model import NewItems, Taken, refused_items
from mainspring.wire.gearman_protocol import Connection, Type, response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.callbacks import CallInProgress
    from mainspring.errors import MainspringError
    from mainspring.external.service import WorkService
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.guard import Credentials, Refusals
    from mainspring.faces.gearman.peers import About
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import JobFailure
    from mainspring.nodes.model import Pace
    from mainspring.resources.holds import ResourceSpec
    from mainspring.resources.rules import Times
    from mainspring.wire.gearman_protocol import Message
    from mainspring.workflows.decider_workers import CacheReport, DeciderRow
    from mainspring.workflows.messages import DecideMessage
    from mainspring.workflows.model import Definition

UNREAD_FACTOR = 16
"""A peer that leaves this multiple of ``unsent_bytes`` unread is disconnected."""
_DIGEST: Final = re.compile("[0-9a-f]{64}")
ENDING_LIMIT: Final = 30.0
"""Seconds until the connection of a peer that sends no more is cut, whatever answers are then missing or unread."""


class Side(Protocol):
    """One of a peer's workers, with its messages: a connection may have a worker for tasks, and others."""

    @property
    def worker(self) -> Worker | None:
        """Return the worker; None if the peer has registered none."""

    def withhold(self) -> None:
        """Assign no more jobs, because the peer does not read its data, or is silent."""

    def resume(self) -> None:
        """Assign the withheld jobs, because the peer has read its data, or has sent something."""

    def gone(self) -> None:
        """End the worker: release its jobs, answer its pending requests for jobs, and assign none from now on."""


class Decisions(Side, Protocol):
    """The worker of a peer for decisions of workflows."""

    def register(self, definition: Definition, digest: str) -> None:
        """Assign decisions of a definition from now on."""

    def refill(self) -> None:
        """Let the worker get as many decisions as have ended."""

    def functions(self) -> Sequence[bytes]:
        """Return the functions of its workflows."""

    def pause(self) -> None:
        """Assign no more decisions: the worker drains."""

    def cache_reported(self, report: CacheReport) -> None:
        """Keep a report about the worker's memory."""

    def usage(self) -> tuple[int, int, int]:
        """Return how many decisions the worker has, how many of them only keep a step, and its places for the others."""

    def row(self) -> DeciderRow:
        """Return the worker with its versions and its last report."""

    def steps_kept(self, number: int) -> None:
        """Let the worker have as many more decisions as there are that only keep a step."""

    def decide(self, number: bytes, messages: Sequence[DecideMessage]) -> None:
        """Record the reports of one DECIDE, and answer it."""

    def decides(self, run: int) -> bool:
        """Return whether the worker has a decision of a run, or has the run in its memory after one."""

    def forgotten(self, runs: Sequence[int]) -> None:
        """Forget runs that the worker has dropped from its cache."""

    def park(self, held: Held, why: str) -> None:
        """Park the run of a decision that the worker has."""

    def forget(self) -> None:
        """Prefer the worker for no run, because it is silent."""


class Peer:
    """A client, a worker, both, or an administrator; ``handle`` receives its messages.

    ``namespace`` is that of its port; at a port without one, a peer of the extension may choose its own.
    """

    def __init__(
        self,
        face: GearmanFace,
        handle: Callable[[list[Message]], None],
        caller: Caller = LOCAL,
        namespace: str | None = None,
    ) -> None:
        settings = face.settings
        self.face = face
        self.service = face.service
        self.caller = caller
        """The origin of all its requests: that of its port, or from its sign-in on that of its token."""
        self.wire = Connection("server", max_body=settings.max_packet)
        self.reading = Reading(
            handle,
            self.service.timers,
            self.service.clock,
            self.service.loop_shares.of(caller.holder, namespace or DEFAULT),
        )
        self.silence = Silence(self.reading, self._silent)
        self.address = "-"
        self.is_on_socket_file = False
        """Whether it has connected over a Unix socket."""
        self.descriptor = -1
        self.client_id = b"-"
        self.unanswered = Outstanding(
            settings.unanswered,
            settings.queued_bytes,
            lambda full: self.reading.pause("unanswered", paused=full),
        )
        self.outgoing = Outgoing(settings.unsent_bytes, self._unread)
        self.outbox = Outbox(self.outgoing.write, self.unanswered)
        unread_limit = UNREAD_FACTOR * settings.unsent_bytes
        self.plain = PlainListener(self.outbox, self.outgoing, unread_limit, exceptions=settings.exceptions)
        self.results = ResultListener(self.outbox, self.outgoing, unread_limit)
        self.submits = Submits(face, self.reading, self.outbox, self.unanswered, self.plain, self.results)
        self.worker_side = WorkerSide(face, self.reading, self.outbox, self.name, self.silence)
        """Its worker for tasks."""
        self.sides: list[Side] = [self.worker_side]
        """All of its workers."""
        self.decisions: Decisions | None = None
        """Its worker for decisions, if it has one."""
        self._is_lost = False
        """Whether its workers were reported as lost since the peer sent something last."""
        self.namespace = DEFAULT
        """The namespace of all names in its messages."""
        self.use_caller(caller)
        self.is_bound = namespace is not None
        """Whether its port has a namespace."""
        if namespace is not None:
            self.use_namespace(namespace)
        self.may_change = False
        """Whether the peer has sent anything but lists, so that its lists have to show its own changes."""
        self.end_watch: Callable[[], None] | None = None
        self.searches: list[CallInProgress] = []
        """Calls in progress that end with the connection, and some that have ended."""
        self.guard: Guard | None = None
        """Refuses messages; None for `LOCAL`, which has no limits."""
        self._end_credentials: Callable[[], None] | None = None
        """Ends the watch of its token."""
        self._times: dict[bytes, Times] | None = None
        """The times that its worker declares, by function; None: it declares none, as an earlier version."""
        self.ends_at: float | None = None
        """Monotonic time at which the connection is cut; None until the end of what the peer sends."""

    def use_caller(self, caller: Caller) -> None:
        """Take a caller for the origin of all requests from now on."""
        self.caller = self.submits.caller = self.worker_side.caller = caller
        self._use_share()

    def use_namespace(self, namespace: str) -> None:
        """Take all names in later messages for names of a namespace. Raises MainspringError if the node does not have it."""
        self.service.namespace_gate.enter(namespace)
        self.namespace = namespace
        self.submits.use_namespace(namespace)
        self._use_share()
        self.worker_side.use_namespace(namespace)

    @property
    def asking(self) -> Caller:
        """Return its caller, with the depth of the job whose code makes the requests."""
        depth = self.submits.depth
        return replace(self.caller, depth=depth) if depth else self.caller

    def use_depth(self, depth: int) -> None:
        """Take a depth for that of all later requests. No submit of before is in a batch: see `GearmanProtocol._handle`."""
        self.submits.use_depth(depth)

    def _use_share(self) -> None:
        self.reading.use_share(self.service.loop_shares.of(self.caller.holder, self.namespace))

    @property
    def worker(self) -> Worker | None:
        """Return the worker of this peer for tasks; None if it has none."""
        return self.worker_side.worker

    @property
    def workers(self) -> list[Worker]:
        """Return the workers of this peer."""
        return [side.worker for side in self.sides if side.worker is not None]

    def running(self, handle: bytes) -> Held | None:
        """Return the job that one of this peer's workers runs under a handle."""
        for side in self.sides:
            worker = side.worker
            if worker is not None:
                held = worker.running.get(handle)
                if held is not None:
                    return held
        return None

    @property
    def works(self) -> WorkService | None:
        """Return the work in other systems of its node; None if the store keeps none."""
        return self.face.works

    def now(self) -> float:
        """Return monotonic time."""
        return self.service.clock.monotonic()

    def write_items(
        self,
        batches: Sequence[tuple[bytes, bytes, str, int, int, Sequence[bytes]]],
        done: Callable[[Sequence[Taken]], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """Store items of streams, by the handles and tokens of deliveries of this peer's workers.

        A delivery that has lost its lease writes nothing, nor does that of a decision: its run could have lost it.
        """
        streams = self.face.streams
        assert streams is not None, "the call is refused without them"
        if why := next((why for *_, name, _, _, items in batches if (why := refused_items(name, items))), ""):
            failed(UsageError(why))
            return
        now_us = to_us(self.service.clock.wall())
        found: list[NewItems | None] = []
        for handle, token, name, writer, position, items in batches:
            held = self.running(handle)
            if held is None or held.token != token or not held.stored or held.job.function[:1] == DECISIONS:
                found.append(None)
            else:
                found.append(NewItems(held.job.id, name, held.job.attempt + 1, writer, position, now_us, items))
        new = [one for one in found if one is not None]

        def written(taken: Sequence[Taken]) -> None:
            outcomes = iter(taken)
            done([Taken.LOST if one is None else next(outcomes) for one in found])

        if new:
            streams.append(new, written, failed)
        else:
            written([])

    async def open_completion(
        self, handle: bytes, token: bytes, digest: str, expires: float, heartbeat: float | None
    ) -> Completion:
        """Store a completion token for a job that this peer's workers run. Raises MainspringError."""
        held = self.running(handle)
        if held is None or held.token != token or held.job.function[:1] == DECISIONS:
            raise ConflictError("the delivery of this job is over: another worker may have it")
        if not _DIGEST.fullmatch(digest):
            raise UsageError("the digest of a completion token is its SHA-256: 64 hexadecimal digits")
        return await self.service.completions.open(held, bytes.fromhex(digest), expires, heartbeat)

    def prepare(self, deliveries: Sequence[tuple[str, str]], *, ready: bool) -> None:
        """Let jobs of this peer's workers begin when their executors are ``ready``. Those that it does not run are ignored."""
        for handle, token in deliveries:
            held = self.running(handle.encode())
            if held is not None and held.token == token.encode():
                self.service.assigner.prepares(held, ready=ready)

    def name(self) -> str:
        """Return the client id, or the address of a peer without one."""
        own = self.client_id
        return self.address if own == b"-" else name_text(own)

    def busy(self) -> bool:
        """Return whether the peer waits for an answer or is a worker."""
        return (
            bool(self.outbox)
            or bool(self.workers)
            or self.end_watch is not None
            or self.service.listeners.waits(self.plain, self.results)
        )

    def declare_kept(self, sizes: Mapping[str, int]) -> None:
        """Set the bytes of arguments that the functions of the worker keep after a success; none for others."""
        declared = {key(self.namespace, name.encode()): size for name, size in sizes.items()}
        for queue in self.as_worker().abilities:
            self.service.arguments.declare(queue.name, declared.get(queue.name))
        self.service.results.declare({queue.name: None for queue in self.as_worker().abilities})

    def declare_results(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds for which the functions of the worker keep results; none for others."""
        declared = {key(self.namespace, name.encode()): kept for name, kept in seconds.items()}
        self.service.results.declare({queue.name: declared.get(queue.name) for queue in self.as_worker().abilities})

    def declare_times(self, times: Mapping[str, Times]) -> None:
        """Set the times of the jobs of the functions and workflows that the worker has and will have; none for others."""
        self._times = {key(self.namespace, name.encode()): one for name, one in times.items()}
        functions = [queue.name for queue in self.as_worker().abilities]
        self.apply_times(functions if self.decisions is None else [*functions, *self.decisions.functions()])

    def declare_resources(self, resources: Mapping[str, ResourceSpec]) -> None:
        """Declare resources that the workflows of the worker may hold. Raises UsageError for one that is invalid."""
        self.as_worker()
        found = {key_of_text(self.namespace, name): resource_of(name, spec) for name, spec in resources.items()}
        for name, resource in found.items():
            self.service.resources.declare(name, resource)

    def apply_times(self, functions: Iterable[bytes]) -> None:
        """Declare the times of functions that this peer has registered."""
        if self._times is not None:
            declared = {function: self._times.get(function, NO_TIMES) for function in functions}
            self.service.functions.declare_times(self.as_worker(), declared)

    def receive_texts(self) -> None:
        """Send the texts of progress to this peer."""
        service = self.service

        def text_of(handle: bytes) -> bytes:
            job_id = service.handles.parse(handle)
            return b"" if job_id is None else service.reports.text_of(job_id)

        self.results.use_texts(text_of)

    def gather_answers(self) -> None:
        """Write the answers of the group whose callbacks are being called in one packet of the network."""
        if self.service.commits.answers():
            self.outgoing.gather(self.service.commits.after_answers)

    def as_worker(self) -> Worker:
        """Return this peer's worker for tasks; create it on first use."""
        return self.worker_side.as_worker()

    def describe_worker(self, about: About) -> None:
        """Keep a worker's description of itself."""
        self.worker_side.describe(about)

    def report_pace(self, pace: Pace) -> None:
        """Keep a report about the heartbeats of this peer's worker."""
        self.worker_side.report_pace(pace)

    def expect_beats(self, seconds: float) -> None:
        """Take this peer's worker for silent if its heartbeats do not come."""
        self.as_worker()
        self.silence.expect_beats(seconds)

    def give_back(self, deliveries: list[tuple[str, str]], blocking: tuple[str, str] | None, error: JobFailure) -> int:
        """Give back the jobs of a frozen worker of this peer's namespace, see `frozen.give_back`. Raises ForbiddenError."""
        peers = [other for other in self.face.peers.connected if other.namespace == self.namespace]
        return give_back(self.service, peers, self.caller, deliveries, blocking, error)

    def end_with_connection(self, call: CallInProgress) -> None:
        """End a call when the connection ends, if it is in progress then."""
        self.searches = [one for one in (*self.searches, call) if not one.is_over]

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""
        self.outbox.send(response(Type.ERROR, code, message))

    # ---- the connection ----

    def connected(self, transport: asyncio.Transport) -> None:
        """Use a transport from now on."""
        self.reading.connect(transport)
        self.outgoing.connect(transport)
        name = transport.get_extra_info("peername")
        self.is_on_socket_file = not isinstance(name, tuple)
        self.address = "localhost" if self.is_on_socket_file else name[0]
        sock = transport.get_extra_info("socket")
        self.descriptor = sock.fileno() if sock is not None else -1
        if self.face.settings.require_token and isinstance(name, tuple) and not transport.get_extra_info("peercert"):
            self.use_caller(NOBODY)
            self.wire.limit_bodies(min(SIGN_IN_BYTES, self.face.settings.max_packet))
            self.face.add_stranger(self)
        if self.caller is not LOCAL:
            self.use_caller(replace(self.caller, address=self.address))
            self.guard = Guard(self.caller)

    @property
    def access(self) -> Credentials:
        """The credentials of the node."""
        return self.face.access

    @property
    def refusals(self) -> Refusals:
        """The audit of the node."""
        return self.face.api

    def warn(self, event: str) -> None:
        """Log that the peer was refused, unless the log has such a line of the last minute."""
        self.face.warn(event, self.address)

    def signed_in(self, caller: Caller, end_watch: Callable[[], None]) -> None:
        """Limit the peer to the rights of a token from now on."""
        self.use_caller(caller)
        self._end_credentials = end_watch
        self.guard = Guard(caller)
        self.wire.limit_bodies(self.face.settings.max_packet)
        self.face.strangers.remove(self)

    @property
    def has_signed_in(self) -> bool:
        """Return whether its requests have the rights of a token."""
        return self._end_credentials is not None

    def _unread(self, full: bool) -> None:
        """Stop reading from a peer that does not read its answers, and send it no jobs and outcomes; or resume both."""
        self.reading.pause(UNREAD, paused=full)
        self._hold_back()
        if full:
            return
        self.service.waits.has_room(self.plain)
        self.service.waits.has_room(self.results)

    def _silent(self, silent: bool) -> None:
        """Assign nothing to a silent worker, and prefer it for nothing; or assign to it again."""
        self._hold_back()
        if not silent:
            self._is_lost = False
        elif jobs := self._held():
            self._lose(IS_SILENT, jobs)
        if silent and self.decisions is not None:
            self.decisions.forget()
        self.face.silent_changed(self, silent)

    def _hold_back(self) -> None:
        """Withhold jobs while there is a reason for it."""
        withheld = bool(self.silence.since_us) or self.reading.paused_for(UNREAD)
        for side in self.sides:
            side.withhold() if withheld else side.resume()

    def _finish(self, why: str) -> None:
        """Handle no more messages, and end the workers."""
        self.reading.finish()
        self._end_workers(why)

    def _end_workers(self, why: str) -> None:
        """End the workers: they send no results any more, and could receive jobs and die."""
        if self.ends_at is None:
            self.ends_at = self.service.clock.monotonic() + ENDING_LIMIT
            jobs = self._held()
            sides, self.sides = self.sides, []
            for side in sides:
                side.gone()
            if jobs or (why != CUT and self._was_to_go_on()):
                self._lose(why, jobs)

    def _held(self) -> int:
        """Return the number of jobs that the workers of this peer have."""
        return sum(len(worker.running) for worker in self.workers)

    def _was_to_go_on(self) -> bool:
        """Return whether the workers have not said goodbye. Plain Gearman has no goodbye."""
        worker = self.worker
        streams = (worker is not None and worker.streams) or self.decisions is not None
        return streams and not self.worker_side.has_paused

    def _lose(self, why: str, jobs: int) -> None:
        """Report that this peer's workers are lost, once for each silence."""
        if why and not self._is_lost:
            self._is_lost = True
            self.face.worker_lost(self.name(), self.namespace, jobs, why)

    def sends_no_more(self) -> None:
        """End the workers at once, and the connection once all requests are handled and answered."""
        self._end_workers(ENDED)
        self.reading.when_handled(self.end)

    def end(self) -> None:
        """Handle no more messages, and end the connection once all requests are answered."""
        self._finish(CUT)
        if not self.reading.ended:
            self.unanswered.when_none(self.close)

    def close(self, why: str = CUT) -> None:
        """Handle no more messages, and end the connection once the written data is sent.

        ``why``: why its workers count as lost; empty: they do not.
        """
        self._finish(why)
        self.reading.end()
        self.outgoing.close()

    def abort(self, why: str = CUT) -> None:
        """End the connection now: the peer does not read, or has gone. ``why`` is as for `close`."""
        self._finish(why)
        self.reading.end()
        self.outgoing.abort()

    def end_overdue(self, now: float) -> bool:
        """Cut the connection if it has been ending for too long, or its other end has gone. Return whether it is ending.

        A loop that has read the end of a stream reads no more from it, and therefore does not detect a reset.
        """
        if self.ends_at is None:
            return False
        if now >= self.ends_at or is_reset(self.descriptor):
            self.abort()
        return True

    def notice_end(self) -> None:
        """Read on to the end of what a worker has sent if it has come: a loop that pauses does not detect it.

        A request of the worker may wait for ever, or for the end of a job that it has itself.
        """
        if self.reading.reasons and self.workers and sends_no_more(self.descriptor):
            self.reading.drain()

    def lost(self) -> None:
        """Drop the foreground jobs that only a disconnected peer waited for, and end its workers."""
        self.outbox.divert(self._discard)
        self._finish(ENDED)
        self.reading.end()
        self.outgoing.lost()
        self.submits.lost()
        if self.end_watch is not None:
            self.end_watch()
        if self._end_credentials is not None:
            self._end_credentials()
        for search in self.searches:
            search.end()
        self.service.waits.gone(self.plain)
        self.service.waits.gone(self.results)

    def _discard(self, data: bytes, owner: object = None) -> None:
        """Write nothing, because the peer has disconnected."""


def is_reset(descriptor: int) -> bool:
    """Return whether the other end of a socket is closed for both directions; a half-closed one is not."""
    return _has_event(descriptor, 0)  # errors and hang-ups are reported without being requested


def sends_no_more(descriptor: int) -> bool:
    """Return whether the other end of a socket is closed, or half-closed, whatever was not read yet. Linux reports the latter."""
    return _has_event(descriptor, getattr(select, "POLLRDHUP", 0))


def _has_event(descriptor: int, event: int) -> bool:
    if descriptor < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(0))

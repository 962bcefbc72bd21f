"""CALL: requests of tools over the Gearman port. This module reads requests, passes them to the API, and writes its answers."""

from __future__ import annotations

from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import structlog

from mainspring.access.caller import Permission, Shares
from mainspring.api.jobs import ReadJobLogs, WatchJobs
from mainspring.api.request import ApiError, Code, Problem, Request, problem_of, read, write
from mainspring.callbacks import CallInProgress
from mainspring.errors import ForbiddenError, UsageError
from mainspring.faces.gearman.peers import About
from mainspring.faces.gearman.work_calls import WORK_CALLS
from mainspring.features import Feature
from mainspring.jobs.model import MAX_WAIT, MOST_DEPTH, JobFailure
from mainspring.jobs.user_data import MAX_KEPT_ARGUMENTS
from mainspring.namespaces import DEFAULT
from mainspring.nodes.model import Pace
from mainspring.resources.holds import ResourceSpec  # noqa: TC001 - msgspec reads the annotations
from mainspring.resources.rules import Times
from mainspring.sizes import ENTRIES, Seconds, Text
from mainspring.streams.model import BATCH_ITEMS
from mainspring.wire.gearman_protocol import Type, response
from mainspring.workflows.decider_workers import CacheReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.access.caller import Caller as Identity
    from mainspring.access.caller import Refusals
    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.registry import Api
    from mainspring.errors import MainspringError
    from mainspring.faces.gearman.peer_io import Outbox, Outgoing, Outstanding
    from mainspring.jobs.held import Worker
    from mainspring.streams.model import Taken

CALL_COST = 64
"""The number of unanswered requests that a call counts as, because it may list a thousand jobs. A small request counts as one."""
CALL_ID_LIMIT = 1024
"""Bytes of a call's id. A watch keeps the id as long as the connection lasts, and sends it with each event."""
SLOTS_LIMIT = 1_000_000
MOST_DELIVERIES = 100_000
MOST_BATCHES = 1000
WATCHER_BACKLOG = 2**20
"""Bytes that a watcher may leave unread; above it, events are left out."""
WATCHES = 1000
"""Watches of a node at the same time: each costs time at every change of a job."""
DEFECT = Problem(Code.UNAVAILABLE, "the node could not answer because of a defect: its log has the reason")
_EMPTY_ANSWER: dict[str, object] = {}
_TAKES_VALUES: dict[str, object] = {"values": True, "streams": True}

log = structlog.get_logger("mainspring.api")

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Figure = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Decisions(Protocol):
    """The worker of a peer for decisions."""

    def pause(self) -> None:
        """Assign no more decisions: the worker drains."""

    def cache_reported(self, report: CacheReport) -> None:
        """Keep a report about the worker's memory."""

    def steps_kept(self, number: int) -> None:
        """Let the worker have as many more decisions as there are that only keep a step."""


class Caller(Protocol):
    """The part of a peer that its calls use."""

    unanswered: Outstanding
    outbox: Outbox
    outgoing: Outgoing
    end_watch: Callable[[], None] | None
    """Ends the watch of this connection, if it has one; called when the connection ends."""
    caller: Identity
    """The rights of its requests."""

    def end_with_connection(self, call: CallInProgress) -> None:
        """End a call when the connection ends, if it is in progress then."""

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""

    @property
    def namespace(self) -> str:
        """The namespace of all names in its messages."""

    @property
    def is_bound(self) -> bool:
        """Whether its port has a namespace."""

    @property
    def decisions(self) -> Decisions | None:
        """Its worker for decisions, if it has one."""

    def as_worker(self) -> Worker:
        """Return this peer's worker; create it on first use."""

    def describe_worker(self, about: About) -> None:
        """Keep a worker's description of itself; create the worker on first use."""

    def report_pace(self, pace: Pace) -> None:
        """Keep a report about the heartbeats of this peer's worker; create the worker on first use."""

    def expect_beats(self, seconds: float) -> None:
        """Take this peer's worker for silent if its heartbeats do not come; create the worker on first use."""

    def give_back(self, deliveries: list[tuple[str, str]], blocking: tuple[str, str] | None, error: JobFailure) -> int:
        """Give back the jobs of a frozen worker, see `frozen.give_back`. Raises ForbiddenError."""

    def declare_kept(self, sizes: Mapping[str, int]) -> None:
        """Set the bytes of arguments that the functions of this peer's worker keep after a success; none for others."""

    def declare_times(self, times: Mapping[str, Times]) -> None:
        """Set the times of the jobs of this peer's functions and workflows; none for others."""

    def declare_resources(self, resources: Mapping[str, ResourceSpec]) -> None:
        """Declare resources that the workflows of this peer's worker may hold. Raises UsageError for one that is invalid."""

    def declare_results(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds for which the functions of this peer's worker keep results; none for others."""

    def write_items(
        self,
        batches: Sequence[tuple[bytes, bytes, str, int, int, Sequence[bytes]]],
        done: Callable[[Sequence[Taken]], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """Store items of streams, by the handles and tokens of deliveries of this peer's workers."""

    async def open_completion(
        self, handle: bytes, token: bytes, digest: str, expires: float, heartbeat: float | None
    ) -> Any:
        """Store a token with a SHA-256 for a delivery to this peer's workers; return its row. Raises MainspringError."""

    def prepare(self, deliveries: list[tuple[str, str]], *, ready: bool) -> None:
        """Let jobs of this peer's workers begin when their executors are ``ready``. Those that it does not run are ignored."""

    def receive_texts(self) -> None:
        """Send the texts of progress to this peer."""

    def use_depth(self, depth: int) -> None:
        """Take a depth for that of all later requests."""

    @property
    def asking(self) -> Identity:
        """Its caller, with the depth of the job whose code makes the requests."""

    def gather_answers(self) -> None:
        """Write the answers of one group together."""


class Isolates(Request[None]):
    """Declare that the worker on this connection runs a job in a separate process if the job must run alone."""

    permission = Permission.DEVELOP
    call = "worker.isolates"


class Slots(Request[None]):
    """Declare how many jobs the worker on this connection runs at the same time."""

    permission = Permission.DEVELOP
    call = "worker.slots"
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_LIMIT)]


class Drains(Request[None]):
    """Declare that the worker on this connection takes no more decisions, because it ends."""

    permission = Permission.DEVELOP
    call = "worker.drains"


class Keeps(Request[None]):
    """Declare which arguments of succeeded jobs the functions of the worker on this connection keep."""

    permission = Permission.DEVELOP
    call = "worker.keeps"
    arguments: Annotated[
        dict[Text, Annotated[int, msgspec.Meta(ge=0, le=MAX_KEPT_ARGUMENTS)]], msgspec.Meta(max_length=ENTRIES.most)
    ]
    """Bytes, by function; other functions declare nothing."""


class KeepsResults(Request[None]):
    """Declare how long the functions of the worker on this connection keep the results of succeeded jobs.

    It comes after ``worker.keeps``, which ends what was declared before.
    """

    permission = Permission.DEVELOP
    call = "worker.results"
    results: Annotated[
        dict[Text, Annotated[float, msgspec.Meta(ge=1, le=366 * 86_400)]], msgspec.Meta(max_length=ENTRIES.most)
    ]
    """Seconds, by function; other functions declare nothing."""


class LateTimes(msgspec.Struct, forbid_unknown_fields=True):
    """The times of a function's jobs, in seconds from their due times."""

    start_within: Annotated[float, msgspec.Meta(gt=0, lt=MAX_WAIT)] | None = None
    deadline: Annotated[float, msgspec.Meta(gt=0, lt=MAX_WAIT)] | None = None


class DeclaresTimes(Request[None]):
    """Declare by when the jobs of the functions and workflows of the worker on this connection should begin and end."""

    permission = Permission.DEVELOP
    requires = Feature.DEADLINES
    call = "worker.times"
    times: Annotated[dict[Text, LateTimes], msgspec.Meta(max_length=ENTRIES.most)]
    """By function; other functions have none."""


class DeclaresResources(Request[None]):
    """Declare the resources of the App of the worker on this connection, which its workflows may hold."""

    permission = Permission.DEVELOP
    requires = Feature.LIMITS
    call = "worker.resources"
    resources: Annotated[dict[Text, ResourceSpec], msgspec.Meta(max_length=ENTRIES.most)]
    """By name."""


class OpensCompletion(Request[None]):
    """Store a completion token for a job of the worker on this connection.

    From then on the job does not end when its worker reports a result: another system completes it, with the token.
    """

    permission = Permission.DEVELOP
    requires = Feature.COMPLETIONS
    call = "worker.completion"
    handle: Text
    token: Text
    """The delivery token."""
    digest: Text
    """The SHA-256 of the completion token, which the worker keeps to itself."""
    expires: Seconds
    heartbeat: Seconds | None = None


class WrittenItems(msgspec.Struct):
    """Items that a job of the worker has written to a stream."""

    handle: Text
    token: Text
    """The delivery token."""
    name: Text
    writer: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """A number that the worker has chosen at random for this delivery."""
    position: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The number of the first item among those of the delivery for this stream."""
    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH_ITEMS)]


class WritesStreams(Request[None]):
    """Store items that jobs of the worker on this connection have written to streams.

    The answer has the outcome of each batch: ``stored``, ``full`` or ``lost``. A worker that gets another answer, or none, sends
    the batch again, with later items or without: what is stored already is left out.
    """

    permission = Permission.DEVELOP
    requires = Feature.STREAMS
    call = "worker.streams"
    batches: Annotated[list[WrittenItems], msgspec.Meta(max_length=MOST_BATCHES)]


class Prepares(Request[None]):
    """Report that the worker on this connection prepares executors for jobs, such as processes, or that these are ``ready``.

    The time until then is not running time of the jobs.
    """

    permission = Permission.DEVELOP
    call = "worker.prepares"
    deliveries: Annotated[list[tuple[Text, Text]], msgspec.Meta(max_length=MOST_DELIVERIES)]
    """Handles and delivery tokens of the worker."""
    ready: bool


class TakesLogs(Request[None]):
    """Ask whether the node takes LOG, the lines of jobs, and VALUES. Codes: ``unsupported``."""

    permission = Permission.DEVELOP
    call = "worker.logs"
    requires = ReadJobLogs.requires


class Describe(Request[None]):
    """Describe the worker on this connection."""

    permission = Permission.DEVELOP
    call = "worker.describe"
    version: Annotated[str, msgspec.Meta(max_length=100)] = ""
    stops: bool = False


class SendsBeats(Request[None]):
    """Announce that the worker on this connection sends HEARTBEAT with at most so many seconds in between, also without jobs."""

    permission = Permission.DEVELOP
    call = "worker.beats"
    seconds: Annotated[float, msgspec.Meta(ge=0.05, le=3600)]


class ReportsPace(Request[None]):
    """Report the pace of the heartbeats of the worker on this connection; `nodes.model.Pace` explains the fields.

    While it is ``full``, it gets no jobs of functions that are registered with a heartbeat timeout.
    """

    permission = Permission.DEVELOP
    call = "worker.pace"
    items: Number
    capacity: Number
    pace: Figure
    load: Figure
    lag: Figure
    refused: Number
    throttled: Number
    failed: Number
    full: bool


class Frozen(Request[None]):
    """Report that the event loop of a worker process is blocked. This call comes on another connection than the worker's own.

    Its process is going to end. Its jobs go to others; the attempt of ``blocking`` fails, and the other deliveries do not count.
    """

    permission = Permission.DEVELOP
    call = "worker.frozen"
    deliveries: Annotated[list[tuple[Text, Text]], msgspec.Meta(max_length=MOST_DELIVERIES)]
    """Handles and delivery tokens of the worker: one of each of its connections is enough."""
    error: JobFailure
    blocking: tuple[Text, Text] | None = None
    """The delivery whose code blocks the loop; None: unknown, or its attempt does not count because the worker stops."""


class Texts(Request[None]):
    """Ask for PROGRESS_TEXT, the texts of progress, and whether the node takes them."""

    permission = Permission.SIGNED_IN
    call = "progress.texts"


class StateDepth(Request[None]):
    """Declare that the next requests on this connection are made by code of a job of this depth; see `jobs.model.Options`."""

    permission = Permission.SIGNED_IN
    call = "requests.depth"
    depth: Annotated[int, msgspec.Meta(ge=0, le=MOST_DEPTH)]


class Cache(Request[None]):
    """Report what the worker on this connection has in its memory for runs, and what has happened there since its start."""

    permission = Permission.DEVELOP
    call = "worker.cache"
    runs: Number
    bytes: Number
    limit: Number
    decisions: Number
    hits: Number
    replays: Number
    evictions: Number


class Steps(Request[None]):
    """Report how many decisions of the worker on this connection only keep a step that runs or waits: they take no places."""

    permission = Permission.DEVELOP
    call = "worker.steps"
    decisions: Number


class Calls:
    """Handles the calls of all peers: those of the API, and those about the peer's own connection."""

    def __init__(self, api: Api, jobs: JobCalls, *, refusals: Refusals | None = None) -> None:
        self._api = api
        self._watches = Shares(WATCHES, "watches", refusals)
        self._jobs = jobs
        self._own: dict[type[Request[Any]], Callable[[Caller, bytes, Any], None]] = {
            Isolates: _isolates,
            Slots: _slots,
            Keeps: _keeps,
            KeepsResults: _keeps_results,
            DeclaresTimes: _declares_times,
            DeclaresResources: _declares_resources,
            Drains: _drains,
            Prepares: _prepares,
            OpensCompletion: _opens_completion,
            WritesStreams: _writes_streams,
            Describe: _describe,
            SendsBeats: _sends_beats,
            ReportsPace: _reports_pace,
            Frozen: _frozen,
            Cache: _cache,
            Steps: _steps,
            TakesLogs: self._takes_logs,
            Texts: _texts,
            StateDepth: _state_depth,
            WatchJobs: self._watch,
            **WORK_CALLS,
        }
        self.requests = ChainMap({kind.call: kind for kind in self._own}, api.requests)

    def __call__(self, peer: Caller, call_id: bytes, method: str, params: bytes) -> None:
        """Handle one call."""
        if len(call_id) > CALL_ID_LIMIT:
            message = b"the id of a CALL has at most %d bytes, and this one has %d"
            peer.refuse(b"ARGUMENT_TOO_LARGE", message % (CALL_ID_LIMIT, len(call_id)))
            return
        try:
            request = read(self.requests, method, params)
            _name_namespace(request, peer)
            own = self._own.get(type(request))
            if own is not None:
                self._answer_own(own, peer, call_id, request)
                return
        except (ApiError, ForbiddenError) as error:
            _fault(peer, call_id, problem_of(error))
            return
        cost, size = 1 if request.is_small else CALL_COST, len(params)
        peer.unanswered.add(cost, size)

        def answer(value: object) -> None:
            peer.gather_answers()
            _answer(peer, call_id, value)
            peer.unanswered.remove(cost, size)

        def fault(problem: Problem) -> None:
            _fault(peer, call_id, problem)
            peer.unanswered.remove(cost, size)

        def broken(error: Exception) -> None:
            log.error("a call has failed because of a defect", call=method, exc_info=error)
            fault(DEFECT)

        under_way = self._api.start(request, answer, fault, broken, caller=peer.asking)
        if request.only_reads:
            peer.end_with_connection(under_way)

    def _takes_logs(self, peer: Caller, call_id: bytes, _: TakesLogs) -> None:
        _answer(peer, call_id, _EMPTY_ANSWER if Feature.VALUES in self._api.lacks else _TAKES_VALUES)

    def _answer_own(
        self, own: Callable[[Caller, bytes, Any], None], peer: Caller, call_id: bytes, request: Request[Any]
    ) -> None:
        """Handle a call about the peer's own connection. A refusal is recorded, as by `Api`. Raises MainspringError."""
        try:
            _check(request, peer.caller)
            self._api.check_store(request)
            own(peer, call_id, request)
        except ForbiddenError as error:
            named = request.function if isinstance(request, WatchJobs) else None
            self._api.refused_early(request.call, request.namespace, peer.caller, named or "", str(error))
            raise

    def _watch(self, peer: Caller, call_id: bytes, request: WatchJobs) -> None:
        if peer.end_watch is not None:
            raise ApiError(Code.CONFLICT, "this connection watches already: open another one")

        def has_room() -> bool:
            return peer.outgoing.unread <= WATCHER_BACKLOG

        caller, namespace = peer.caller, request.namespace
        if why := self._watches.take(caller, namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        try:
            end = self._jobs.watch(request, partial(_event, peer, call_id), has_room)
        except BaseException:
            self._watches.free(caller, namespace)
            raise

        def end_watch() -> None:
            end()
            self._watches.free(caller, namespace)

        peer.end_watch = end_watch
        _answer(peer, call_id, _EMPTY_ANSWER)


def _check(request: Request[Any], caller: Identity) -> None:
    """Raise ForbiddenError if a caller may not make a request about its connection."""
    function = request.function if isinstance(request, WatchJobs) else None
    caller.check(request.permission, request.namespace, function)
    if isinstance(request, WatchJobs) and function is None and caller.functions(request.permission, request.namespace):
        raise ForbiddenError(f"{caller.name!r} may watch some functions alone: name one of them")


def _name_namespace(request: Request[Any], peer: Caller) -> None:
    """Set the namespace of a peer in its request. Raises ApiError for another one."""
    if request.namespace in {DEFAULT, peer.namespace}:
        request.namespace = peer.namespace
    elif peer.is_bound or peer.namespace != DEFAULT:
        raise ApiError(
            Code.INVALID, f"this connection is for the namespace {peer.namespace!r}, not for {request.namespace!r}"
        )


def _answer(peer: Caller, call_id: bytes, value: object) -> None:
    peer.outbox.write(response(Type.ANSWER, call_id, write(value)))


def _event(peer: Caller, call_id: bytes, value: object) -> None:
    peer.outbox.write(response(Type.EVENT, call_id, write(value)))


def _fault(peer: Caller, call_id: bytes, problem: Problem) -> None:
    peer.outbox.write(response(Type.FAULT, call_id, problem.code.kind.encode(), problem.message.encode()))


def _isolates(peer: Caller, call_id: bytes, _: Isolates) -> None:
    peer.as_worker().isolates = True
    _answer(peer, call_id, _EMPTY_ANSWER)


def _texts(peer: Caller, call_id: bytes, _: Texts) -> None:
    peer.receive_texts()
    _answer(peer, call_id, _EMPTY_ANSWER)


def _state_depth(peer: Caller, call_id: bytes, request: StateDepth) -> None:
    peer.use_depth(request.depth)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _slots(peer: Caller, call_id: bytes, request: Slots) -> None:
    peer.as_worker().slots = request.slots
    _answer(peer, call_id, _EMPTY_ANSWER)


def _keeps(peer: Caller, call_id: bytes, request: Keeps) -> None:
    peer.declare_kept(request.arguments)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _keeps_results(peer: Caller, call_id: bytes, request: KeepsResults) -> None:
    peer.declare_results(request.results)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _declares_times(peer: Caller, call_id: bytes, request: DeclaresTimes) -> None:
    peer.declare_times({name: Times(one.start_within, one.deadline) for name, one in request.times.items()})
    _answer(peer, call_id, _EMPTY_ANSWER)


def _declares_resources(peer: Caller, call_id: bytes, request: DeclaresResources) -> None:
    try:
        peer.declare_resources(request.resources)
    except UsageError as error:
        _fault(peer, call_id, Problem(Code.INVALID, str(error)))
        return
    _answer(peer, call_id, _EMPTY_ANSWER)


def _describe(peer: Caller, call_id: bytes, request: Describe) -> None:
    peer.describe_worker(About(request.version, request.stops))
    _answer(peer, call_id, _EMPTY_ANSWER)


def _sends_beats(peer: Caller, call_id: bytes, request: SendsBeats) -> None:
    peer.expect_beats(request.seconds)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _reports_pace(peer: Caller, call_id: bytes, request: ReportsPace) -> None:
    peer.report_pace(Pace(*(getattr(request, name) for name in Pace.__struct_fields__)))
    _answer(peer, call_id, _EMPTY_ANSWER)


def _frozen(peer: Caller, call_id: bytes, request: Frozen) -> None:
    jobs = peer.give_back(request.deliveries, request.blocking, request.error)
    _answer(peer, call_id, {"jobs": jobs})


def _cache(peer: Caller, call_id: bytes, request: Cache) -> None:
    if peer.decisions is not None:
        peer.decisions.cache_reported(CacheReport(*(getattr(request, name) for name in CacheReport._fields)))
    _answer(peer, call_id, _EMPTY_ANSWER)


def _steps(peer: Caller, call_id: bytes, request: Steps) -> None:
    if peer.decisions is not None:
        peer.decisions.steps_kept(request.decisions)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _prepares(peer: Caller, call_id: bytes, request: Prepares) -> None:
    peer.prepare(request.deliveries, ready=request.ready)
    _answer(peer, call_id, _EMPTY_ANSWER)


def _opens_completion(peer: Caller, call_id: bytes, request: OpensCompletion) -> None:
    peer.unanswered.add(1, 0)

    def opened(completion: Any) -> None:
        _answer(peer, call_id, {"number": completion.number})
        peer.unanswered.remove(1, 0)

    def failed(error: MainspringError) -> None:
        _fault(peer, call_id, problem_of(error))
        peer.unanswered.remove(1, 0)

    CallInProgress(
        peer.open_completion(
            request.handle.encode(),
            request.token.encode(),
            request.digest,
            request.expires,
            request.heartbeat,
        ),
        opened,
        failed,
    )


def _writes_streams(peer: Caller, call_id: bytes, request: WritesStreams) -> None:
    batches = [
        (
            one.handle.encode(),
            one.token.encode(),
            one.name,
            one.writer,
            one.position,
            [bytes(item) for item in one.items],
        )
        for one in request.batches
    ]
    size = sum(len(item) for one in batches for item in one[-1])
    peer.unanswered.add(1, size)

    def written(taken: Sequence[Taken]) -> None:
        _answer(peer, call_id, {"taken": [one.name.lower() for one in taken]})
        peer.unanswered.remove(1, size)

    def failed(error: MainspringError) -> None:
        _fault(peer, call_id, problem_of(error))
        peer.unanswered.remove(1, size)

    peer.write_items(batches, written, failed)


def _drains(peer: Caller, call_id: bytes, _: Drains) -> None:
    if peer.decisions is not None:
        peer.decisions.pause()
    _answer(peer, call_id, _EMPTY_ANSWER)

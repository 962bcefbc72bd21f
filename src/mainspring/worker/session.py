"""The worker's side of the protocol extension, without input and output: running jobs and unacknowledged settlements.

A shell owns the connection, as with ``mainspring.client.session``. A settlement is kept until the server acknowledges that it
is on disk, and sent again on the next connection. Jobs that run when a connection ends are lost: the server assigns them to
other workers, and would refuse their settlements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from mainspring.client.outcomes import call_error, no_extension_error
from mainspring.client.session import extension_request, namespace_error, namespace_request
from mainspring.errors import ServerError
from mainspring.namespaces import DEFAULT
from mainspring.version import version
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import FATAL, Connection, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mainspring.errors import MainspringError
    from mainspring.resources.holds import ResourceSpec
    from mainspring.resources.rules import Times
    from mainspring.worker.current import TokenRequest
    from mainspring.worker.execution import Settlement

MAX_BODY: Final = (1 << 32) - 1
"""A worker accepts jobs of any size; servers have limits of their own."""
_ASSIGN: Final = int(Type.ASSIGN)
_SETTLED: Final = int(Type.SETTLED)
_SETTLE: Final = int(Type.SETTLE)
_CALLED: Final = (Type.ANSWER, Type.FAULT)
_FIRST_OF_WORKFLOWS: Final = int(Type.HISTORY)
"""This packet type and the following ones are about runs of workflows. The session does not interpret them."""
DECISIONS: Final = b"\x1f"
"""The functions of decisions begin with this byte. Their jobs have a credit of their own, which REGISTER declares."""
_SLOTS_CALL: Final = b"slots"
"""The id of the call with the number of jobs that the worker runs at a time; other calls have handles as their ids."""
_DRAINS_CALL: Final = b"drains"
"""The id of the call by which a worker declares that it takes no more decisions."""
_CACHE_CALL: Final = b"cache"
"""The id of the calls by which a worker reports about its memory for runs."""
_PACE_CALL: Final = b"pace"
"""The id of the calls by which a worker reports the pace of its heartbeats."""
_STEPS_CALL: Final = b"steps"
"""The id of the calls by which a worker reports how many of its decisions only keep a step."""
_PREPARES_CALL: Final = b"prepares"
"""The id of the calls by which a worker reports that it prepares the executor of a job."""
_LOGS_CALL: Final = b"logs"
"""The id of the call by which a worker asks whether the server takes lines of jobs."""
_TEXTS_CALL: Final = b"texts"
"""The id of the call by which a worker asks whether the server takes the texts of progress."""
_DESCRIBE_CALL: Final = b"describe"
"""The id of the call by which a worker describes itself."""
_BEATS_CALL: Final = b"beats"
"""The id of the call by which a worker announces its heartbeats."""
_ISOLATES_CALL: Final = b"isolates"
"""The id of the call by which a worker declares that it can run a job in a process of its own."""
_KEEPS_CALL: Final = b"keeps"
"""The id of the call by which a worker declares which arguments its functions keep."""
_TIMES_CALL: Final = b"times"
"""The id of the call by which a worker declares within which times jobs of its functions should begin and end."""

_RESOURCES_CALL: Final = b"resources"
"""The id of the call by which a worker declares the resources that its workflows may hold."""
_OTHER_CALLS: Final = b"call:"
"""The beginning of the ids of calls whose answers the caller gets."""

_STREAMS_CALL: Final = b"streams "
"""The ids of calls with items of streams begin so."""
_COMPLETION_CALL: Final = b"completion "
"""The ids of calls by which jobs ask for completion tokens begin so."""

_NO_METHOD: Final = b"there is no method"
"""The beginning of the answer of an earlier version to a call that it does not know."""

_CALLS_WITHOUT_ANSWERS: Final = frozenset(
    {_SLOTS_CALL, _ISOLATES_CALL, _DRAINS_CALL, _CACHE_CALL, _DESCRIBE_CALL, _BEATS_CALL, _STEPS_CALL, _KEEPS_CALL}
    | {_PREPARES_CALL, _PACE_CALL}
)

Key: TypeAlias = tuple[bytes, bytes]
"""The handle and the delivery token, which identify one delivery."""


class Assigned(NamedTuple):
    """An assigned job."""

    handle: bytes
    token: bytes
    function: bytes
    unique: bytes
    info: bytes
    payload: bytes


class Stop(NamedTuple):
    """A request to stop a job: ``cancelled``, ``timeout`` or ``lost``."""

    key: Key
    reason: str

    @property
    def is_for_worker(self) -> bool:
        """Whether the whole worker shall stop, once its jobs have ended."""
        return not self.key[0]


class Refused(NamedTuple):
    """An error that the server answers to a request."""

    code: str
    message: str


class Unserved(NamedTuple):
    """A function that this server's store cannot serve, now or later: a workflow, or one with limits."""

    function: bytes
    message: str


class Shown(NamedTuple):
    """The server's answer to ``show``; function and state are empty if it does not have the job."""

    handle: str
    function: str = ""
    state: str = ""


class Called(NamedTuple):
    """The answer to a `WorkerSession.call`; None: it failed."""

    id: bytes
    answer: bytes | None
    error: str = ""


class Extended(NamedTuple):
    """A packet about runs of workflows, from ``Type.HISTORY`` on."""

    kind: int
    args: list[bytes]


Event: TypeAlias = Assigned | Stop | Refused | Unserved | Shown | Called | Extended


class _Beaten(msgspec.Struct):
    stop: list[tuple[str, str]] = []
    lost: list[tuple[str, str]] = []


class _Job(msgspec.Struct):
    function: str = ""
    state: str = ""


_decode_job = msgspec.json.Decoder(_Job).decode
_decode_beaten = msgspec.json.Decoder(_Beaten).decode


class WorkerSession:
    """The protocol state between one worker and one server.

    ``functions`` are names with options of REGISTER. ``slots`` is the number of jobs that the worker runs at a time; None: the
    server uses the worker's credit. ``isolates``: on request, it runs a job in a process of its own.
    ``stops``: it stops on request. ``beats``: the most seconds between its heartbeats; None: it announces none. ``keeps`` has the
    bytes of arguments that its functions keep, by function; ``keeps_results`` the seconds for which they keep results, and
    ``times`` those within which jobs of its functions and workflows should begin and end. ``resources`` has those that its
    workflows may hold.
    ``ended`` is called with each delivery of ``paced`` that has ended for the worker.
    """

    def __init__(
        self,
        functions: Sequence[tuple[bytes, bytes]],
        name: str,
        slots: int | None = None,
        *,
        isolates: bool = False,
        stops: bool = False,
        beats: float | None = None,
        keeps: Mapping[str, int] | None = None,
        keeps_results: Mapping[str, float] | None = None,
        times: Mapping[str, Times] | None = None,
        resources: Mapping[str, ResourceSpec] | None = None,
        token: str | None = None,
        namespace: str = DEFAULT,
        ended: Callable[[Key], None] = lambda _: None,
    ) -> None:
        self._ended = ended
        self._stops = stops
        self._beats = beats
        self._token = token
        self._namespace = namespace
        self._has_named = False
        """Whether the namespace was sent on the connection."""
        self._functions = list(functions)
        self._name = name.encode()
        self._slots = slots
        self._isolates = isolates
        self._keeps = keeps
        self._keeps_results = keeps_results
        self._times = times
        self._resources = resources
        self._workflows: set[bytes] = set()
        """The names in REGISTER packets of the decider."""
        self._connection: Connection | None = None
        self._output: list[bytes] = []
        self._unsettled: dict[Key, bytes] = {}
        self.agreed = False
        self.registered = False
        """Whether the server has answered the registrations of this connection: each refusal came before."""
        self.takes_logs = False
        """Whether the server takes lines of jobs: older ones do not, nor do those with a store that cannot keep them."""
        self.takes_values = False
        self.takes_streams = False
        """Whether it takes items of streams."""
        """Whether it takes VALUES."""
        self._takes_texts = False
        """Whether the server takes PROGRESS_TEXT."""
        self._pauses = 0
        self._ready_since_pause = 0
        self._calls = 0
        self.credit = 0
        self.running: set[Key] = set()
        self.paced: set[Key] = set()
        """The running deliveries with heartbeats of their own."""
        self.unanswered = 0
        """HEARTBEAT packets without an answer."""
        self.answers = 0
        """The number of answers to them."""
        self._asked: dict[bytes, Callable[[MainspringError | None], None]] = {}
        """The requests for completion tokens that were not answered, by the ids of their calls."""
        self._writing: dict[bytes, Callable[[list[str] | MainspringError], None]] = {}
        """The same for items of streams."""
        self._number = 0
        """The number of such requests."""
        self._pace = b""
        """The last report about the pace on this connection."""

    # Called by the worker.

    @property
    def functions(self) -> int:
        """The number of functions that it has registered at this server."""
        return len(self._functions)

    def register(self, function: bytes, options: bytes) -> None:
        """Register a function; do nothing if it is registered."""
        if all(name != function for name, _ in self._functions):
            self._functions.append((function, options))
            if self.agreed:
                self._output.append(gearman_protocol.request(Type.REGISTER, function, options))
                self._declare()

    def _declare(self) -> None:
        """Declare which arguments the registered functions keep, how long their results, and when their jobs are late."""
        if self._keeps is not None:
            kept = msgspec.json.encode({"arguments": self._keeps})
            self._output.append(gearman_protocol.request(Type.CALL, _KEEPS_CALL, b"worker.keeps", kept))
        if self._keeps_results:  # without it, the call before has ended what earlier workers have declared
            kept = msgspec.json.encode({"results": self._keeps_results})
            self._output.append(gearman_protocol.request(Type.CALL, _KEEPS_CALL, b"worker.results", kept))
        if self._times is not None:  # also without any: the server forgets those of earlier code
            times = msgspec.json.encode({"times": self._times})
            self._output.append(gearman_protocol.request(Type.CALL, _TIMES_CALL, b"worker.times", times))
        if self._resources:
            given = msgspec.json.encode({"resources": self._resources})
            self._output.append(gearman_protocol.request(Type.CALL, _RESOURCES_CALL, b"worker.resources", given))

    def show(self, handle: str) -> None:
        """Query a job; the answer is a ``Shown``."""
        name = handle.encode()
        self._output.append(
            gearman_protocol.request(Type.CALL, name, b"jobs.show", msgspec.json.encode({"handle": handle}))
        )

    def ready(self, count: int) -> None:
        """Request ``count`` more jobs."""
        self.credit += count
        self._ready_since_pause += count
        self._output.append(gearman_protocol.request(Type.READY, b"%d" % count))

    def settle(self, key: Key, settlement: Settlement) -> None:
        """Settle a delivery; do nothing if it is lost."""
        if key not in self.running:
            return
        self.running.remove(key)
        if self.paced:  # most workers have none
            self._unpace(key)
        frame = gearman_protocol.request(_SETTLE, *key, *settlement)
        self._unsettled[key] = frame
        self._output.append(frame)

    def drop(self, key: Key) -> None:
        """Drop a delivery that is already over."""
        self.running.discard(key)
        self._unpace(key)

    def _unpace(self, key: Key) -> None:
        if key in self.paced:
            self.paced.remove(key)
            self._ended(key)

    def progress(self, key: Key, done: int, total: int, text: str = "") -> None:
        """Send a job's progress; without the text to a server of an earlier version."""
        if key in self.running:
            if self._takes_texts:
                self._output.append(gearman_protocol.request(Type.PROGRESS_TEXT, key[0], text.encode()))
            self._output.append(gearman_protocol.request(Type.WORK_STATUS, key[0], b"%d" % done, b"%d" % total))

    def send_data(self, key: Key, data: bytes, *, warning: bool) -> None:
        """Send data or a warning to clients that wait for a job."""
        if key in self.running:
            self._output.append(
                gearman_protocol.request(Type.WORK_WARNING if warning else Type.WORK_DATA, key[0], data)
            )

    def open_completion(self, key: Key, request: TokenRequest, done: Callable[[MainspringError | None], None]) -> None:
        """Ask for the completion token of a delivery; ``done`` is called with the error, or None once it is stored."""
        if not self.agreed or key not in self.running:
            done(ServerError("the delivery of this job is over, or its connection has ended"))
            return
        self._number += 1
        call_id = b"%b%d" % (_COMPLETION_CALL, self._number)
        self._asked[call_id] = done
        handle, token = key
        params = {"handle": handle.decode(), "token": token.decode(), **request._asdict()}
        self._output.append(
            gearman_protocol.request(Type.CALL, call_id, b"worker.completion", msgspec.json.encode(params))
        )

    def _opened(self, kind: int, args: list[bytes]) -> None:
        """Process the answer to a request for a token."""
        done = self._asked.pop(args[0], None)
        if done is None:
            return
        if kind == Type.ANSWER:
            done(None)
        elif args[2].startswith(_NO_METHOD):
            done(ServerError("the server is of an earlier version, which has no completion tokens"))
        else:
            done(call_error(args[1].decode(), args[2].decode("utf-8", "replace")))

    def write_items(
        self, batches: Sequence[Mapping[str, object]], done: Callable[[list[str] | MainspringError], None]
    ) -> None:
        """Send items of streams; ``done`` is called with the outcomes of the batches, or with the error."""
        if not self.agreed:
            done(ServerError("the connection of this job has ended"))
            return
        self._number += 1
        call_id = b"%b%d" % (_STREAMS_CALL, self._number)
        self._writing[call_id] = done
        params = msgspec.json.encode({"batches": batches})
        self._output.append(gearman_protocol.request(Type.CALL, call_id, b"worker.streams", params))

    def _written(self, kind: int, args: list[bytes]) -> None:
        """Process the answer about items of streams."""
        done = self._writing.pop(args[0], None)
        if done is None:
            return
        if kind == Type.ANSWER:
            done(msgspec.json.decode(args[1])["taken"])
        else:
            done(call_error(args[1].decode(), args[2].decode("utf-8", "replace")))

    def send_logs(self, lines: bytes) -> None:
        """Send lines of jobs, encoded."""
        if self.agreed:
            self._output.append(gearman_protocol.request(Type.LOG, lines))

    def send_values(self, values: bytes) -> None:
        """Send published values of jobs, encoded."""
        if self.agreed:
            self._output.append(gearman_protocol.request(Type.VALUES, values))

    def send(self, kind: int, *args: bytes) -> bool:
        """Send a packet about runs of workflows; return False if there is no connection for it."""
        if kind == Type.REGISTER:
            self._workflows.add(args[0])
        if self.agreed:
            self._output.append(gearman_protocol.request(kind, *args))
        return self.agreed

    def drain(self) -> None:
        """Take no more decisions."""
        if self.agreed:
            self._output.append(gearman_protocol.request(Type.CALL, _DRAINS_CALL, b"worker.drains", b"{}"))

    def report_cache(self, numbers: bytes) -> None:
        """Send what is in the worker's memory for runs, as JSON."""
        if self.agreed:
            self._output.append(gearman_protocol.request(Type.CALL, _CACHE_CALL, b"worker.cache", numbers))

    def keep_steps(self, number: int) -> None:
        """Report how many decisions only keep a step, so that the server assigns as many others."""
        if self.agreed:
            self._output.append(
                gearman_protocol.request(Type.CALL, _STEPS_CALL, b"worker.steps", b'{"decisions":%d}' % number)
            )

    def prepares(self, key: Key, *, ready: bool) -> None:
        """Report that a job waits until its executor is ready, or that this is ``ready``: the job begins now."""
        if self.agreed and key in self.running:
            params = {"deliveries": [[part.decode() for part in key]], "ready": ready}
            self._output.append(
                gearman_protocol.request(Type.CALL, _PREPARES_CALL, b"worker.prepares", msgspec.json.encode(params))
            )

    def report_pace(self, numbers: bytes) -> None:
        """Send the figures of the worker's heartbeats, as JSON, unless the server has them."""
        if self.agreed and numbers != self._pace:
            self._pace = numbers
            self._output.append(gearman_protocol.request(Type.CALL, _PACE_CALL, b"worker.pace", numbers))

    def call(self, method: bytes, params: bytes) -> bytes:
        """Make a call, and return its id; the answer is a ``Called``. If the connection ends before, there is none."""
        self._calls += 1
        call_id = b"%b%d" % (_OTHER_CALLS, self._calls)
        self._output.append(gearman_protocol.request(Type.CALL, call_id, method, params))
        return call_id

    def heartbeat(self, keys: Collection[Key] | None = None) -> None:
        """Send a heartbeat for the worker and some deliveries: by default all without heartbeats of their own."""
        if self.agreed:
            named = self.running - self.paced if keys is None else keys
            jobs = [[handle.decode(), token.decode()] for handle, token in named]
            self._output.append(gearman_protocol.request(Type.HEARTBEAT, msgspec.json.encode({"jobs": jobs})))
            self.unanswered += 1

    def pause(self) -> None:
        """Withdraw the requests for jobs that have not arrived; ``pausing`` until the server confirms it."""
        if self.agreed:
            self._pauses += 1
            self._ready_since_pause = 0
            self._output.append(gearman_protocol.request(Type.PAUSE))

    @property
    def pausing(self) -> bool:
        """Whether jobs that were requested before a pause may still arrive."""
        return self._pauses > 0

    @property
    def unsettled(self) -> int:
        """The number of settlements that the server has not acknowledged."""
        return len(self._unsettled)

    # Called by the shell.

    def connected(self) -> None:
        """Begin on a new connection."""
        self._connection = Connection("client", max_body=MAX_BODY)
        self._has_named = self._namespace == DEFAULT
        self._output = [extension_request(self._token)]
        self.agreed = self.registered = self._takes_texts = False
        self.takes_logs = self.takes_values = self.takes_streams = False
        self._pauses = 0
        self.credit = 0
        self.unanswered = 0
        self._pace = b""

    def disconnected(self) -> set[Key]:
        """Drop the connection; return the deliveries that are lost with it."""
        lost, self.running = self.running, set()
        paced, self.paced = self.paced, set()
        for key in paced:
            self._ended(key)
        writing, self._writing = self._writing, {}
        for written in writing.values():
            written(ServerError("the connection to the server has ended, and the delivery of this job with it"))
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done(ServerError("the connection to the server has ended, and the delivery of this job with it"))
        self._connection = None
        self._output = []
        self.agreed = self.registered = False
        self._pauses = 0
        self.credit = 0
        return lost

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return bytes."""
        return bool(self._output)

    def take_output(self) -> bytes:
        """Return the bytes to write now, and clear them."""
        output, self._output = self._output, []
        return b"".join(output)

    def receive(self, data: bytes) -> list[Event]:
        """Process received bytes and return the events.  Raises ServerError if the server does not support the extension."""
        events: list[Event] = []
        connection = self._connection
        if connection is None:
            return events
        for kind, args in connection.receive(data):
            if kind == _ASSIGN:
                if args[2][:1] != DECISIONS:
                    self.credit -= 1
                self.running.add((args[0], args[1]))
                events.append(Assigned._make(args))
            elif kind == _SETTLED:
                self._unsettled.pop((args[0], args[1]), None)
            elif kind == Type.STOP:
                events.append(Stop((args[0], args[1]), args[2].decode()))
            elif kind == Type.BEATEN:
                self.unanswered = max(self.unanswered - 1, 0)
                self.answers += 1
                events += self._beaten(args[0])
            elif kind in _CALLED and args[0].startswith(_COMPLETION_CALL):
                self._opened(kind, args)
            elif kind in _CALLED and args[0].startswith(_STREAMS_CALL):
                self._written(kind, args)
            elif kind in _CALLED and args[0] == _LOGS_CALL:
                self.takes_logs = kind == Type.ANSWER
                self.takes_values = self.takes_logs and b'"values":true' in args[1]
                self.takes_streams = self.takes_logs and b'"streams":true' in args[1]
            elif kind in _CALLED and args[0] == _TEXTS_CALL:
                self._takes_texts = kind == Type.ANSWER
                self.registered = True  # servers answer in order, and this call follows the registrations
            elif kind in _CALLED and args[0] == _TIMES_CALL:
                if kind == Type.FAULT and self._times and not args[2].startswith(_NO_METHOD):
                    message = f"{', '.join(self._times)}: {args[2].decode('utf-8', 'replace')}"
                    events.append(Refused("UNSUPPORTED", message))
            elif kind in _CALLED and args[0] == _RESOURCES_CALL:
                if kind == Type.FAULT and not args[2].startswith(_NO_METHOD):
                    message = f"{', '.join(self._resources or ())}: {args[2].decode('utf-8', 'replace')}"
                    events.append(Refused("UNSUPPORTED", message))
            elif kind in _CALLED and args[0] in _CALLS_WITHOUT_ANSWERS:
                pass  # older servers answer these calls with a fault
            elif kind in _CALLED and args[0].startswith(_OTHER_CALLS):
                answered = kind == Type.ANSWER
                error = "" if answered else args[2].decode("utf-8", "replace")
                events.append(Called(args[0], args[1] if answered else None, error))
            elif kind == Type.ANSWER:
                job = _decode_job(args[1])
                events.append(Shown(args[0].decode(), job.function, job.state))
            elif kind == Type.FAULT:
                events.append(Shown(args[0].decode()))
            elif kind == Type.PAUSED:
                self._pauses -= 1
                if not self._pauses:
                    self.credit = self._ready_since_pause
            elif kind == Type.OPTION_RES:
                self._agree(connection)
            elif kind == Type.ERROR:
                code, message = (part.decode("utf-8", "replace") for part in args)
                if not self.agreed:
                    if connection.extended:
                        raise namespace_error(code, message, self._namespace)
                    raise no_extension_error(code, message)
                unserved = self._unserved(args[1]) if code == "UNSUPPORTED" else None
                events.append(Refused(code, message) if unserved is None else Unserved(unserved, message))
            elif kind >= _FIRST_OF_WORKFLOWS:
                events.append(Extended(kind, args))
            elif kind == FATAL:
                raise ServerError(f"the server sent an invalid packet: {args[1].decode('utf-8', 'replace')}")
        return events

    def _unserved(self, message: bytes) -> bytes | None:
        """Return the function with whose name the refusal of its REGISTER begins; None if the refusal is of another request."""
        names = [name for name, _ in self._functions] + list(self._workflows)
        found = [name for name in names if message.startswith((name + b" has ", name + b" is a workflow"))]
        return max(found, key=len, default=None)

    def _agree(self, connection: Connection) -> None:
        connection.extended = True
        if not self._has_named:
            self._has_named = True
            self._output.append(namespace_request(self._namespace))
            return
        self.agreed = True
        self._output.append(gearman_protocol.request(Type.SET_CLIENT_ID, self._name))
        for function, options in self._functions:
            self._output.append(gearman_protocol.request(Type.REGISTER, function, options))
        if self._slots is not None:
            self._output.append(
                gearman_protocol.request(Type.CALL, _SLOTS_CALL, b"worker.slots", b'{"slots":%d}' % self._slots)
            )
        if self._isolates:
            self._output.append(gearman_protocol.request(Type.CALL, _ISOLATES_CALL, b"worker.isolates", b"{}"))
        self._declare()
        self._output.append(gearman_protocol.request(Type.CALL, _LOGS_CALL, b"worker.logs", b"{}"))
        self._output.append(gearman_protocol.request(Type.CALL, _TEXTS_CALL, b"progress.texts", b"{}"))
        if self._stops:
            about = msgspec.json.encode({"version": version(), "stops": True})
            self._output.append(gearman_protocol.request(Type.CALL, _DESCRIBE_CALL, b"worker.describe", about))
        if self._beats is not None:
            text = b'{"seconds":%g}' % self._beats
            self._output.append(gearman_protocol.request(Type.CALL, _BEATS_CALL, b"worker.beats", text))
        self._output += self._unsettled.values()

    def _beaten(self, answer: bytes) -> list[Event]:
        decoded = _decode_beaten(answer)
        stops: list[Event] = []
        for pairs, reason in ((decoded.stop, "cancelled"), (decoded.lost, "lost")):
            stops += [Stop((handle.encode(), token.encode()), reason) for handle, token in pairs]
        return stops

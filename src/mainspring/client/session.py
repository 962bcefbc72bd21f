"""The client's side of the protocol extension, without input and output: pending requests and their answers.

A shell owns the connection. It calls ``connected`` for each new one, passes received bytes to ``receive``, writes the bytes of
``take_output``, and calls ``disconnected`` when the connection ends. Requests may be made at any time: without a connection,
they are sent on the next one. When a connection ends, each request that was sent and not answered is

- sent again if that is harmless: waits, and submits with a unique;
- answered with ConnectionLostError otherwise, because its outcome is unknown.

The first packet of a connection has the token, the second one the namespace; workers send the same ones.

`ReconnectPolicy` has the delays between attempts to connect, and the requests that survive failed ones. Workers use it, too.

Both shells send pipelines of submits and waits before the first answers arrive (`submitting`, `awaiting`). These functions do not
wait: a client receives the requests in order, and waits for each in its own way.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.client.inside import current_depth
from mainspring.client.outcomes import (
    Answer,
    Notice,
    Outcome,
    Reason,
    Submitted,
    call_error,
    explain,
    no_extension_error,
    with_remedy,
)
from mainspring.errors import ConnectionLostError, RefusedError, ServerError, UsageError
from mainspring.namespaces import DEFAULT
from mainspring.wire import gearman_protocol
from mainspring.wire.gearman_protocol import EXTENSION, FATAL, NAMESPACE_OPTION, Connection, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mainspring.client.environment import Address


def extension_request(token: str | None) -> bytes:
    """Return the first packet of a connection: it requests the extension, and signs in with a token if there is one."""
    return gearman_protocol.request(Type.OPTION_REQ, EXTENSION if token is None else EXTENSION + b" " + token.encode())


def namespace_request(namespace: str) -> bytes:
    """Return the packet that chooses a namespace for all names on a connection."""
    return gearman_protocol.request(Type.OPTION_REQ, NAMESPACE_OPTION + namespace.encode())


def namespace_error(code: str, message: str, namespace: str) -> ServerError:
    """Return the error for a server that refuses a namespace."""
    if code == "UNKNOWN_OPTION":
        return ServerError(f"the server has no namespaces, and the namespace is {namespace!r}: update the server")
    return ServerError(f"the server refuses the namespace {namespace!r}: {message}")


T = TypeVar("T")


class PendingReply(Generic[T]):
    """A request without an answer yet. It is answered once; that calls the listener."""

    __slots__ = ("_listener", "done", "error", "given_up", "value")

    def __init__(self) -> None:
        self.done = False
        self.given_up = False
        """Whether no caller waits for the answer any more."""
        self.value: T | None = None
        self.error: BaseException | None = None
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Set the function to call when the request is answered."""
        self._listener = listener

    def resolve(self, value: T) -> None:
        """Answer the request with a value."""
        self.value = value
        self._finish()

    def reject(self, error: BaseException) -> None:
        """Answer the request with an error, which ``result`` raises."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._listener is not None:
            self._listener()

    def result(self) -> T:
        """Return the answer, or raise it if it is an error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # done and without an error: there is a value


class SubmitBatch(PendingReply[list[Answer]]):
    """Pending submits, answered in order. ``safe``: all have a unique, so they may be sent twice.

    ``depth`` is that of the job whose code submits.
    """

    __slots__ = ("answers", "depth", "frames", "safe")

    def __init__(self, frames: list[bytes], *, safe: bool, depth: int = 0) -> None:
        super().__init__()
        self.frames = frames
        self.safe = safe
        self.depth = depth
        self.answers: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Add the answer to the next frame."""
        self.answers.append(answer)
        if len(self.answers) == len(self.frames):
            self.resolve(self.answers)

    def unanswered(self) -> list[bytes]:
        """Return the frames without an answer."""
        return self.frames[len(self.answers) :]


def longest_wait(params: dict[str, Any] | None) -> float:
    """Return the seconds for which the server itself may wait before it answers a call."""
    if params is None or "wait" not in params:
        return 0.0
    wait = params["wait"]
    return float(wait) if isinstance(wait, (int, float)) else 0.0


class Wait(PendingReply[Outcome]):
    """A pending wait for a job's outcome; ``on_notice`` is called with the job's notices until then."""

    __slots__ = ("handle", "on_notice")

    def __init__(self, handle: bytes, on_notice: Callable[[Notice], None] | None) -> None:
        super().__init__()
        self.handle = handle
        self.on_notice = on_notice


class Call(PendingReply[Any]):
    """A pending call of a method; ``on_event``, if given, subscribes to its events and is called with each of them.

    ``depth`` is that of the job whose code calls.
    """

    __slots__ = ("depth", "frame", "on_event", "sent")

    def __init__(self, frame: bytes, on_event: Callable[[dict[str, Any]], None] | None, depth: int = 0) -> None:
        super().__init__()
        self.frame = frame
        self.depth = depth
        self.on_event = on_event
        self.sent = False


MAX_BODY = (1 << 32) - 1
"""A client accepts answers of any size; servers have limits of their own."""

_decode_reason = msgspec.json.Decoder(Reason).decode


class Request(NamedTuple):
    """One submit, ready for the wire: ``options`` is JSON or empty."""

    function: bytes
    unique: bytes
    options: bytes
    payload: bytes
    is_keyed: bool = False
    """Whether the options have a request key."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the server takes a second submit for the first one."""
        return bool(self.unique) or self.is_keyed

    def frame(self) -> bytes:
        """Encode the packet.  Raises UsageError if the function or the unique contains a NUL."""
        if b"\0" in self.function or b"\0" in self.unique:
            raise UsageError("a function's name and a unique must not contain a NUL character")
        return gearman_protocol.request(Type.SUBMIT, self.function, self.unique, self.options, self.payload)


class Session:
    """The pending requests of one client.  Not thread-safe: the shell provides locking."""

    def __init__(self, token: str | None = None, namespace: str = DEFAULT) -> None:
        self._token = token
        self._namespace = namespace
        self._has_named = False
        """Whether the namespace was sent on the connection."""
        self._connection: Connection | None = None
        self.ready = self._has_asked_for_texts = False
        self._depth = 0
        """The depth that the server takes for that of the next request on the connection."""
        self._texts: dict[bytes, bytes] = {}
        """The texts of the next progress of jobs."""
        self._output: list[bytes] = []
        self._batches: deque[SubmitBatch] = deque()
        self._sent_batches: set[SubmitBatch] = set()
        self._waits: dict[bytes, list[Wait]] = {}
        self._calls: dict[bytes, Call] = {}
        self._subscriptions: dict[bytes, Call] = {}
        self._numbers = itertools.count(1)

    # Requests of users.

    def submit(self, frames: list[bytes], *, safe: bool) -> SubmitBatch:
        """Submit jobs; the batch is done when all are on disk or refused."""
        batch = SubmitBatch(frames, safe=safe, depth=current_depth())
        if not frames:
            batch.resolve([])
            return batch
        self._batches.append(batch)
        if self.ready:
            self._send_batch(batch)
        return batch

    def wait(self, handle: str, on_notice: Callable[[Notice], None] | None = None) -> Wait:
        """Request a job's outcome."""
        wait = Wait(handle.encode(), on_notice)
        waits = self._waits.setdefault(wait.handle, [])
        waits.append(wait)
        if on_notice is not None and self.ready:
            self._ask_for_texts()
        if self.ready and len(waits) == 1:
            self._output.append(gearman_protocol.request(Type.WAIT, wait.handle))
        return wait

    def _ask_for_texts(self) -> None:
        """Ask the server, once on each connection, to send the texts of progress; an earlier version answers with a fault."""
        if not self._has_asked_for_texts:
            self._has_asked_for_texts = True
            self._output.append(gearman_protocol.request(Type.CALL, _TEXTS_CALL, b"progress.texts", b"{}"))

    def forget(self, waits: Iterable[Wait]) -> None:
        """Cancel waits; outcomes that still arrive are dropped."""
        for wait in waits:
            others = self._waits.get(wait.handle)
            if others is not None and wait in others:
                others.remove(wait)
                if not others:
                    del self._waits[wait.handle]

    def call(
        self, method: str, params: dict[str, Any] | None, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> Call:
        """Call a method; ``on_event`` subscribes to its events until the connection ends."""
        number = b"%d" % next(self._numbers)
        encoded = msgspec.json.encode(params) if params else b""
        call = Call(gearman_protocol.request(Type.CALL, number, method.encode(), encoded), on_event, current_depth())
        self._calls[number] = call
        if self.ready:
            self._send_call(call)
        return call

    def give_up(self, reply: PendingReply[Any]) -> bool:
        """Drop a request whose caller waits no longer, and never send it again. Return whether it was sent.

        The place of a submit is kept on its connection, because submits are answered in their order.
        """
        reply.given_up = True
        if isinstance(reply, Call):
            for number, call in self._calls.items():
                if call is reply:
                    del self._calls[number]
                    break
            return reply.sent
        if isinstance(reply, SubmitBatch):
            if reply in self._sent_batches:
                reply.safe = False
                return True
            if reply in self._batches:
                self._batches.remove(reply)
        return False

    @property
    def is_stale(self) -> bool:
        """Whether the connection serves nothing but requests that were given up, and waits, which outlive a connection."""
        given_up = all(batch.given_up for batch in self._batches)
        return given_up and not any(call.sent for call in self._calls.values()) and not self._subscriptions

    def ping(self) -> None:
        """Make the server send a packet."""
        if self.ready:
            self._output.append(gearman_protocol.request(Type.ECHO_REQ, b""))

    @property
    def unfinished(self) -> bool:
        """Whether any request is pending."""
        return bool(self._batches or self._waits or self._calls or self._subscriptions)

    @property
    def waiting_for_jobs(self) -> bool:
        """Whether any caller waits for a job's end; such waits outlive connections."""
        return bool(self._waits)

    # Called by the shell.

    def connected(self) -> None:
        """Begin on a new connection: request the extension."""
        self._connection = Connection("client", max_body=MAX_BODY)
        self.ready = self._has_asked_for_texts = False
        self._has_named = self._namespace == DEFAULT
        self._depth = 0
        self._texts.clear()
        self._output = [extension_request(self._token)]

    def disconnected(self, error: ServerError | None = None) -> None:
        """Drop the connection; answer sent requests that must not be sent twice with ``error``."""
        lost = error or ConnectionLostError(
            "the connection to the server ended; the outcome of pending requests is unknown"
        )
        self._connection = None
        self.ready = False
        self._output = []
        for batch in [batch for batch in self._batches if batch in self._sent_batches and not batch.safe]:
            self._batches.remove(batch)
            for _ in batch.unanswered():
                batch.add(lost)
        self._sent_batches.clear()
        for number in [number for number, call in self._calls.items() if call.sent]:
            self._calls.pop(number).reject(lost)
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.reject(lost)

    def abandon(self, error: ServerError, *, waits: bool = True) -> None:
        """Answer all requests with an error, because there is no other connection; without ``waits``, keep waits for jobs."""
        self.disconnected(error)
        batches, self._batches = self._batches, deque()
        for batch in batches:
            for _ in batch.unanswered():
                batch.add(error)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.reject(error)
        if waits:
            abandoned, self._waits = self._waits, {}
            for wait in itertools.chain.from_iterable(abandoned.values()):
                wait.reject(error)

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return bytes."""
        return bool(self._output)

    def take_output(self) -> bytes:
        """Return the bytes to write now, and clear them."""
        output = self._output
        if not output:
            return b""
        self._output = []
        return b"".join(output)

    def receive(self, data: bytes) -> None:
        """Process received bytes.  Raises ServerError if the server does not support the extension."""
        connection = self._connection
        if connection is None:
            return
        for kind, args in connection.receive(data):
            if kind == _SUBMITTED:
                self._answer(Submitted(args[0].decode(), args[1] != b"0", args[1] == b"2"))
            elif kind == _RESULT:
                self._result(args)
            elif kind == Type.ERROR:
                self._refusal(args)
            elif kind in _ANSWERS:
                self._called(kind, args)
            elif kind == Type.EVENT:
                subscription = self._subscriptions.get(args[0]) or self._calls.get(args[0])
                if subscription is not None and subscription.on_event is not None:
                    subscription.on_event(msgspec.json.decode(args[1]))
            elif kind == Type.PROGRESS_TEXT:
                self._texts[args[0]] = args[1]
            elif kind in _NOTICES:
                self._notice(kind, args)
            elif kind == Type.OPTION_RES:
                self._agreed(connection)
            elif kind == FATAL:
                reason = f"the server sent an invalid packet: {args[1].decode('utf-8', 'replace')}"
                if not self.ready:
                    reason = f"the server does not support Mainspring's extension, nor Gearman: {data[:40]!r}"
                raise ServerError(reason)

    # Internal.

    def _agreed(self, connection: Connection) -> None:
        connection.extended = True
        if not self._has_named:
            self._has_named = True
            self._output.append(namespace_request(self._namespace))
            return
        self.ready = True
        for batch in self._batches:
            self._send_batch(batch)
        if any(wait.on_notice is not None for waits in self._waits.values() for wait in waits):
            self._ask_for_texts()
        self._output += [gearman_protocol.request(Type.WAIT, handle) for handle in self._waits]
        for call in self._calls.values():
            self._send_call(call)

    def _state_depth(self, depth: int) -> None:
        """Tell the server the depth of the next requests, if it has changed; an earlier version answers with a fault."""
        if depth != self._depth:
            self._depth = depth
            self._output.append(
                gearman_protocol.request(Type.CALL, _DEPTH_CALL, b"requests.depth", b'{"depth":%d}' % depth)
            )

    def _send_batch(self, batch: SubmitBatch) -> None:
        self._state_depth(batch.depth)
        self._sent_batches.add(batch)
        self._output += batch.unanswered() if batch.answers else batch.frames

    def _send_call(self, call: Call) -> None:
        self._state_depth(call.depth)
        call.sent = True
        self._output.append(call.frame)

    def _answer(self, answer: Answer) -> None:
        if not self._batches:
            return
        batch = self._batches[0]
        if len(batch.answers) + 1 == len(batch.frames):
            self._batches.popleft()
            self._sent_batches.discard(batch)
        batch.add(answer)

    def _refusal(self, args: list[bytes]) -> None:
        code, message = (part.decode("utf-8", "replace") for part in args)
        if not self.ready:
            if self._connection is not None and self._connection.extended:
                raise namespace_error(code, message, self._namespace)
            raise no_extension_error(code, message)
        self._answer(RefusedError(code, with_remedy(message)))

    def _result(self, args: list[bytes]) -> None:
        waits = self._waits.pop(args[0], None)
        if waits is None:
            return
        handle, state, attempt, error, data = args
        reason = _decode_reason(error) if error else None
        outcome = Outcome(handle.decode(), state.decode(), int(attempt or 0), reason, data)
        for wait in waits:
            wait.resolve(outcome)

    def _called(self, kind: int, args: list[bytes]) -> None:
        call = self._calls.pop(args[0], None)
        if kind == Type.FAULT:
            call = call or self._subscriptions.pop(args[0], None)
            if call is not None:
                call.reject(call_error(args[1].decode(), args[2].decode("utf-8", "replace")))
        elif call is not None:
            if call.on_event is not None:
                self._subscriptions[args[0]] = call
            call.resolve(msgspec.json.decode(args[1]))

    def _notice(self, kind: int, args: list[bytes]) -> None:
        text = self._texts.pop(args[0], b"") if kind == Type.WORK_STATUS else b""
        waits = [wait.on_notice for wait in self._waits.get(args[0], ()) if wait.on_notice is not None]
        if not waits:
            return
        if kind == Type.WORK_STATUS:
            notice = Notice("progress", _number(args[1]), _number(args[2]), text)
        else:
            notice = Notice("data" if kind == Type.WORK_DATA else "warning", 0, 0, args[1])
        for on_notice in waits:
            on_notice(notice)


_TEXTS_CALL = b"texts"
_DEPTH_CALL = b"depth"
"""The ids of the calls for the texts of progress, and for the depth; other calls have numbers."""
_SUBMITTED = int(Type.SUBMITTED)  # plain integers compare faster, and these two are the most frequent packets
_RESULT = int(Type.RESULT)
_ANSWERS = frozenset({Type.ANSWER, Type.FAULT})
_NOTICES = frozenset({Type.WORK_STATUS, Type.WORK_DATA, Type.WORK_WARNING})


def _number(text: bytes) -> int:
    """Parse a number that a worker of any language sent; 0 if it is not a number."""
    try:
        return int(text)
    except ValueError:
        return 0


CONNECT_TIMEOUT = 5.0
"""Seconds for one attempt to connect."""

RECONNECT_TIMEOUT = 60.0
"""Seconds without a server after which waits for jobs fail."""

REQUEST_TIMEOUT = 10.0
"""Seconds without an answer after which a request fails; waits for jobs have their own limits."""

FIRST_DELAY = 0.05
"""Seconds of the first delay; each further one is twice as long."""

LAST_DELAY = 2.0
"""Seconds of the longest delay."""


def delays() -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: doubling, and randomized so that peers do not reconnect at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing
        delay = min(delay * 2, LAST_DELAY)


def unreachable_message(failures: Iterable[tuple[Address, OSError | None]]) -> str:
    """Return the error message for unreachable servers, with the reasons."""
    reasons = "; ".join(f"{address}: {explain(error)}" for address, error in failures)
    return f"no server could be reached ({reasons})"


class ReconnectPolicy:
    """The rules for pending requests while no server can be reached.

    Waits for jobs fail ``timeout`` seconds after the end of the last working connection; all other requests fail at once.
    Times are monotonic.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lost_at = float("-inf")
        self._delays = delays()

    def connection_lost(self, now: float) -> None:
        """Record that a working connection has ended."""
        self._lost_at = now
        self._delays = delays()

    def connect_failed(self, session: Session, error: ServerError, now: float) -> float | None:
        """Fail the requests that do not wait longer; return the seconds before the next attempt, None if no wait is left."""
        session.abandon(error, waits=now - self._lost_at >= self._timeout)
        return next(self._delays) if session.waiting_for_jobs else None


WINDOW_FRAMES = 2_000
WINDOW_BYTES = 1 << 20
WINDOWS_IN_FLIGHT = 3
OUTCOMES_IN_FLIGHT = 1_000
"""Outcomes that are requested at the same time; early results are held until the caller reaches them."""


def submitting(
    requests: Iterable[Request], submit: Callable[[list[bytes], bool], SubmitBatch]
) -> Iterator[SubmitBatch]:
    """Submit jobs in overlapping windows, and yield the batch of each in order; wait for it before taking the next.

    ``submit`` sends encoded requests. Its flag is true if all of them may be sent twice.
    """
    batches: deque[SubmitBatch] = deque()
    for frames, safe in windows(requests):
        batches.append(submit(frames, safe))
        if len(batches) >= WINDOWS_IN_FLIGHT:
            yield batches.popleft()
    yield from batches


def windows(requests: Iterable[Request]) -> Iterator[tuple[list[bytes], bool]]:
    """Encode requests in windows of bounded size, each with a flag: whether all of it may be sent twice."""
    frames: list[bytes] = []
    size = 0
    safe = True
    for request in requests:
        frame = request.frame()
        frames.append(frame)
        size += len(frame)
        safe = safe and request.is_repeatable
        if len(frames) >= WINDOW_FRAMES or size >= WINDOW_BYTES:
            yield frames, safe
            frames, size, safe = [], 0, True
    if frames:
        yield frames, safe


def awaiting(
    handles: Iterable[str], wait: Callable[[list[str]], Iterable[Wait]], forget: Callable[[Iterable[Wait]], None]
) -> Generator[Wait, None, None]:
    """Request the outcomes of many jobs, and yield their waits in order; wait for each before taking the next.

    ``wait`` requests as many more outcomes as were answered since its last call. Closing the generator passes the unfinished
    waits to ``forget``.
    """
    waits: deque[Wait] = deque()
    remaining = iter(handles)
    try:
        while True:
            if not waits or not waits[0].done:
                more = list(itertools.islice(remaining, OUTCOMES_IN_FLIGHT - len(waits)))
                waits.extend(wait(more) if more else ())
            if not waits:
                return
            yield waits[0]
            waits.popleft()
    finally:
        forget(waits)

"""The answers and events of a server as values without behaviour, and the errors that answers and ended connections stand for.

Errors of TLS name the option that helps. The events that a running job sends to its clients are buffered until the program takes
them.
"""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from mainspring.errors import (
    ConnectionLostError,
    ForbiddenError,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobLost,
    JobTimedOut,
    Kind,
    NoAnswerError,
    RefusedError,
    ServerError,
    UsageError,
)
from mainspring.quantities import format_duration
from mainspring.wire.gearman_protocol import EXTENSION

if TYPE_CHECKING:
    from collections.abc import Callable

_CA_OPTION: Final = "--tls-ca (MAINSPRING_TLS_CA)"
_CERTIFICATE_OPTIONS: Final = "--tls-cert and --tls-key (MAINSPRING_TLS_CERT, MAINSPRING_TLS_KEY)"

_TOKEN_REQUIRED: Final = "TOKEN_REQUIRED"  # noqa: S105 - a code
_TOKEN_REFUSED: Final = "TOKEN_REFUSED"  # noqa: S105 - a code
_OTHER_VERSION: Final = "OTHER_VERSION"
"""The error codes for a connection without a token, and with a wrong one."""
_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""The error code of a TLS port's answer to a client without TLS."""

_NO_CERTIFICATE: Final = f"the server requires a client certificate: give one with {_CERTIFICATE_OPTIONS}"
_NO_TLS: Final = f"the server does not use TLS on this port: omit {_CA_OPTION}, or name a port with TLS"

# By OpenSSL's reason.
_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_CERTIFICATE,
    # TLS 1.2 has no specific alert for a missing client certificate.
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        f"the server refuses the handshake; it may require a client certificate: give one with {_CERTIFICATE_OPTIONS}"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the server does not trust the authority of this client's certificate: give a certificate from an authority that it "
        f"trusts with {_CERTIFICATE_OPTIONS}"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"this client's certificate has expired: give a new one with {_CERTIFICATE_OPTIONS}",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"this client's certificate was revoked: give another with {_CERTIFICATE_OPTIONS}",
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
}
_REFUSED: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
    }
)
_CERTIFICATE_EXPIRED: Final = 10
"""OpenSSL's code for an expired certificate."""
_NAME_MISMATCHES: Final = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or address."""

CLOSED_WITHOUT_REASON: Final = "it accepted the connection and closed it"
"""The explanation for a server that gives no reason."""


def explain(error: OSError | None) -> str:
    """Return the reason why a connection was not made, or ended before the server answered; None: the server closed it."""
    if error is None:
        return CLOSED_WITHOUT_REASON
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_mistrust(error)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in _REASONS:
            return _REASONS[reason]
        if reason in _REFUSED:
            return f"the server refuses this client's certificate ({reason}): give another with {_CERTIFICATE_OPTIONS}"
    return error.strerror or str(error) or type(error).__name__


def no_extension_error(code: str, message: str) -> ServerError:
    """Return the error for a server that answers the request for the extension with an ERROR packet."""
    if code == _TLS_REQUIRED:
        return ServerError(
            f"the server uses TLS: name the authority of its certificate with {_CA_OPTION}, and give a client certificate, if it"
            f" requires one, with {_CERTIFICATE_OPTIONS}"
        )
    if code == _TOKEN_REQUIRED:
        return ForbiddenError(
            "the server demands a token: set MAINSPRING_TOKEN to one that mainspring tokens create has printed"
        )
    if code == _TOKEN_REFUSED:
        return ForbiddenError("the server refuses the token in MAINSPRING_TOKEN: it is wrong, revoked or expired")
    if code == _OTHER_VERSION:
        return ServerError(f"the server speaks another version of Mainspring's extension: {message}")
    return ServerError(
        f"the server does not support Mainspring's extension: it answers {message!r}; if it is an earlier version of Mainspring,"
        f" update it: this one speaks {EXTENSION.decode()}"
    )


def _explain_mistrust(error: ssl.SSLCertVerificationError) -> str:
    """Return the reason why the client does not trust the server's certificate."""
    message = error.verify_message.rstrip(".")
    if error.verify_code in _NAME_MISMATCHES:
        return f"{message}: use a server name that its certificate contains"
    if error.verify_code == _CERTIFICATE_EXPIRED:
        return f"the server's certificate, or its authority's, has expired: renew it on the server ({message})"
    return f"the server's certificate is not from a trusted authority ({message}): name its authority with {_CA_OPTION}"


class Submitted(NamedTuple):
    """The answer to a submit: the job is on disk. ``joined``: a job with that unique was already live."""

    handle: str
    joined: bool
    skipped: bool = False
    """The submit was skipped for that job, by its ``on_conflict``."""


class Reason(msgspec.Struct, frozen=True):
    """The last error of a job, in its worker's words."""

    type: str = ""
    message: str = ""
    traceback: str | None = None


class Outcome(NamedTuple):
    """The end of a job: ``state`` is succeeded, failed, cancelled, expired or unknown; ``data`` is its result."""

    handle: str
    state: str
    attempt: int
    error: Reason | None
    data: bytes


class Notice(NamedTuple):
    """A message to waiting clients while a job runs: ``progress`` with two numbers and a text, other kinds with data."""

    kind: Literal["progress", "data", "warning"]
    numerator: int
    denominator: int
    data: bytes
    """The text of progress, too."""


Answer: TypeAlias = Submitted | ServerError
"""The answer to one of many submits."""


def failure(outcome: Outcome) -> JobError | None:
    """Return the error that an outcome raises in a waiting caller; None for a success."""
    handle = outcome.handle
    reason = outcome.error or Reason()
    match outcome.state:
        case "succeeded":
            return None
        case "failed":
            kind = JobTimedOut if reason.type == "Timeout" else JobFailed
            return kind(handle, reason.type, reason.message, reason.traceback, outcome.attempt)
        case "cancelled":
            return JobCancelled(
                handle, f"job {handle} was cancelled" + (f": {reason.message}" if reason.message else "")
            )
        case "expired":
            return JobExpired(handle, f"job {handle} was not started in time")
        case "unknown":
            return JobLost(handle, f"the server does not have job {handle}, or no longer keeps its result")
        case other:
            return JobError(handle, f"job {handle} ended in a state that this client does not support: {other}")


def not_ended_error(handle: str, timeout: float | None) -> TimeoutError:
    """Return the error for a wait that reached its time-out, in seconds, before the job's end."""
    return TimeoutError(f"job {handle} has not ended within {format_duration(timeout or 0.0)}")


def no_answer_error(limit: float, *, sent: bool) -> ConnectionLostError:
    """Return the error for a request without an answer after its limit, in seconds; ``sent``: the server may have received it."""
    within = f"within {format_duration(limit)}"
    if not sent:
        return ConnectionLostError(f"no server has accepted the connection {within}; the request was not sent")
    return NoAnswerError(
        f"the server has not answered {within}, so the outcome is unknown: the request may be done, or be done later, for "
        "example when the server's store can be reached again. To repeat a submit without a second job, give it a request "
        "key or a unique",
        limit,
    )


def call_error(code: str, message: str) -> UsageError | ServerError:
    """Return the error that a FAULT packet stands for."""
    kind = next((kind for kind in Kind if kind == code), None)
    message = with_remedy(message)
    return RefusedError(code, message) if kind is None else kind.error(message)


def with_remedy(message: str) -> str:
    """Return a refusal, with what to do about an option or a param that the server does not know."""
    if "contains unknown field" not in message:
        return message
    return f"{message}; if the server is of an earlier version, update it, or leave this out"


BUFFER_BYTES: Final = 8 << 20
"""Bytes of events that are buffered for a program that is slower than the job."""

_EVENT_OVERHEAD: Final = 128
"""Bytes that an event counts in addition to its data."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The task's last report of its progress: ``done`` of ``total``, and a text."""

    done: int
    total: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A part of the result that the task has sent early."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the task."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """The number of events that were dropped here, because the buffer was full."""

    events: int


JobEvent: TypeAlias = Progress | Data | Warned | Missed
"""The events that ``Job.stream`` yields."""


class EventBuffer:
    """The events of one job that have arrived and that the program has not taken yet.

    Of consecutive progress reports, the newest is held. Events that do not fit into ``limit`` bytes are dropped and counted;
    an empty buffer accepts an event of any size.
    """

    def __init__(self, limit: int = BUFFER_BYTES) -> None:
        self._limit = limit
        self._events: deque[JobEvent] = deque()
        self._size = 0
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Set the function to call after each event."""
        self._listener = listener

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, notice: Notice) -> None:
        """Add an event."""
        last = self._events[-1] if self._events else None
        event = _event(notice)
        if isinstance(event, Progress) and isinstance(last, Progress):
            self._events[-1] = event
        elif self._size == 0 or self._size + _size(event) <= self._limit:
            self._events.append(event)
            self._size += _size(event)
        elif isinstance(last, Missed):
            self._events[-1] = Missed(last.events + 1)
        else:
            self._events.append(Missed(1))
        if self._listener is not None:
            self._listener()

    def pop(self) -> JobEvent | None:
        """Remove and return the oldest event; None if there is none."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._size -= _size(event)
        return event


def _event(notice: Notice) -> Progress | Data | Warned:
    if notice.kind == "progress":
        return Progress(notice.numerator, notice.denominator, notice.data.decode("utf-8", "replace"))
    return Data(notice.data) if notice.kind == "data" else Warned(notice.data)


def _size(event: JobEvent) -> int:
    match event:
        case Missed():
            return 0  # at most one per other event
        case Progress():
            return _EVENT_OVERHEAD
        case Data(data) | Warned(data):
            return len(data) + _EVENT_OVERHEAD

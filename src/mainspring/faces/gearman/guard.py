"""The right that each message of a peer needs, and each command in a decision.

A connection has one caller, who is the origin of all its requests: that of its port, or the one of its token. `PACKETS` states
what is checked for each kind of message: here, if the message itself names the function, else where its object is looked up. A
message that is not declared there is a defect at the import of `protocol`. `LOCAL`, the caller on a port without a namespace that
demands no token, may do everything, and has no guard.

A peer signs in with the option ``mainspring/2 TOKEN``. Connections over Unix sockets and with client certificates need no token.

A decider has the permission ``develop`` for the workflow, since it has registered for it. So it may do everything to the run
itself. A command about something else needs the same permission for that, as a client would. Otherwise, a token for one workflow
would reach every function. A run whose decider lacks a permission is parked, so that a person may give it, and unpark the run.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

import msgspec

from mainspring.access.caller import Kind, Permission
from mainspring.namespaces import key, namespace_of
from mainspring.wire.gearman_protocol import (
    BAD,
    EXTENSION,
    FATAL,
    NAMESPACE_OPTION,
    OVERSIZED,
    PLAIN,
    TEXT,
    Type,
    response,
)
from mainspring.workflows import requests
from mainspring.workflows.model import PART, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.access.caller import Caller
    from mainspring.errors import StoreError
    from mainspring.faces.gearman.peer_io import Outbox, Reading
    from mainspring.jobs.service import JobService
    from mainspring.wire.gearman_protocol import Connection
    from mainspring.workflows.requests import Decision, DecisionBase

SIGN_IN: Final = EXTENSION + b" "
"""The option begins so, with the token after it."""
TOKEN_REQUIRED: Final = b"TOKEN_REQUIRED"
_REQUIRED: Final = (
    b"this port needs a token (MAINSPRING_TOKEN), a client certificate or a Unix socket; "
    b"plain Gearman clients have no token"
)
_WRONG: Final = b"the token is wrong, revoked or expired"
_TWICE: Final = (
    b"this connection has a caller already: open another one for another token, and sign in before the first request"
)
NOT_PERMITTED: Final = b"NOT_PERMITTED"


class Check(Enum):
    """The check of a kind of message."""

    NONE = "none: it is about the connection, and shows nothing"
    FUNCTION = "``develop`` for the function that it names"
    STATUS = "``read`` in the namespace, for a job of the namespace"
    RESULT = "``develop`` or ``payload:read`` for the function of the job"
    HISTORY = "``payload:read`` for the workflow of the run, or a decision of the run at this connection"
    WORKER = "none: it is about the functions that the worker of this connection has registered"
    DELIVERY = "none: it is about a delivery to this connection; others are unknown to it"
    DECISION = "each command in it has its own; see `command_rights`"
    CALL = "the one of the request; see `api.request.Request`"
    COMMAND = "the one of the command; see `administration.COMMANDS`"


PACKETS: Final[dict[int, Check]] = {
    Type.OPTION_REQ: Check.NONE,
    Type.ECHO_REQ: Check.NONE,
    Type.SET_CLIENT_ID: Check.NONE,
    BAD: Check.NONE,
    FATAL: Check.NONE,
    Type.SUBMIT_JOB: Check.FUNCTION,
    Type.SUBMIT_JOB_HIGH: Check.FUNCTION,
    Type.SUBMIT_JOB_LOW: Check.FUNCTION,
    Type.SUBMIT_JOB_BG: Check.FUNCTION,
    Type.SUBMIT_JOB_HIGH_BG: Check.FUNCTION,
    Type.SUBMIT_JOB_LOW_BG: Check.FUNCTION,
    Type.SUBMIT_JOB_EPOCH: Check.FUNCTION,
    Type.SUBMIT_JOB_SCHED: Check.FUNCTION,
    Type.SUBMIT_REDUCE_JOB: Check.FUNCTION,
    Type.SUBMIT_REDUCE_JOB_BACKGROUND: Check.FUNCTION,
    Type.SUBMIT: Check.FUNCTION,
    Type.CAN_DO: Check.FUNCTION,
    Type.CAN_DO_TIMEOUT: Check.FUNCTION,
    Type.REGISTER: Check.FUNCTION,
    Type.GET_STATUS: Check.STATUS,
    Type.GET_STATUS_UNIQUE: Check.STATUS,
    Type.WAIT: Check.RESULT,
    Type.HISTORY: Check.HISTORY,
    Type.CANT_DO: Check.WORKER,
    Type.RESET_ABILITIES: Check.WORKER,
    Type.PRE_SLEEP: Check.WORKER,
    Type.GRAB_JOB: Check.WORKER,
    Type.GRAB_JOB_UNIQ: Check.WORKER,
    Type.GRAB_JOB_ALL: Check.WORKER,
    Type.READY: Check.WORKER,
    Type.PAUSE: Check.WORKER,
    Type.FORGOTTEN: Check.WORKER,
    Type.WORK_COMPLETE: Check.DELIVERY,
    Type.WORK_FAIL: Check.DELIVERY,
    Type.WORK_EXCEPTION: Check.DELIVERY,
    Type.WORK_DATA: Check.DELIVERY,
    Type.WORK_WARNING: Check.DELIVERY,
    Type.WORK_STATUS: Check.DELIVERY,
    Type.PROGRESS_TEXT: Check.DELIVERY,
    Type.SETTLE: Check.DELIVERY,
    Type.HEARTBEAT: Check.DELIVERY,
    Type.LOG: Check.DELIVERY,
    Type.VALUES: Check.DELIVERY,
    OVERSIZED: Check.DELIVERY,
    Type.DECIDE: Check.DECISION,
    Type.CALL: Check.CALL,
    TEXT: Check.COMMAND,
}
"""Every message that a server takes."""
_FUNCTIONS: Final = frozenset(kind for kind, check in PACKETS.items() if check is Check.FUNCTION)
_STATUS: Final = frozenset(kind for kind, check in PACKETS.items() if check is Check.STATUS)
_OF_TOKENS: Final = (frozenset(PACKETS) - PLAIN - {TEXT}) | {
    Type.OPTION_REQ,
    Type.ECHO_REQ,
    Type.SET_CLIENT_ID,
    Type.WORK_STATUS,
    Type.WORK_DATA,
    Type.WORK_WARNING,
}
"""The messages of a connection with a token: those of the extension, and those of Gearman that its workers and clients send."""
_ACTS: Final[dict[int, str]] = {Type.SUBMIT: "jobs.submit", Type.REGISTER: "workers.register"}
"""Names of refused messages in the audit; others have those of their packets."""
MOST_PERMITTED: Final = 1000
"""Functions of one peer whose check is remembered."""
_REASON: Final = "signing in"
"""Why reading is paused until the caller is found."""


class Credentials(Protocol):
    """Finds the callers of tokens."""

    def find(
        self,
        kind: Kind,
        text: str,
        done: Callable[[Caller | None], None],
        failed: Callable[[StoreError], None],
        address: str = "",
    ) -> None:
        """Call ``done`` with the caller of a secret, or None."""

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        """Call a function when a secret has ended; return a function that ends the watch."""


class _NoCredentials:
    """A node without tokens: each one is refused."""

    def find(
        self,
        kind: Kind,
        text: str,
        done: Callable[[Caller | None], None],
        failed: Callable[[StoreError], None],
        address: str = "",
    ) -> None:
        del kind, text, failed, address
        done(None)

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        del secret, ended
        return lambda: None


NO_CREDENTIALS: Final = _NoCredentials()


class Refusals(Protocol):
    """Records refusals in the audit, a limited number a minute."""

    def refused_token(self, address: str, request: str, why: str) -> None:
        """Record a wrong token."""

    def refused_early(self, what: str, namespace: str, caller: Caller, named: str, why: str) -> None:
        """Record a message that its caller may not send."""


class Submissions(Protocol):
    """The submissions of a peer, which are answered in their order."""

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error, after the answers to earlier submissions."""


class GuardedPeer(Protocol):
    """The part of a peer that its guard uses."""

    address: str
    namespace: str
    outbox: Outbox
    reading: Reading
    service: JobService
    wire: Connection

    @property
    def access(self) -> Credentials:
        """The credentials of the node."""

    @property
    def refusals(self) -> Refusals:
        """The audit of the node."""

    @property
    def submits(self) -> Submissions:
        """Its submissions."""

    @property
    def has_signed_in(self) -> bool:
        """Return whether its requests have the rights of a token."""

    def busy(self) -> bool:
        """Return whether the peer waits for an answer or is a worker."""

    def signed_in(self, caller: Caller, end_watch: Callable[[], None]) -> None:
        """Set the caller of all messages from now on; ``end_watch`` is called at the end of the connection."""

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""

    def warn(self, event: str) -> None:
        """Log that the peer was refused, a limited number of times a minute."""

    def end(self) -> None:
        """End the connection once all requests are answered."""

    def abort(self) -> None:
        """End the connection now, with all that it has registered and waits for."""


class Guard:
    """Decides about the messages of one peer, whose requests have the rights of a caller."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        # The rights of a caller never change, so these decisions hold as long as the peer stays in its namespace.
        self._namespace = ""
        self._passing: frozenset[int] = frozenset()
        """Messages that need no look at their arguments, in this namespace."""
        self._reach: tuple[str, ...] | None = ()
        """As of `reach`, in this namespace."""
        self._permitted: set[bytes] = set()
        """Functions of this namespace that the caller may submit and run: some that were asked for."""

    def reach(self, namespace: str) -> tuple[str, ...] | None:
        """Return the patterns of the functions that the caller may submit and run; None: all of the namespace."""
        if namespace != self._namespace:
            self._enter(namespace)
        return self._reach

    def refuses(self, peer: GuardedPeer, kind: int, args: list[bytes]) -> bool:
        """Return whether a message is refused; then it is answered here."""
        if peer.namespace != self._namespace:
            self._enter(peer.namespace)
        if kind in self._passing:
            return False
        caller = self.caller
        if not caller.grants and not caller.token:
            if kind == Type.OPTION_REQ and args[0].startswith((SIGN_IN, NAMESPACE_OPTION)):
                return False
            _refuse(peer, kind, TOKEN_REQUIRED, _REQUIRED)
            peer.warn("a connection without a token was refused")
            peer.end()
            return True
        if caller.token and kind not in _OF_TOKENS:
            forbid(peer, caller, kind, "", "a connection with a token takes packets of the extension alone")
            return True
        if kind in _FUNCTIONS:
            name = args[0]
            if name in self._permitted:
                return False
            function = function_text(key(peer.namespace, name))
            if caller.may(Permission.DEVELOP, peer.namespace, function):
                if len(self._permitted) < MOST_PERMITTED:
                    self._permitted.add(name)
                return False
            message = f"{caller.name!r} lacks the permission 'develop' for the function {function!r}"
            forbid(peer, caller, kind, function, message)
            return True
        message = f"{caller.name!r} lacks the permission 'read' in the namespace {peer.namespace!r}"
        forbid(peer, caller, kind, "", message)
        return True

    def _enter(self, namespace: str) -> None:
        caller = self.caller
        self._namespace = namespace
        self._permitted.clear()
        self._reach = caller.functions(Permission.DEVELOP, namespace)
        if not caller.grants and not caller.token:
            self._passing = frozenset()
            return
        passing = _OF_TOKENS if caller.token else frozenset(PACKETS)
        if self._reach is not None:
            passing -= _FUNCTIONS
        if not caller.may(Permission.READ, namespace):
            passing -= _STATUS
        self._passing = passing


def may_wait(caller: Caller, function: bytes) -> bool:
    """Return whether a caller may wait for a job of a function, which shows its result."""
    namespace, name = namespace_of(function), function_text(function)
    return caller.may(Permission.DEVELOP, namespace, name) or caller.may(Permission.PAYLOADS, namespace, name)


def forbid(peer: GuardedPeer, caller: Caller, kind: int, named: str, message: str) -> None:
    """Refuse a message, and record it in the audit."""
    _refuse(peer, kind, NOT_PERMITTED, message.encode())
    what = _ACTS.get(kind) or f"gearman.{'text' if kind == TEXT else Type(kind).name.lower()}"
    peer.refusals.refused_early(what, peer.namespace, caller, named, message)


def _refuse(peer: GuardedPeer, kind: int, code: bytes, message: bytes) -> None:
    if kind == TEXT:
        peer.outbox.send(b"ERR %b %b\r\n" % (code, message.replace(b" ", b"+")))
    else:
        peer.submits.refuse(code, message)


def sign_in(peer: GuardedPeer, option: bytes) -> None:
    """Find the caller of the token in an option, and go on with the peer's messages; end the connection if it has none.

    A connection with another caller's registrations, waits or watches gets no new one: it would keep what it is not permitted.
    """
    access = peer.access
    if peer.has_signed_in or peer.busy():
        peer.refuse(b"SIGNED_IN_ALREADY", _TWICE)
        peer.end()
        return
    secret = option.removeprefix(SIGN_IN).decode("ascii", "replace")

    def found(caller: Caller | None) -> None:
        if peer.reading.finished:
            return
        if caller is None:
            peer.refuse(b"TOKEN_REFUSED", _WRONG)
            peer.refusals.refused_token(peer.address, "", _WRONG.decode())
            peer.warn("a token was refused")
            peer.end()
        else:
            peer.signed_in(caller, access.watch(secret, peer.abort))
            peer.wire.extended = True
            peer.outbox.send(response(Type.OPTION_RES, EXTENSION))
        peer.reading.pause(_REASON, paused=False)

    def failed(error: StoreError) -> None:
        if not peer.reading.finished:
            peer.refuse(b"STORE_UNAVAILABLE", str(error).encode())
            peer.end()
            peer.reading.pause(_REASON, paused=False)

    peer.reading.pause(_REASON, paused=True)
    access.find(Kind.TOKEN, secret, found, failed, peer.address)


class _Part(msgspec.Struct, array_like=True):
    """The begin of the input of a part of a map; `workflow_code.mapping` has all of it."""

    activity: requests.ScheduleActivityTask


_decode_part = msgspec.msgpack.Decoder(_Part).decode


def _of_activity(decision: requests.ScheduleActivityTask) -> Iterator[bytes]:
    yield decision.function


def _of_part(
    decision: requests.ContinueAsNewWorkflowExecution | requests.StartChildWorkflowExecution,
) -> Iterator[bytes]:
    """Yield the function that a run calls in place of its own code, if its input is that of a part of a map.

    Another worker may decide about that run, with more rights.
    """
    if decision.input.startswith(PART):
        try:
            part = _decode_part(decision.input[len(PART) :])
        except ValueError:
            return  # no worker reads it either
        yield from _of_activity(part.activity)


def _of_child(decision: requests.StartChildWorkflowExecution) -> Iterator[bytes]:
    yield decision.type.encode()
    yield from _of_part(decision)


def _of_run_itself(decision: DecisionBase) -> Iterator[bytes]:
    del decision
    return iter(())


COMMANDS: Final[dict[type[DecisionBase], Callable[[Any], Iterator[bytes]]]] = {
    requests.ScheduleActivityTask: _of_activity,
    requests.StartChildWorkflowExecution: _of_child,
    requests.ContinueAsNewWorkflowExecution: _of_part,
    # The workflow of the other run is looked up when the request is delivered: see `limited`.
    requests.SignalExternalWorkflowExecution: _of_run_itself,
    requests.RequestCancelExternalWorkflowExecution: _of_run_itself,
    requests.ScheduleLambdaFunction: _of_run_itself,
    requests.RequestCancelActivityTask: _of_run_itself,
    requests.CompleteWorkflowExecution: _of_run_itself,
    requests.FailWorkflowExecution: _of_run_itself,
    requests.CancelWorkflowExecution: _of_run_itself,
    requests.RecordMarker: _of_run_itself,
    requests.StartTimer: _of_run_itself,
    requests.CancelTimer: _of_run_itself,
}
"""For each command, the functions for which the decider needs the permission ``develop``, beside its workflow."""
if COMMANDS.keys() != set(get_args(requests.Decision)):
    raise TypeError(f"COMMANDS lacks {set(get_args(requests.Decision)) - COMMANDS.keys()}")
_OTHERS: Final = (requests.SignalExternalWorkflowExecution, requests.RequestCancelExternalWorkflowExecution)


def command_refusal(decisions: Sequence[Decision], caller: Caller, namespace: str) -> str:
    """Return why a caller may not make decisions, with the first command that it may not give; empty if it may."""
    for decision in decisions:
        for name in COMMANDS[type(decision)](decision):
            function = function_text(key(namespace, name))
            if not caller.may(Permission.DEVELOP, namespace, function):
                return (
                    f"{type(decision).__name__} {decision.number}: {caller.name!r} lacks the permission 'develop' for the"
                    f" function {function!r}: give it to the token of the worker, or start a worker with another token,"
                    " and unpark the run"
                )
    return ""


def limited_to(decisions: Sequence[Decision], reach: tuple[str, ...]) -> tuple[Decision, ...]:
    """Return decisions whose requests to other runs reach only workflows of some patterns."""
    return tuple(msgspec.structs.replace(one, reach=reach) if isinstance(one, _OTHERS) else one for one in decisions)

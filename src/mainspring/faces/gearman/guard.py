"""The messages that a peer may send on a port with tokens: none before it has signed in, and then those that its token permits.

A peer signs in with the option ``mainspring/1 TOKEN``. Connections over Unix sockets and with client certificates need no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring.access.credentials import Kind
from mainspring.access.roles import Permission
from mainspring.namespaces import key, namespace_of
from mainspring.wire.gearman.connection import BAD, FATAL, OVERSIZED, TEXT
from mainspring.wire.gearman.packets import EXTENSION, NAMESPACE_OPTION, Type, response
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.errors import StoreError
    from mainspring.faces.gearman.outbox import Outbox
    from mainspring.faces.gearman.reading import Reading
    from mainspring.jobs.service import JobService
    from mainspring.wire.gearman.connection import Connection

SIGN_IN: Final = EXTENSION + b" "
"""The option begins so, with the token after it."""
TOKEN_REQUIRED: Final = b"TOKEN_REQUIRED"
_REQUIRED: Final = (
    b"this port needs a token (MAINSPRING_TOKEN), a client certificate or a Unix socket; "
    b"plain Gearman clients have no token"
)
_WRONG: Final = b"the token is wrong, revoked or expired"
_BY_FUNCTION: Final = frozenset({Type.SUBMIT, Type.REGISTER})
"""Messages whose first argument is a function that the caller needs the permission for."""
_ACTS: Final[dict[int, str]] = {Type.SUBMIT: "jobs.submit", Type.REGISTER: "workers.register"}
"""Names of refused messages in the audit; others have those of their packets."""
_FREE: Final = frozenset(
    {
        Type.OPTION_REQ,
        Type.ECHO_REQ,
        Type.SET_CLIENT_ID,
        Type.CALL,
        Type.WAIT,
        Type.READY,
        Type.SETTLE,
        Type.HEARTBEAT,
        Type.PAUSE,
        Type.LOG,
        Type.HISTORY,
        Type.DECIDE,
        Type.FORGOTTEN,
        Type.WORK_STATUS,
        Type.WORK_DATA,
        Type.WORK_WARNING,
        BAD,
        FATAL,
        OVERSIZED,
    }
)
"""Messages that check the caller themselves, or that are about jobs that the peer got for functions that it may run."""
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

    def signed_in(self, caller: Caller, end_watch: Callable[[], None]) -> None:
        """Set the caller of all messages from now on; ``end_watch`` is called at the end of the connection."""

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer with an error."""

    def warn(self, event: str) -> None:
        """Log that the peer was refused, a limited number of times a minute."""

    def end(self) -> None:
        """End the connection once all requests are answered."""

    def close(self) -> None:
        """End the connection once the written data is sent."""


class Guard:
    """Decides about the messages of one peer. ``caller`` is None until the peer has signed in."""

    def __init__(self) -> None:
        self.caller: Caller | None = None

    def refuses(self, peer: GuardedPeer, kind: int, args: list[bytes]) -> bool:
        """Return whether a message is refused; then it is answered here."""
        caller = self.caller
        if caller is None:
            if kind == Type.OPTION_REQ and args[0].startswith((SIGN_IN, NAMESPACE_OPTION)):
                return False
            _refuse(peer, kind, TOKEN_REQUIRED, _REQUIRED)
            peer.warn("a connection without a token was refused")
            peer.end()
            return True
        if kind in _FREE:
            return False
        if kind in _BY_FUNCTION:
            function = function_text(key(peer.namespace, args[0]))
            if caller.may(Permission.DEVELOP, peer.namespace, function):
                return False
            message = f"{caller.name!r} lacks the permission 'develop' for the function {function!r}"
            _forbid(peer, caller, kind, function, message)
            return True
        _forbid(peer, caller, kind, "", "a connection with a token takes packets of the extension alone")
        return True


def may_wait(caller: Caller, function: bytes) -> bool:
    """Return whether a caller may wait for a job of a function, which shows its result."""
    namespace, name = namespace_of(function), function_text(function)
    return caller.may(Permission.DEVELOP, namespace, name) or caller.may(Permission.PAYLOADS, namespace, name)


def _forbid(peer: GuardedPeer, caller: Caller, kind: int, named: str, message: str) -> None:
    _refuse(peer, kind, b"NOT_PERMITTED", message.encode())
    what = _ACTS.get(kind) or f"gearman.{'text' if kind == TEXT else Type(kind).name.lower()}"
    peer.refusals.refused_early(what, peer.namespace, caller, named, message)


def _refuse(peer: GuardedPeer, kind: int, code: bytes, message: bytes) -> None:
    if kind == TEXT:
        peer.outbox.send(b"ERR %b %b\r\n" % (code, message.replace(b" ", b"+")))
    else:
        peer.submits.refuse(code, message)


def sign_in(peer: GuardedPeer, option: bytes) -> None:
    """Find the caller of the token in an option, and go on with the peer's messages; end the connection if it has none."""
    access = peer.access
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
            peer.signed_in(caller, access.watch(secret, peer.close))
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

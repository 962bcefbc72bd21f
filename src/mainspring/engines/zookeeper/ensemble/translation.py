"""The translation of kazoo's results and errors into those of the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    SystemZookeeperError,
    ThrottledOpError,
)

from mainspring.engines.zookeeper.tree import (
    Create,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
)
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.tree import Change

REFUSALS: Final = {
    NodeExistsError: Refusal.EXISTS,
    NoNodeError: Refusal.NO_NODE,
    BadVersionError: Refusal.VERSION,
    NotEmptyError: Refusal.NOT_EMPTY,
}
NOT_SENT_ON: Final = (NotReadOnlyCallError, ThrottledOpError)
"""Errors of a member that has refused a request without passing it on."""
UNKNOWN: Final = (
    ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionMovedError, SystemZookeeperError,
)  # fmt: skip
FOREIGN: Final = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)


def node(data: bytes | None, stat: Any) -> Node:
    """Return a node as it was read."""
    return Node(data or b"", stat.version, stat.mtime * 1000, stat.ephemeralOwner, stat.numChildren)


def outcome(changes: Sequence[Change], results: Sequence[Any], prefix: str) -> Done | Refused:
    """Return the result of a multi whose paths began with a prefix. Raises StoreError.

    In a refused multi, kazoo gives RolledBackError to the changes before the refused one, RuntimeInconsistency to those after it.
    """
    is_refused = False
    for at, result in enumerate(results):
        if not isinstance(result, Exception):
            continue
        is_refused = True
        if isinstance(result, (RolledBackError, RuntimeInconsistency)):
            continue
        why = REFUSALS.get(type(result))
        if why is None:
            raise commit_error(result)
        return Refused(at, why)
    if is_refused:
        raise StoreError("the ensemble has refused a multi without naming a change")
    return Done(
        [
            result[len(prefix) :] if isinstance(change, Create) else change.path
            for change, result in zip(changes, results, strict=True)
        ]
    )


def read_error(error: Exception) -> Exception:
    """Return the port's error for a read."""
    if isinstance(error, (StoreError, SettingsError)):
        return error
    if isinstance(error, SessionExpiredError):
        return SessionEndedError("the session has ended")
    if isinstance(error, FOREIGN):
        return StoreForeignError(f"the ensemble forbids the access: {_text(error)}")
    if isinstance(error, (*UNKNOWN, *NOT_SENT_ON)):
        return StoreUnavailableError(f"the ensemble has not answered: {_text(error)}")
    return StoreError(f"the ensemble refuses the request: {_text(error)}")


def commit_error(error: Exception) -> Exception:
    """Return the port's error for a multi."""
    if isinstance(error, UNKNOWN):
        return UnknownOutcomeError(f"the outcome of a multi is unknown: {_text(error)}")
    return read_error(error)


_TEXTS: Final = {
    NoAuthError: "no permission",
    AuthFailedError: "user and password are refused",
    SessionClosedRequireSaslError: "it requires a user and password, or another way to log in",
    ConnectionLoss: "the connection was lost",
}


def _text(error: Exception) -> str:
    return _TEXTS.get(type(error)) or f"{type(error).__name__} {error}".strip()

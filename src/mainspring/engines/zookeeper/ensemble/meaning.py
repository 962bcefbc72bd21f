"""What kazoo's answers mean in the words of the port."""

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
"""A member has refused it without asking anybody."""
UNKNOWN: Final = (
    ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionMovedError, SystemZookeeperError,
)  # fmt: skip
FOREIGN: Final = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)


def node(data: bytes | None, stat: Any) -> Node:
    """Return a node as it was read."""
    return Node(data or b"", stat.version, stat.mtime * 1000, stat.ephemeralOwner, stat.numChildren)


def outcome(changes: Sequence[Change], results: Sequence[Any], prefix: str) -> Done | Refused:
    """Return what became of a multi whose paths began with a prefix. Raises StoreError.

    Of a refused one, what comes before the first refused change is RolledBack, what comes behind it RuntimeInconsistency.
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
            raise of_commit(result)
        return Refused(at, why)
    if is_refused:
        raise StoreError("the ensemble has refused a multi, and no change of it")
    return Done(
        [
            result[len(prefix) :] if isinstance(change, Create) else change.path
            for change, result in zip(changes, results, strict=True)
        ]
    )


def of_read(error: Exception) -> Exception:
    """Return the port's error for a read."""
    if isinstance(error, (StoreError, SettingsError)):
        return error
    if isinstance(error, SessionExpiredError):
        return SessionEndedError("the session has ended")
    if isinstance(error, FOREIGN):
        return StoreForeignError(f"the ensemble does not allow it: {_told(error)}")
    if isinstance(error, (*UNKNOWN, *NOT_SENT_ON)):
        return StoreUnavailableError(f"the ensemble has not answered: {_told(error)}")
    return StoreError(f"the ensemble refuses it: {_told(error)}")


def of_commit(error: Exception) -> Exception:
    """Return the port's error for a multi."""
    if isinstance(error, UNKNOWN):
        return UnknownOutcomeError(f"nobody knows what became of a multi: {_told(error)}")
    return of_read(error)


_TOLD: Final = {
    NoAuthError: "no permission",
    AuthFailedError: "user and password are refused",
    SessionClosedRequireSaslError: "it takes nobody without user and password, or not in this way",
    ConnectionLoss: "the connection was lost",
}


def _told(error: Exception) -> str:
    return _TOLD.get(type(error)) or f"{type(error).__name__} {error}".strip()

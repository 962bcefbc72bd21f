"""The port to a ZooKeeper ensemble: its requests and their possible answers.

All other modules use only ``Tree``, so tests can run the rules on a tree in memory, with every failure between any two steps.
All paths begin with a slash and are relative to the chroot.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Watch = Callable[[], None]
    """Called once, on the node's thread, when the data read has changed, or may have changed unnoticed (the connection was
    lost, the session has ended): read again."""

ANY = -1
"""Matches every version."""


class Node(NamedTuple):
    """A node of the tree."""

    data: bytes
    version: int
    """The number of writes of its data since its creation."""
    mtime_us: int
    """The time of its last write, by the ensemble's clock."""
    owner: int
    """The session of an ephemeral node; 0 for a persistent node."""
    children: int
    """The number of its children."""


class Create(NamedTuple):
    """Create a node. Fails with EXISTS, or with NO_NODE if there is no parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    """The ensemble appends ten digits to the path, which rise."""


class Write(NamedTuple):
    """Replace a node's data. Fails with NO_NODE, VERSION."""

    path: str
    data: bytes
    version: int = ANY


class Delete(NamedTuple):
    """Delete a node. Fails with NO_NODE, VERSION, NOT_EMPTY."""

    path: str
    version: int = ANY


class Check(NamedTuple):
    """Require that a node exists with a version. Fails with NO_NODE, VERSION."""

    path: str
    version: int = ANY


Change = Create | Write | Delete | Check


class Refusal(Enum):
    """Why a change was refused."""

    EXISTS = "exists"
    NO_NODE = "no node"
    VERSION = "version"
    NOT_EMPTY = "not empty"


class Refused(NamedTuple):
    """The outcome of a refused multi."""

    at: int
    """The index of its first refused change."""
    why: Refusal


class Done(NamedTuple):
    """The outcome of a committed multi."""

    paths: Sequence[str]
    """The path of each change; that of a sequence node includes its number."""


class UnknownOutcomeError(StoreUnavailableError):
    """The connection was lost while a multi was in flight: it was committed, or was not, or will be soon."""


class SessionEndedError(StoreError):
    """The session has ended with all its ephemeral nodes; nothing was written. The next session starts by itself."""


class TooLargeError(StoreError):
    """A multi does not fit into a packet; nothing was sent."""


class Tree(Protocol):
    """A session with an ensemble.

    Reads raise StoreUnavailableError if no member answers in time, SessionEndedError if the session ends in the meantime.
    All methods are called on the node's thread, in its running loop; watches are called there. The requests of one caller stay
    in order: a read that is sent after a multi returns its changes.
    """

    async def open(self) -> None:
        """Start the first session, and create the chroot. Raises StoreUnavailableError, SettingsError (authentication)."""

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes and its watches. A second call does nothing."""

    @property
    def session(self) -> int:
        """The session's number; 0 while there is none."""

    @property
    def session_timeout(self) -> float:
        """Seconds without a message after which the ensemble ends the session, as granted by the ensemble."""

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function, on the node's thread, when the connection is lost or restored, or another session has started."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node; None if there is none. A watch is called when the node is written, created or deleted."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return several nodes, read concurrently."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children, in no order; None if there is no such node.

        A watch is called when a child is created or deleted, or the node itself is deleted.
        """

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Apply all changes, or none.

        Raises UnknownOutcomeError; StoreUnavailableError if it was not sent; SessionEndedError; StoreForeignError if access
        control forbids it; TooLargeError. A read-only ensemble raises StoreUnavailableError.
        """

    async def sync(self) -> None:
        """Wait until all commits so far, of all clients, can be read here."""

"""The port to a ZooKeeper ensemble: what this engine asks of it, and what it may answer.

Everything above it is written against ``Tree``, so that the rules can be run on a tree in memory, with every failure between
any two steps. All paths begin with a slash and are seen below the chroot.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Watch = Callable[[], None]
    """Called once, on the node's thread, when what was read has changed, or when nobody can know whether it has (the connection
    was lost, the session has ended): look again."""

ANY = -1
"""The version that every node has."""


class Node(NamedTuple):
    """A node as it was read."""

    data: bytes
    version: int
    """How often its data was written since it was created."""
    mtime_us: int
    """When it was written last, by the ensemble's clock."""
    owner: int
    """The session that it ends with; 0 for a persistent node."""
    children: int
    """How many children it has."""


class Create(NamedTuple):
    """Create a node. Fails with EXISTS, NO_NODE where there is no parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    """The ensemble adds ten digits to the path, which rise."""


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
    """Demand that a node is there, with a version. Fails with NO_NODE, VERSION."""

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
    """The outcome of a multi of which nothing has happened."""

    at: int
    """Which of its changes was the first to be refused."""
    why: Refusal


class Done(NamedTuple):
    """The outcome of a multi that has happened, all of it."""

    paths: Sequence[str]
    """For each change its path: of a sequence node with its number."""


class UnknownOutcomeError(StoreUnavailableError):
    """The connection was lost while a multi was under way: it has happened, or has not, or will in a moment."""


class SessionEndedError(StoreError):
    """The session has ended, and all ephemeral nodes of it; nothing was done. The next session begins by itself."""


class Tree(Protocol):
    """A session with an ensemble.

    Reads raise StoreUnavailableError where no member answers in time, SessionEndedError where the session ends meanwhile.
    All methods are called on the node's thread, in its running loop; watches are called there. What one caller sends stays in
    order: a read that is sent after a multi sees what that has done.
    """

    async def open(self) -> None:
        """Begin the first session, and create the chroot. Raises StoreUnavailableError, SettingsError (authentication)."""

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes. It may be closed again."""

    @property
    def session(self) -> int:
        """The session's number; 0 while there is none."""

    @property
    def session_timeout(self) -> float:
        """Seconds without a word after which the ensemble ends the session, as it was agreed."""

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function, on the node's thread, when the connection was lost or is there again, or another session has begun."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a node; None where there is none. With a watch: it is called when the node is written, created or deleted."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read several nodes, all under way at once."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children, in no order; None where there is no such node.

        With a watch: it is called when a child comes or goes, or the node itself is deleted.
        """

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Do all changes, or none of them.

        Raises UnknownOutcomeError; StoreUnavailableError where it was not sent; SessionEndedError; StoreForeignError where
        this client may not do that (access control, an ensemble that is read only is StoreUnavailableError).
        """

    async def sync(self) -> None:
        """Wait until what was committed so far by anybody can be read here."""

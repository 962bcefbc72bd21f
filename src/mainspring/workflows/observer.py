"""The port to a node that follows the runs of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflows.model import Parked, Status
    from mainspring.workflows.reading import Unread


class Changed(NamedTuple):
    """A run that a transaction has changed, as it is after it."""

    run: int
    root: int
    namespace: str
    type: str
    version: str
    status: Status
    events: int
    history_bytes: int
    due_us: int
    """The earliest timer or timeout; 0 if there is none."""
    parked_us: int
    decision: int
    """The job of the open decision task; 0 if there is none."""
    new_events: int = 0
    new_bytes: int = 0
    parked: Parked | None = None
    """Why the transaction has parked it; None if it has not."""
    was_parked: bool = False
    """Whether it was parked before the transaction."""
    about: bytes = b""
    """The report of its decider (``model.About``), if the transaction has changed it."""


class RunObserver(Protocol):
    """A node's side of the slice."""

    def errands_stored(self) -> None:
        """Do the stored errands soon, by `workflows.store.RunErrands`. It is called on the node's thread, after a commit."""

    def appended(self, runs: Sequence[Changed]) -> None:
        """Process the changes of a committed group, on the node's thread, before the outcomes of the group are delivered."""

    def not_read(self, runs: Sequence[Unread]) -> None:
        """Note the runs that a committed group has left as they are, because this node cannot read them."""

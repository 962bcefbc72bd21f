"""Messages between the nodes of one store. No guarantee depends on them.

Messages may be lost or repeated; those of one node to another stay in order. The receiver also reads the store from time to
time, so a lost message costs only a delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Settled(NamedTuple):
    """Jobs have ended for which clients of the receiving node wait; their outcomes are in the store."""

    ids: Sequence[int]


class Pending(NamedTuple):
    """Due jobs of these functions were stored; nodes with workers for them may claim them."""

    functions: Sequence[bytes]


class Progress(NamedTuple):
    """A progress report of a job for which a client of the receiving node waits."""

    id: int
    kind: Literal["data", "warning", "status"]
    first: bytes
    """The data; the numerator for a status."""
    second: bytes = b""
    """The denominator."""


class ProgressText(NamedTuple):
    """The text of the progress of a job, before the `Progress` or the `Running` with its numbers. Older nodes leave it out."""

    id: int
    text: str


class Stop(NamedTuple):
    """A request to cancel a job that a worker of the receiving node runs."""

    id: int
    reason: str


class Ask(NamedTuple):
    """A request for the state of a job that the receiving node holds. Nodes of older versions do not answer."""

    id: int
    by: int
    """The term of the requesting node."""


class Running(NamedTuple):
    """The answer to `Ask`: the state of a job that a worker of the answering node runs."""

    id: int
    started_us: int
    """When the worker got it; 0 if the node has not assigned it to a worker, and then the other fields are empty."""
    attempt: int = 0
    """The number of the attempt under way."""
    worker: str = ""
    numerator: bytes = b"0"
    denominator: bytes = b"0"


class StopRequested(NamedTuple):
    """When the worker of a job was asked to stop it, before the job's `Running`. Older nodes leave it out."""

    id: int
    at_us: int


class Abandoned(NamedTuple):
    """Ended terms still hold jobs: the receiving node recovers them. An engine sends this to its own node."""

    terms: Sequence[int]


class Direct(NamedTuple):
    """A request to a worker that is connected to the receiving node. Nodes of older versions ignore it."""

    worker: int
    """Its number at that node."""
    verb: Literal["drain", "undrain", "stop"]


class FollowLog(NamedTuple):
    """A request to report new lines of a job that the receiving node holds. It holds for some seconds; older nodes ignore it."""

    id: int
    by: int
    """The term of the requesting node."""


class Logged(NamedTuple):
    """Lines of these jobs were stored, whose logs clients of the receiving node read."""

    ids: Sequence[int]


Message = (
    Settled
    | Pending
    | Progress
    | ProgressText
    | Stop
    | Ask
    | StopRequested
    | Running
    | Abandoned
    | Direct
    | FollowLog
    | Logged
)


class Relay(Protocol):
    """The port of a shared store for messages."""

    def listen(self, on_message: Callable[[Message], None]) -> None:
        """Call a function with each message for this node, on the node's thread, from now on.

        The engine itself sends `Settled` and `Pending` after the commits that cause them, and may send `Abandoned`.
        """

    def send(self, to: int, message: Message) -> None:
        """Send a message to the node of a term; without such a node it is dropped."""

"""How the nodes of one store tell each other what is in it: best effort, never the guarantee.

What is told may be lost, and told again; what one node tells another stays in order. Whoever listens also looks into the store
now and then, so that a loss costs time only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Settled(NamedTuple):
    """Jobs that clients of the receiving node wait for have ended; their outcomes are in the store."""

    ids: Sequence[int]


class Pending(NamedTuple):
    """Due jobs of these functions were stored, and whoever has workers for them may claim them."""

    functions: Sequence[bytes]


class Progress(NamedTuple):
    """What a worker elsewhere says of a job that a client of the receiving node waits for."""

    id: int
    kind: Literal["data", "warning", "status"]
    first: bytes
    """The data; of a status the numerator."""
    second: bytes = b""
    """The denominator."""


class Stop(NamedTuple):
    """Somebody wants a job cancelled that a worker of the receiving node runs."""

    id: int
    reason: str


class Ask(NamedTuple):
    """A question of another node about a job that the receiving node holds. Nodes of older versions do not answer."""

    id: int
    by: int
    """The term of the node that asks."""


class Running(NamedTuple):
    """The answer to ``Ask``: the state of a job that one of the node's workers runs."""

    id: int
    started_us: int
    """When the worker got it; 0 where the node has not given it to a worker, and then the rest is empty."""
    attempt: int = 0
    """Which attempt it is, the one under way included."""
    worker: str = ""
    numerator: bytes = b"0"
    denominator: bytes = b"0"


class Abandoned(NamedTuple):
    """Something is left of terms that have ended: the receiving node gives it back. An engine says so to its own node."""

    terms: Sequence[int]


Message = Settled | Pending | Progress | Stop | Ask | Running | Abandoned


class Relay(Protocol):
    """The port that a shared store has for it."""

    def listen(self, ear: Callable[[Message], None]) -> None:
        """Call a function with every message for this node, on the node's thread, from now on.

        The engine itself sends ``Settled`` and ``Pending`` after the commit of what makes them true, and may send ``Abandoned``.
        """

    def send(self, to: int, message: Message) -> None:
        """Tell the node that has a term something; one that is not there hears nothing."""

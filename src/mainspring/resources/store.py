"""The port of the resources slice: limits of functions, and tokens that a store grants to its nodes.

A pool has the tokens of a whole function, or those of one of its keys; see `model.pool_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import FunctionFields
from mainspring.namespaces import name_text, split
from mainspring.resources.rules import FunctionLimits
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.access.caller import Act
    from mainspring.resources.rules import Rate


class ListLimits(PageQuery[FunctionLimits], frozen=True):
    """Read the stored limits of all functions, in an order of the store's own."""

    phase = Phase.READ
    reads = True


class SaveLimits(Acting):
    """Write the limits of a function, with the next version. Guard: the stored version is ``limits.version``, 0 for none.

    Outcome: the stored `FunctionLimits`. This operation wrote them if their version is ``limits.version + 1``; otherwise another
    node did.
    """

    phase = Phase.LIMITS
    causes = frozenset({types.FUNCTION_PAUSED, types.FUNCTION_RESUMED})
    limits: FunctionLimits
    was_paused: bool = False
    """Whether the function was paused under the stored version."""

    def recorded(self, outcome: FunctionLimits) -> Act | None:
        """Return the act, if this operation wrote the limits."""
        return self.act if self._wrote(outcome) else None

    def _wrote(self, outcome: FunctionLimits) -> bool:
        return outcome == replace(self.limits, version=self.limits.version + 1)

    def caused(self, outcome: FunctionLimits) -> Iterator[NewEvent]:
        """Yield the event of a function that was paused or resumed."""
        limits = self.limits
        if limits.paused != self.was_paused and self._wrote(outcome):
            namespace, name = split(limits.function)
            kind = types.FUNCTION_PAUSED if limits.paused else types.FUNCTION_RESUMED
            by = "" if self.act is None else self.act.who
            fields = FunctionFields(reason=limits.pause_reason, until_us=limits.until_us, by=by)
            yield NewEvent(kind, namespace, name_text(name), name_text(name), 0, fields)


class TokenRequest(NamedTuple):
    """A node's request to one pool: the total number of tokens that it wants, and the number of further starts.

    A grant is valid until the node's next request, or until its term ends. A node never requests fewer tokens than its running
    jobs use, and from its request on uses no more than it requested.
    """

    function: bytes
    pool: bytes
    tokens: int = 0
    limit: int = 0
    """The number of tokens of the pool. 0: there is no limit, and ``tokens`` is ignored."""
    starts: int = 0
    rate: Rate | None = None
    """The pool's rate of granted starts, from `rules.grant_rate`."""
    demand: int | None = None
    """The number of tokens that the node needs, if it requests fewer because others need some; None: ``tokens``."""
    waits: bool = True
    """Whether the node goes on to wait if it gets no token. If not, it gives the jobs back, and its refusal is forgotten."""
    announced: bool = False
    """Whether to announce returned tokens to all nodes, because this one cannot run the jobs that need them."""


class Grant(NamedTuple):
    """The grant of a pool. Denied requests are remembered for `rules.DEMAND_EXPIRY_US`, so that holders release idle tokens."""

    tokens: int = 0
    """The tokens that the node has now: at most as many as it requested. A grant never raises the sum above the limit."""
    claimants: int = 1
    """Nodes with tokens or unmet demand; the requesting one is among them."""
    short: bool = False
    """Whether another node has unmet demand."""
    starts: int = 0
    next_us: int = 0
    """When one more start can be granted, by the store's clock; 0: now, or the request had no rate."""


class Acquire(Operation):
    """Grant tokens and starts of a shared store to a node. Outcome: ``list[Grant]``, in the order of the requests.

    ``now_us`` is the store's time as the node estimates it; stores with clocks use their own. Tokens of ended terms are free.
    """

    phase = Phase.LIMITS
    term: int
    asks: Sequence[TokenRequest]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = len(self.asks)
        self.size = 64 + sum(len(ask.function) + len(ask.pool) + 100 for ask in self.asks)

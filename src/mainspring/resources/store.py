"""The port that the resources slice needs: limits of functions, and what nodes of one store lease of them.

A pool is a function's own tokens, or those of one of its keys; see ``model.pool_of``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.resources.model import FunctionLimits
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase
from mainspring.storage.query import PageQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.resources.model import Rate


class ListLimits(PageQuery[FunctionLimits], frozen=True):
    """Read what is said of functions, in an order of the store's own."""

    phase = Phase.READ
    reads = True


class SaveLimits(Operation):
    """Write what is said of a function. Guard: the stored version is ``said.version``, 0 where there is none.

    Stored is ``said`` with the next version. Outcome: ``FunctionLimits``, what is stored now: by this operation, where its
    version is one more than that of ``said``; otherwise by somebody else.
    """

    __slots__ = ("said",)

    phase = Phase.LIMITS

    def __init__(
        self,
        said: FunctionLimits,
    ) -> None:
        super().__init__()
        self.said = said


class Ask(NamedTuple):
    """What a node asks for in one pool: how many tokens it wants to have in all, and how many starts more.

    What a node asks for it has until it asks again, or its term ends. It never asks for fewer tokens than its running jobs have,
    and uses no more than it has asked for, from the moment of asking on.
    """

    function: bytes
    pool: bytes
    tokens: int = 0
    limit: int = 0
    """How many tokens the pool has. 0: there is no such limit, and ``tokens`` means nothing."""
    starts: int = 0
    rate: Rate | None = None
    """At which the pool lets jobs start; as ``rules.leased`` returns it."""


class Grant(NamedTuple):
    """What a pool gave. What is asked for in vain is remembered for some seconds, so that others give up what they can."""

    tokens: int = 0
    """How many the node has now: no more than it asked for, and the sum of all nodes' never rises above the limit."""
    claimants: int = 1
    """How many nodes have tokens, or have asked for some in vain lately; the asking one is among them."""
    short: bool = False
    """Whether another node has asked in vain lately."""
    starts: int = 0
    next_us: int = 0
    """From when on one more start may be asked for, by the store's clock; 0 where that is now, or no rate was given."""


class Acquire(Operation):
    """Lease tokens and starts to a node, from a shared store. Outcome: ``list[Grant]``, in order.

    ``now_us`` is the node's idea of the store's time; stores that have clocks use their own. Tokens of ended terms are free.
    """

    __slots__ = ("asks", "now_us", "term")

    phase = Phase.LIMITS

    def __init__(
        self,
        term: int,
        asks: Sequence[Ask],
        now_us: int,
    ) -> None:
        super().__init__()
        self.term = term
        self.asks = asks
        self.now_us = now_us
        self.rows = len(asks)
        self.size = 64 + sum(len(ask.function) + len(ask.pool) + 100 for ask in asks)

"""Requests with a key of their client: the key and the answer are stored in the transaction of the act.

So a request is either done, and its answer is stored, or nothing of it is, whenever its node is killed. A request can be several
operations of one group. The engine reserves the keys of a group before it runs its operations, leaves out those of repeated
requests, and stores the answers at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.access.replies import Reservation, encode
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.replies import KeptReply, RequestKey, Rows
    from mainspring.storage.plan import Plan


class Once(NamedTuple):
    """The key of a request to the API, for calls that keep their answer in the transaction of their act."""

    key: RequestKey
    reply: Callable[[Any], KeptReply]
    """Returns what is kept for the answer of the call."""


class KeyedAct:
    """The key of the operations of one request, which are in one group.

    ``reply`` returns the answer to keep for their outcomes, in the order of the group. It is called before the commit, in each
    attempt to run the group. If it raises a MainspringError, the request is refused: its operations have changed nothing, and
    the key is free again.
    """

    __slots__ = ("key", "reply")

    def __init__(self, key: RequestKey, reply: Callable[[list[Any]], KeptReply]) -> None:
        self.key = key
        self.reply = reply


class RepeatedError(Exception):
    """A request with this key was made before, so nothing was done. It is no problem, so calls pass it on as it is."""

    def __init__(self, earlier: Reservation) -> None:
        super().__init__("a request with this key was made before")
        self.earlier = earlier


class KeyedGroup:
    """The acts with keys in one attempt to run a group."""

    def __init__(self, plan: Plan, rows: Rows, outcomes: list[Any]) -> None:
        self._rows = rows
        self._outcomes = outcomes
        self._places: dict[KeyedAct, list[int]] = {}
        for kind, placed in plan.items():
            if kind.keyed:
                for place, operation in placed:
                    if operation.keyed_act is not None:
                        self._places.setdefault(operation.keyed_act, []).append(place)
        self._new: dict[bytes, KeyedAct] = {}
        self._repeated: list[KeyedAct] = []
        """Acts whose key is that of an act of the same group."""

    async def reserve(self, plan: Plan) -> Plan:
        """Reserve the keys. The outcome of repeated operations is the earlier `Reservation`; return the plan without them."""
        left_out: set[int] = set()
        for act in sorted(self._places, key=lambda act: act.key.key):  # all nodes lock keys in the same order
            key = act.key
            if key.key in self._new:
                self._repeated.append(act)
            elif (earlier := await self._rows.reserve(*key)) is None:
                self._new[key.key] = act
                continue
            else:
                self._answer(act, earlier)
            left_out.update(self._places[act])
        if not left_out:
            return plan
        kept = {kind: [entry for entry in placed if entry[0] not in left_out] for kind, placed in plan.items()}
        return {kind: placed for kind, placed in kept.items() if placed}

    async def keep(self) -> None:
        """Keep the answers of the acts, once all operations have run."""
        replies: dict[bytes, KeptReply] = {}
        for key, act in self._new.items():
            try:
                replies[key] = reply = act.reply([self._outcomes[place] for place in sorted(self._places[act])])
            except MainspringError:
                await self._rows.release(key)
            else:
                await self._rows.keep(key, encode(reply))
        for act in self._repeated:
            first = self._new[act.key.key].key
            self._answer(act, Reservation(first.request, first.at_us, replies.get(first.key)))

    def _answer(self, act: KeyedAct, earlier: Reservation) -> None:
        for place in self._places[act]:
            self._outcomes[place] = earlier


def has_keys(plan: Plan) -> bool:
    """Return whether a group may have acts with keys; most have none."""
    return any(kind.keyed for kind in plan)

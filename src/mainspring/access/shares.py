"""The places of a node that callers and namespaces share, so that nobody keeps all others out.

Requests under way, streams, watches and waits each have places of their own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mainspring.access.caller import Caller

SHARE: Final = 3
"""Places that a namespace may have for each place that is free: it leaves a quarter to others. A caller may have as many for each
place that its namespace may still take."""
KINDS: Final = ("requests", "streams", "watches", "waits")
OWNERS: Final = ("node", "namespace", "caller")
"""Whose places were all taken."""


class Refusals:
    """Counts the places that a node has refused, by their kind and by whose places were taken."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()


class Shares:
    """The places of one kind. ``most`` is the number of all."""

    def __init__(self, most: int, kind: str, refusals: Refusals | None = None) -> None:
        assert kind in KINDS
        self.most = most
        self._kind = kind
        self._refusals = refusals
        self._number = 0
        self._of_namespaces: Counter[str] = Counter()
        self._of_callers: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of callers with a place."""
        return len(self._of_callers)

    def take(self, caller: Caller, namespace: str) -> str:
        """Take a place for a caller in a namespace, for which it has a permission. Return why there is none, or an empty text."""
        free = self.most - self._number
        in_namespace, own = self._of_namespaces[namespace], self._of_callers[caller.holder]
        left = (SHARE * free - in_namespace) / (SHARE + 1)
        if free <= 0:
            return self._refuse("node", f"all {self.most} {self._kind} of the node are open")
        if left <= 0:
            return self._refuse(
                "namespace",
                f"the namespace {namespace} has {in_namespace} of the {self.most} {self._kind} of the node, and leaves the others"
                " to other namespaces",
            )
        if own >= SHARE * left:
            return self._refuse(
                "caller",
                f"{caller.name!r} has {own} of the {self.most} {self._kind} of the node, and leaves the others to other callers",
            )
        self._number += 1
        self._of_namespaces[namespace] += 1
        self._of_callers[caller.holder] += 1
        return ""

    def _refuse(self, owner: str, why: str) -> str:
        if self._refusals is not None:
            self._refusals.counts[self._kind, owner] += 1
        return f"{why}: end some, or try again later"

    def free(self, caller: Caller, namespace: str) -> None:
        """Free a place."""
        self._number -= 1
        for counts, key in ((self._of_namespaces, namespace), (self._of_callers, caller.holder)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

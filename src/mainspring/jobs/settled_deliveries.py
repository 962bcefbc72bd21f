"""The deliveries that were settled last, for settlements that are sent again because their answer was lost."""

from __future__ import annotations

from collections import OrderedDict

MAX_SETTLED = 10_000


class SettledDeliveries:
    """A bounded set of (handle, lease, outcome): of a delivery that was handed back, a success that comes later is stale."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[bytes, bytes, bytes], None] = OrderedDict()

    def add(self, handle: bytes, token: bytes, outcome: bytes) -> None:
        """Remember one, and forget the oldest."""
        self._tokens[handle, token, outcome] = None
        if len(self._tokens) > MAX_SETTLED:
            self._tokens.popitem(last=False)

    def __contains__(self, key: tuple[bytes, bytes, bytes]) -> bool:
        return key in self._tokens

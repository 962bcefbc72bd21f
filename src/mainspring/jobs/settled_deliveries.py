"""The most recently settled deliveries. They identify settlements that a worker repeats because the answer was lost."""

from __future__ import annotations

from collections import OrderedDict

MAX_SETTLED = 10_000


class SettledDeliveries:
    """A bounded set of (handle, token, outcome). The outcome is part of it: a success after a release of a delivery is stale."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[bytes, bytes, bytes], None] = OrderedDict()

    def add(self, handle: bytes, token: bytes, outcome: bytes) -> None:
        """Add an entry, and evict the oldest if the set is full."""
        self._tokens[handle, token, outcome] = None
        if len(self._tokens) > MAX_SETTLED:
            self._tokens.popitem(last=False)

    def __contains__(self, key: tuple[bytes, bytes, bytes]) -> bool:
        return key in self._tokens

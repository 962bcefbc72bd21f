"""Stored objects that a node could not handle: each is set aside alone, so that the others go on.

A transaction that serves all due objects of a kind must not fail because of one of them: a value of a newer version, a time zone
that only other machines have, damaged bytes. Reads return such an object with its fault in place of an error. The transaction
leaves it as it is and reports it in its outcome, and the service notes it here. So it is named in the log, in lists, on the
overview and in the metrics, and it is tried again after `RETRY_DELAY`: the cause may have gone, without a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.clock import Clock

_log = structlog.get_logger("mainspring.store")

RETRY_DELAY: Final = 10.0
"""Seconds after which a node tries an object again."""
LIFETIME: Final = 60.0
"""Seconds after which an object that was not met again is forgotten: it was removed, or another node has handled it."""


REMEDY: Final = "run the version of Mainspring that has written it, or restore the store from a backup"
"""The remedy for an object that cannot be read."""


class Kind(NamedTuple):
    """A kind of stored objects."""

    name: str
    remedy: str
    """Advice for the operator."""
    is_tried_again: bool = True


KINDS: Final = ("schedule", "job", "run", "errand", "operation", "submission")
"""The names of all kinds: each has a measure from the start of a node on."""


class Entry(NamedTuple):
    """An object that this node has set aside."""

    kind: str
    name: str
    fault: str
    since: float
    """Wall time of the first attempt that failed."""
    number: int = 1
    """The number of objects that it stands for."""


class SetAside:
    """The objects that one node has set aside."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], tuple[Entry, float]] = {}
        """The entries, and the monotonic time of each one's last attempt."""

    @property
    def is_empty(self) -> bool:
        """Return whether there are none, as nearly always: then nobody needs to make their names."""
        return not self._entries

    def note(self, kind: Kind, name: str, fault: str, number: int = 1, since: float | None = None) -> None:
        """Note that an object, or a ``number`` of them, could not be handled; log it if that is new."""
        key = kind.name, name
        before = self._entries.get(key)
        if since is None:
            since = self._clock.wall() if before is None else before[0].since
        self._entries[key] = Entry(kind.name, name, fault, since, number), self._clock.monotonic()
        if before is None or before[0].fault != fault:
            delay = {"tried_again_after": RETRY_DELAY} if kind.is_tried_again else {}
            _log.error(
                f"this node cannot handle a stored {kind.name}: it is set aside, the others go on",
                **{kind.name: name, "fault": fault, "remedy": kind.remedy, **delay},
            )

    def removed(self, kind: Kind, name: str) -> None:
        """Note that an object is no longer there."""
        self._entries.pop((kind.name, name), None)

    def handled(self, kind: Kind, names: Iterable[str]) -> None:
        """Note that objects were handled, whether they were set aside before or not."""
        if not self._entries:
            return
        for name in names:
            if self._entries.pop((kind.name, name), None) is not None:
                _log.info(f"a {kind.name} that was set aside goes on", **{kind.name: name})

    def waits(self, kind: Kind, name: str) -> bool:
        """Return whether an object was tried so recently that it is not tried again yet."""
        if not self._entries:
            return False
        found = self._entries.get((kind.name, name))
        return found is not None and self._clock.monotonic() - found[1] < RETRY_DELAY

    def entries(self) -> Sequence[Entry]:
        """Return the objects that are set aside now."""
        now = self._clock.monotonic()
        self._entries = {key: one for key, one in self._entries.items() if now - one[1] < LIFETIME}
        return [entry for entry, _ in self._entries.values()]

    def number(self, kind: Kind) -> int:
        """Return how many objects of a kind are set aside."""
        return sum(one.number for one in self.entries() if one.kind == kind.name) if self._entries else 0

"""Who is to be called when something changes: each once, and all when nobody can know any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kazoo.protocol.states import EventType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.zookeeper.ensemble.questions import Replied
    from mainspring.engines.zookeeper.ensemble.wiring import Answer
    from mainspring.engines.zookeeper.tree import Watch

log = structlog.get_logger("mainspring.zookeeper")

_Watched = dict[str, dict["Watch", None]]


class Watches:
    """The watches of one connection, by the paths that they are on."""

    def __init__(self) -> None:
        self._data: _Watched = {}
        self._children: _Watched = {}

    def on_data(self, full: str, watch: Watch | None, *, missing: bool = False) -> Replied | None:
        """Return what keeps a watch with the reply to a question for a node; ``missing``: for one that is not there."""
        return _keeping(self._data, full, watch, missing=missing)

    def on_children(self, full: str, watch: Watch | None) -> Replied | None:
        """Return what keeps a watch with the reply to a question for a node's children."""
        return _keeping(self._children, full, watch, missing=False)

    def fire(self, kind: str, full: str) -> None:
        """Something has happened to a node."""
        if kind != EventType.CHILD:
            call(self._data.pop(full, ()))
        if kind in {EventType.CHILD, EventType.DELETED}:
            call(self._children.pop(full, ()))

    def lose(self) -> None:
        """The connection is gone, and the watches with it: nobody knows what changes meanwhile."""
        lost = [*self._data.values(), *self._children.values()]
        self._data.clear()
        self._children.clear()
        for watches in lost:
            call(watches)


def _keeping(watched: _Watched, full: str, watch: Watch | None, *, missing: bool) -> Replied | None:
    if watch is None:
        return None

    def replied(answer: Answer) -> None:
        # The member keeps it where the question has found what it was about.
        if answer.exception is None and (answer.value is None) == missing:
            watched.setdefault(full, {})[watch] = None

    return replied


def call(calls: Iterable[Callable[[], None]]) -> None:
    """Call all, whatever one of them does."""
    for each in [*calls]:
        try:
            each()
        except Exception:
            log.exception("a watch failed")

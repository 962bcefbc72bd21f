"""The watches of a connection: each is called once, and all when the connection is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kazoo.protocol.states import EventType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.zookeeper.ensemble.requests import OnReply
    from mainspring.engines.zookeeper.ensemble.wiring import Answer
    from mainspring.engines.zookeeper.tree import Watch

log = structlog.get_logger("mainspring.zookeeper")

_Watched = dict[str, dict["Watch", None]]


class Watches:
    """The watches of one connection, by the paths that they are on."""

    def __init__(self) -> None:
        self._data: _Watched = {}
        self._children: _Watched = {}

    def on_data(self, full: str, watch: Watch | None, *, missing: bool = False) -> OnReply | None:
        """Return the callback that registers a watch with the reply to a read; ``missing``: of a node that does not exist."""
        return _register(self._data, full, watch, missing=missing)

    def on_children(self, full: str, watch: Watch | None) -> OnReply | None:
        """Return the callback that registers a watch with the reply to a read of a node's children."""
        return _register(self._children, full, watch, missing=False)

    def fire(self, kind: str, full: str) -> None:
        """Call the watches of a node that has changed."""
        if kind != EventType.CHILD:
            call(self._data.pop(full, ()))
        if kind in {EventType.CHILD, EventType.DELETED}:
            call(self._children.pop(full, ()))

    def lose(self) -> None:
        """Call all watches: the connection is lost, and changes are no longer reported."""
        lost = [*self._data.values(), *self._children.values()]
        self._data.clear()
        self._children.clear()
        for watches in lost:
            call(watches)


def _register(watched: _Watched, full: str, watch: Watch | None, *, missing: bool) -> OnReply | None:
    if watch is None:
        return None

    def on_reply(answer: Answer) -> None:
        # The member has set the watch only if the node existed, or did not, as the read requires.
        if answer.exception is None and (answer.value is None) == missing:
            watched.setdefault(full, {})[watch] = None

    return on_reply


def call(calls: Iterable[Callable[[], None]]) -> None:
    """Call all, even if one of them fails."""
    for each in [*calls]:
        try:
            each()
        except Exception:
            log.exception("a watch failed")

"""The definitions of workflows in a node: it caches all of them, because each submission looks one up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.workflows.starting import unknown_version
from mainspring.workflows.store import FindDefinitions, SaveDefinitions
from mainspring.workflows.versions import LATELY_US, SEEN_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.workflows.builds import Build
    from mainspring.workflows.model import Definition

STARTUP_GRACE: Final = 10.0
"""Seconds after a node's start in which workers reconnect: all their versions are seen again at the same time, at its end."""


MOST_OF_NAMESPACE: Final = 10_000
"""Versions of workflows of a namespace: each is a row that every node has in memory, also without workers."""

LOOK_INTERVAL: Final = 1.0
ABSENCE: Final = 10.0
"""Seconds in which workers reconnect. After them, new runs get another version, if that has workers."""


class Definitions:
    """A cache of the stored definitions, on a node that calls ``tick`` about every second.

    ``added`` is called with the functions that became workflows.
    """

    def __init__(
        self, commits: CommitQueue, reads: Reads, clock: Clock, added: Callable[[Iterable[bytes]], None]
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._added = added
        self._write_at = self._look_at = clock.monotonic() + STARTUP_GRACE
        self._absent: dict[tuple[str, str, str], float] = {}
        """Since when versions have no workers, while others of their workflow have."""
        self._has_settled = False
        self._by_version: dict[tuple[str, str, str], Definition] = {}
        self._functions: set[bytes] = set()
        self._of_namespaces: Counter[str] = Counter()

    def load(self, then: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Read all definitions; no job of a workflow may be handed out as a task's before."""

        def found(definitions: Sequence[Definition]) -> None:
            self.keep(definitions)
            then()

        self._reads.ask(FindDefinitions(), found, failed)

    def is_workflow(self, function: bytes) -> bool:
        """Return whether a function is a workflow."""
        return function in self._functions

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""
        return self._functions

    def all(self) -> Iterable[Definition]:
        """Return all definitions."""
        return self._by_version.values()

    def full(self, definition: Definition) -> str:
        """Return why a version cannot be stored; empty if it can."""
        number = self._of_namespaces[definition.namespace]
        key = (definition.namespace, definition.name, definition.version)
        if key in self._by_version or number < MOST_OF_NAMESPACE:
            return ""
        return (
            f"the namespace {definition.namespace} has {number} versions of workflows, and may have {MOST_OF_NAMESPACE}: remove"
            " some that nothing needs, with mainspring workflows versions NAME --remove VERSION"
        )

    def version_problem(self, function: bytes, version: str) -> str:
        """Return why no run of a version can begin; empty if it can, or if the function is no workflow yet."""
        versions = [one for one in self.all() if one.function == function]
        if not versions or any(one.version == version for one in versions):
            return ""
        return unknown_version(function, version, versions)

    def define(
        self, definitions: Sequence[Definition], done: Callable[[], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Store definitions, unless they were seen just now."""
        now = self._clock.wall()
        fresh_us = to_us(now - SEEN_INTERVAL) if self._has_settled else 0
        if all(self._is_fresh(one, fresh_us, to_us(now)) for one in definitions):
            done()
            return

        def saved(everything: Sequence[Definition]) -> None:
            self.keep(everything)
            done()

        self._commits.put(SaveDefinitions(definitions, to_us(now)), saved, failed)

    def tick(self, connected: Callable[[], Iterable[Build]]) -> None:
        """Write each minute that the versions of connected workers are seen, and soon that others are gone."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        self._has_settled = True
        seen = {build[:3] for build in connected()}
        gone = self._gone(seen, now)
        if not seen or (now < self._write_at and not gone):
            return
        self._write_at = now + SEEN_INTERVAL
        operation = SaveDefinitions([], to_us(self._clock.wall()), seen=seen, gone=gone)
        operation.urgent = False
        self._commits.put(operation, self.keep)

    def _gone(self, connected: Collection[tuple[str, str, str]], now: float) -> list[tuple[str, str, str]]:
        """Return the versions that would get new runs, although they have had no worker for some time and others have one.

        It needs a store of one node: another node would not know these workers.
        """
        workflows = {key[:2] for key in connected}
        lately_us = to_us(self._clock.wall()) - LATELY_US
        absent = {
            key: self._absent.get(key, now)
            for key, one in self._by_version.items()
            if key[:2] in workflows and key not in connected and one.last_seen_us > lately_us
        }
        self._absent = absent
        return [key for key, since in absent.items() if now - since >= ABSENCE]

    def _is_fresh(self, definition: Definition, fresh_us: int, now_us: int) -> bool:
        stored = self._by_version.get((definition.namespace, definition.name, definition.version))
        if stored is None or stored.timeout != definition.timeout:
            return False
        return fresh_us <= stored.last_seen_us <= now_us  # later: the clock was ahead

    def keep(self, definitions: Iterable[Definition]) -> None:
        """Replace the cache by all stored definitions, and report the functions that are workflows from now on."""
        self._by_version = {(one.namespace, one.name, one.version): one for one in definitions}
        self._of_namespaces = Counter(namespace for namespace, _, _ in self._by_version)
        functions = {one.function for one in self._by_version.values()}
        added, self._functions = functions - self._functions, functions
        if added:
            self._added(sorted(added))

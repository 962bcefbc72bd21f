"""The definitions of workflows in a node: it caches all of them, because each submission looks one up.

Operators see the versions of a workflow: how many runs and workers have each, and which one is not needed any more, so that it
can be removed. `store.SaveDefinitions` stores definitions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.access.audit import Acting
from mainspring.callbacks import shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.storage.engine import Phase, Query
from mainspring.workflows.model import LATELY_US, SEEN_INTERVAL, decision_function, version_for_new_runs
from mainspring.workflows.starting import unknown_version
from mainspring.workflows.store import CountParked, FindDefinitions, SaveDefinitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.decider_workers import Build, Builds
    from mainspring.workflows.model import Definition

STARTUP_GRACE: Final = 10.0
"""Seconds after a node's start in which workers reconnect: all their versions are seen again at the same time, at its end."""


MOST_OF_NAMESPACE: Final = 10_000
"""Versions of workflows of a namespace: each is a row that every node has in memory, also without workers."""

LOOK_INTERVAL: Final = 1.0
ABSENCE: Final = 10.0
"""Seconds in which workers reconnect. After them, new runs get another version, if that has workers."""
REFUSAL: Final = 1.0
"""Seconds without another attempt to store definitions beside a node of an earlier version: all workers try again meanwhile."""
WARNING_INTERVAL: Final = 60.0
"""Seconds between two warnings about such nodes."""

log = structlog.get_logger("mainspring.workflows")


class Definitions:
    """A cache of the stored definitions, on a node that calls ``tick`` about every second.

    ``added`` is called with the functions that became workflows. `Watch` reads those that other nodes have added,
    and calls ``keep``. ``served_elsewhere`` returns whether a function of decisions may have a worker at another node.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        added: Callable[[Iterable[bytes]], None],
        *,
        served_elsewhere: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._served_elsewhere = served_elsewhere
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._added = added
        self._write_at = self._look_at = clock.monotonic() + STARTUP_GRACE
        self._absent: dict[tuple[str, str, str], float] = {}
        """Since when versions have no workers, while others of their workflow have."""
        self._has_settled = False
        self._refused_until = self._warn_at = clock.monotonic()
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

    def any(self) -> bool:
        """Return whether there are workflows."""
        return bool(self._functions)

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

    @shielded
    async def define(self, definitions: Sequence[Definition]) -> None:
        """Store definitions, unless they were seen just now. Raises ConflictError while an older node shares the store."""
        now = self._clock.wall()
        fresh_us = to_us(now - SEEN_INTERVAL) if self._has_settled else 0
        if all(self._is_fresh(one, fresh_us, to_us(now)) for one in definitions):
            return
        if self._clock.monotonic() >= self._refused_until:
            self.keep(await self._commits.committed(SaveDefinitions(definitions, to_us(now))))
            if all((one.namespace, one.name, one.version) in self._by_version for one in definitions):
                return
            self._refused_until = self._clock.monotonic() + REFUSAL
            self._warn()
        raise ConflictError("a node of a version without workflows shares the store")

    def _warn(self) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARNING_INTERVAL
            log.warning(
                "workflows wait for the end of nodes of an earlier version, which share the store",
                do="upgrade all nodes; `mainspring nodes list` shows their versions",
            )

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
        """Return the versions that would get new runs, although they have had no worker for some time and others have one."""
        workflows = {key[:2] for key in connected}
        lately_us = to_us(self._clock.wall()) - LATELY_US
        absent = {
            key: self._absent.get(key, now)
            for key, one in self._by_version.items()
            if key[:2] in workflows
            and key not in connected
            and one.last_seen_us > lately_us
            and not self._served_elsewhere(decision_function(*key))
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


class CountOpen(Query["dict[tuple[str, str, str], int]"], frozen=True):
    """Count open runs by namespace, type and version."""


class RemoveDefinition(Acting):
    """Remove a definition. Guards: it exists, no open run has it, and new runs do not get it. Outcome: ``Removed``."""

    phase = Phase.SLICES
    namespace: str
    name: str
    version: str

    def recorded(self, outcome: Removed) -> Act | None:
        """Return the act, if the definition was removed."""
        return None if outcome.problem else self.act


class Removed(NamedTuple):
    """The outcome of RemoveDefinition."""

    problem: str
    """``unknown``, ``open`` or ``newest``; empty if it was removed."""
    definitions: list[Definition]
    """All that are left."""


async def remove_definition(changes: RunChanges, operation: RemoveDefinition) -> Removed:
    """Remove a definition; see `RemoveDefinition`."""
    namespace, name, version = operation.namespace, operation.name, operation.version
    tables = changes.tables
    versions = await tables.definitions(namespace, name)
    newest = version_for_new_runs(versions)
    if all(one.version != version for one in versions):
        problem = "unknown"
    elif await changes.has_open_run(namespace, name, version):
        problem = "open"
    elif newest is not None and newest.version == version:
        problem = "newest"
    else:
        await tables.remove_definition(namespace, name, version)
        problem = ""
    return Removed(problem, await tables.definitions())


class VersionRow(NamedTuple):
    """A version of a workflow."""

    namespace: str
    type: str
    version: str
    open: int
    """Open runs."""
    parked: int
    """Those of them that are parked."""
    workers: int
    """Connected workers with its code."""
    last_seen_us: int
    """When such a worker was last connected; 0: never."""
    gets_new_runs: bool
    """Whether runs without a stated version begin with it."""

    @property
    def needed(self) -> bool:
        """Whether runs need its code: open ones or new ones."""
        return self.open > 0 or self.gets_new_runs


class VersionTable:
    """The versions of a store. ``workers_elsewhere`` returns how many workers of other nodes have a function of decisions."""

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        definitions: Definitions,
        builds: Builds,
        workers_elsewhere: Callable[[bytes], int] = lambda _: 0,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._definitions = definitions
        self._builds = builds
        self._workers_elsewhere = workers_elsewhere

    async def list(self, namespace: str, name: str | None) -> Sequence[VersionRow]:
        """Return the versions of a workflow, or of all of a namespace, by their names; the one first seen last comes first."""
        definitions = await self._reads.read(FindDefinitions())
        of = [one for one in definitions if one.namespace == namespace and name in {None, one.name}]
        open_runs = await self._reads.read(CountOpen())
        return self._rows(of, open_runs, await self._reads.read(CountParked()))

    def _rows(
        self,
        definitions: Iterable[Definition],
        open_runs: Mapping[tuple[str, str, str], int],
        parked: Mapping[tuple[str, str, str], int],
    ) -> Sequence[VersionRow]:
        by_name: dict[str, list[Definition]] = {}
        for one in definitions:
            by_name.setdefault(one.name, []).append(one)
        now_us = to_us(self._clock.wall())
        rows = []
        for _, versions in sorted(by_name.items()):
            newest = version_for_new_runs(versions)
            versions.sort(key=lambda one: (one.first_seen_us, one.version), reverse=True)
            for one in versions:
                key = (one.namespace, one.name, one.version)
                workers = self.workers(*key)
                seen_us = now_us if workers else one.last_seen_us
                rows.append(
                    VersionRow(*key, open_runs.get(key, 0), parked.get(key, 0), workers, seen_us, one is newest)
                )
        return rows

    def workers(self, namespace: str, name: str, version: str) -> int:
        """Return how many workers have a version: those of other nodes as of their last heartbeats."""
        elsewhere = self._workers_elsewhere(decision_function(namespace, name, version))
        return self._builds.workers(namespace, name, version) + elsewhere

    @shielded
    async def remove(self, namespace: str, name: str, version: str, act: Act | None = None) -> bool:
        """Remove a version that nothing needs; return whether it existed. Raises ConflictError if it is needed."""
        if workers := self.workers(namespace, name, version):
            raise ConflictError(
                f"version {version} of the workflow {name} has connected workers ({workers}): stop them, or delete the"
                " version in their code"
            )
        removed: Removed = await self._commits.committed(RemoveDefinition(namespace, name, version, act=act))
        self._definitions.keep(removed.definitions)
        if removed.problem == "open":
            raise ConflictError(
                f"version {version} of the workflow {name} has open runs: wait for their ends; mainspring workflows list"
                f" --open --type {name} lists them"
            )
        if removed.problem == "newest":
            raise ConflictError(
                f"version {version} of the workflow {name} gets the new runs: start a worker with another version, and"
                " wait for ten seconds"
            )
        return not removed.problem

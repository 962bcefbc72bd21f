"""The connected workers that decide runs, with the reports about their memory, for operators.

`Builds` has the code of the connected workers: which worker has which build of a workflow's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from mainspring.jobs.held import Worker

if TYPE_CHECKING:
    Build = tuple[str, str, str, str]
    """Namespace, name and version of a definition, and the digest of its code."""


class Builds:
    """The builds of the connected workers."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str, str], dict[str, dict[Worker, None]]] = {}
        """By definition and digest."""

    def all(self) -> Iterable[Build]:
        """Return all connected builds, each once."""
        return [(*definition, digest) for definition, digests in self._workers.items() for digest in digests]

    def connected(self, build: Build, worker: Worker) -> bool:
        """Note that a worker has a build; return whether it is the first one."""
        namespace, name, version, digest = build
        workers = self._workers.setdefault((namespace, name, version), {}).setdefault(digest, {})
        workers[worker] = None
        return len(workers) == 1

    def disconnected(self, build: Build, worker: Worker) -> None:
        """Note that a worker with a build has gone."""
        namespace, name, version, digest = build
        digests = self._workers.get((namespace, name, version), {})
        workers = digests.get(digest, {})
        workers.pop(worker, None)
        if not workers:
            digests.pop(digest, None)
        if not digests:
            self._workers.pop((namespace, name, version), None)

    def workers(self, namespace: str, name: str, version: str) -> int:
        """Return how many workers have a definition."""
        return sum(map(len, self._workers.get((namespace, name, version), {}).values()))

    def other_than(
        self, failed: Collection[str], definition: tuple[str, str, str], cached: Worker | None
    ) -> Worker | None:
        """Return a worker with a build of a definition that has not failed, preferably ``cached`` or one with credit."""
        digests = self._workers.get(definition, {})
        able = [worker for digest, workers in digests.items() if digest not in failed for worker in workers]
        if cached in able:
            return cached
        return next((worker for worker in able if worker.credit > 0), able[0] if able else None)


class CacheReport(NamedTuple):
    """A worker's memory for runs, as the worker reports it. The last four count since its start."""

    runs: int = 0
    bytes: int = 0
    limit: int = 0
    decisions: int = 0
    hits: int = 0
    """Decisions of runs that were in memory."""
    replays: int = 0
    """Decisions for which a history was replayed."""
    evictions: int = 0
    """Runs that left the memory because it was full."""


class DeciderRow(NamedTuple):
    """A worker that decides runs."""

    namespace: str
    worker: str
    versions: list[str]
    """Such as ``order@2``."""
    decisions: int
    """Decisions that it makes now."""
    steps: int
    """Those of them that only keep a step, as of the worker's last report: they take no places."""
    places: int
    """Decisions that it may have at a time besides these."""
    draining: bool
    cache: CacheReport | None
    """None: it has not reported."""


class _Decider:
    __slots__ = ("cache", "draining", "namespace", "places", "steps", "versions")

    def __init__(self) -> None:
        self.namespace = DEFAULT
        self.versions: dict[str, None] = {}
        self.cache: CacheReport | None = None
        self.draining = False
        self.steps = self.places = 0


class DeciderWorkers:
    """The workers of a node that decide runs."""

    def __init__(self) -> None:
        self._deciders: dict[Worker, _Decider] = {}

    def registered(self, worker: Worker, build: Build) -> None:
        """Note that a worker has a definition."""
        decider = self._deciders.setdefault(worker, _Decider())
        decider.namespace = build[0]
        decider.versions[f"{build[1]}@{build[2]}"] = None

    def reported(self, worker: Worker, cache: CacheReport) -> None:
        """Keep a worker's last report."""
        self._deciders.setdefault(worker, _Decider()).cache = cache

    def has_places(self, worker: Worker, places: int, steps: int) -> None:
        """Keep the number of a worker's places for decisions, and of its decisions that take none."""
        decider = self._deciders.setdefault(worker, _Decider())
        decider.places, decider.steps = places, steps

    def drains(self, worker: Worker) -> None:
        """Note that a worker takes no more decisions."""
        self._deciders.setdefault(worker, _Decider()).draining = True

    def gone(self, worker: Worker) -> None:
        """Forget a worker whose connection has ended."""
        self._deciders.pop(worker, None)

    def rows(self, namespace: str) -> Iterator[DeciderRow]:
        """Return the workers of a namespace in the order of their registrations."""
        for worker, one in self._deciders.items():
            if one.namespace == namespace:
                yield self.row(worker)

    def row(self, worker: Worker) -> DeciderRow:
        """Return one of the workers."""
        one = self._deciders[worker]
        name = worker.connection.name()
        decisions = len(worker.running)
        versions = list(one.versions)
        return DeciderRow(one.namespace, name, versions, decisions, one.steps, one.places, one.draining, one.cache)

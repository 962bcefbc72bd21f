"""The connected workers that decide runs, with the reports about their memory, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.jobs.held import Worker
    from mainspring.workflows.builds import Build


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
            if one.namespace != namespace:
                continue
            name = worker.connection.name()
            decisions = len(worker.running)
            yield DeciderRow(name, list(one.versions), decisions, one.steps, one.places, one.draining, one.cache)

"""The code of the connected workers: which worker has which build of a workflow's version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mainspring.jobs.held import Worker

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

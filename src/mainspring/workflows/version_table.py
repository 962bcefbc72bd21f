"""The versions of workflows, for operators: how many runs and workers have each, and which one is not needed any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.workflows.definition_store import CountOpen, RemoveDefinition
from mainspring.workflows.store import FindDefinitions
from mainspring.workflows.versions import version_for_new_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.access.acts import Act
    from mainspring.clock import Clock
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.workflows.builds import Builds
    from mainspring.workflows.definition_store import Removed
    from mainspring.workflows.definitions import Definitions
    from mainspring.workflows.model import Definition
    from mainspring.workflows.requests import Failed


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
    """The versions of a node. ``parked`` returns the parked runs by namespace, type and version."""

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        definitions: Definitions,
        builds: Builds,
        parked: Callable[[], Mapping[tuple[str, str, str], int]],
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._definitions = definitions
        self._builds = builds
        self._parked = parked

    def list(
        self, namespace: str, name: str | None, done: Callable[[Sequence[VersionRow]], None], failed: Failed
    ) -> None:
        """Read the versions of a workflow, or of all of a namespace, by their names; the one first seen last comes first."""

        def found(definitions: Collection[Definition]) -> None:
            of = [one for one in definitions if one.namespace == namespace and name in {None, one.name}]
            self._reads.ask(CountOpen(), lambda open_runs: done(self._rows(of, open_runs)), failed)

        self._reads.ask(FindDefinitions(), found, failed)

    def _rows(
        self, definitions: Iterable[Definition], open_runs: Mapping[tuple[str, str, str], int]
    ) -> Sequence[VersionRow]:
        by_name: dict[str, list[Definition]] = {}
        for one in definitions:
            by_name.setdefault(one.name, []).append(one)
        now_us, parked = to_us(self._clock.wall()), self._parked()
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
        """Return how many connected workers have a version."""
        return self._builds.workers(namespace, name, version)

    def remove(
        self,
        namespace: str,
        name: str,
        version: str,
        done: Callable[[bool], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Remove a version that nothing needs; ``done`` is called with whether it existed.

        ``failed`` gets a ConflictError if it is needed.
        """
        if workers := self.workers(namespace, name, version):
            failed(
                ConflictError(
                    f"version {version} of the workflow {name} has connected workers ({workers}): stop them, or delete the"
                    " version in their code"
                )
            )
            return

        def removed(outcome: Removed) -> None:
            self._definitions.keep(outcome.definitions)
            if outcome.problem == "open":
                failed(
                    ConflictError(
                        f"version {version} of the workflow {name} has open runs: wait for their ends; mainspring workflows list"
                        f" --open --type {name} lists them"
                    )
                )
            elif outcome.problem == "newest":
                failed(
                    ConflictError(
                        f"version {version} of the workflow {name} gets the new runs: start a worker with another version, and"
                        " wait for ten seconds"
                    )
                )
            else:
                done(not outcome.problem)

        self._commits.put(RemoveDefinition(namespace, name, version, act), removed, failed)

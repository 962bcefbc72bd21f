"""Operations and queries on the definitions of workflows besides `store.SaveDefinitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.access.audit import Acting
from mainspring.storage.phases import Phase
from mainspring.storage.query import Query
from mainspring.workflows.versions import version_for_new_runs

if TYPE_CHECKING:
    from mainspring.access.acts import Act
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.model import Definition


class CountOpen(Query["dict[tuple[str, str, str], int]"], frozen=True):
    """Count open runs by namespace, type and version."""


class RemoveDefinition(Acting):
    """Remove a definition. Guards: it exists, no open run has it, and new runs do not get it. Outcome: ``Removed``."""

    __slots__ = ("name", "namespace", "version")

    phase = Phase.SLICES

    def __init__(self, namespace: str, name: str, version: str, act: Act | None = None) -> None:
        super().__init__(act)
        self.namespace = namespace
        self.name = name
        self.version = version

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

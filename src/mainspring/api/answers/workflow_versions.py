"""Calls about the versions of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.workflows import Remove, RemovedVersion, VersionInfo, VersionList, Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.api.answers.registry import Handlers
    from mainspring.errors import MainspringError
    from mainspring.workflows.version_table import VersionRow

    Failed = Callable[[MainspringError], None]


class Table(Protocol):
    """The versions of a node; `workflows.version_table` implements it."""

    def list(self, name: str | None, done: Callable[[Sequence[VersionRow]], None], failed: Failed) -> None:
        """Read the versions of a workflow, or of all."""

    def remove(self, name: str, version: str, done: Callable[[bool], None], failed: Failed) -> None:
        """Remove a version that nothing needs; ``done`` is called with whether it existed."""


class VersionCalls:
    """Answers for the versions of a node's workflows."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.handlers: Handlers = {Versions: self._versions, Remove: self._remove}

    async def _versions(self, request: Versions) -> VersionList:
        rows = await self._rows(request.type)
        if request.type is not None and not rows:
            raise _unknown(request.type)
        return VersionList([_info(row) for row in rows])

    async def _remove(self, request: Remove) -> RemovedVersion:
        existed: bool = await Later(
            lambda done, failed: self._table.remove(request.type, request.version, done, failed)
        )
        if not existed:
            versions = ", ".join(row.version for row in await self._rows(request.type))
            if not versions:
                raise _unknown(request.type)
            raise ApiError(
                Code.WORKFLOW_NOT_FOUND,
                f"the workflow {request.type} has no version {request.version}; it has: {versions}",
            )
        return RemovedVersion(request.type, request.version, "removed")

    async def _rows(self, name: str | None) -> Sequence[VersionRow]:
        rows: Sequence[VersionRow] = await Later(lambda done, failed: self._table.list(name, done, failed))
        return rows


def _unknown(name: str) -> ApiError:
    return ApiError(
        Code.WORKFLOW_NOT_FOUND,
        f"no worker has registered a workflow named {name}; mainspring workflows versions lists those there are",
    )


def _info(row: VersionRow) -> VersionInfo:
    return VersionInfo(
        type=row.type,
        version=row.version,
        open=row.open,
        parked=row.parked,
        workers=row.workers,
        last_seen_at=rfc3339(row.last_seen_us),
        gets_new_runs=row.gets_new_runs,
        removable=row.removable,
    )

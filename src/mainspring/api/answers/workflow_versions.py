"""Calls about the versions of workflows, and about the workers that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainspring.api.answers.page_size import names_in_row
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.workflow_versions import (
    CacheInfo,
    DeciderInfo,
    DeciderList,
    Remove,
    RemovedVersion,
    VersionInfo,
    VersionList,
    Versions,
    Workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.access.acts import Act
    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.workflows.decider_workers import DeciderRow
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.version_table import VersionRow


class Table(Protocol):
    """The versions of a node; `workflows.version_table` implements it."""

    def list(
        self, namespace: str, name: str | None, done: Callable[[Sequence[VersionRow]], None], failed: Failed
    ) -> None:
        """Read the versions of a workflow, or of all of a namespace."""

    def remove(
        self,
        namespace: str,
        name: str,
        version: str,
        done: Callable[[bool], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Remove a version that nothing needs; ``done`` is called with whether it existed."""


class VersionCalls:
    """Answers for the versions of a node's workflows, and for the workers that decide their runs."""

    def __init__(self, table: Table, deciders: Callable[[str], Iterable[DeciderRow]]) -> None:
        self._table = table
        self._deciders = deciders
        self.handlers: Handlers = {Versions: self._versions, Remove: self._remove, Workers: self._workers}

    async def _versions(self, request: Versions) -> VersionList:
        rows = await self._rows(request.namespace, request.type)
        if request.type is not None and not rows:
            raise _unknown(request.type)
        return VersionList([_info(row) for row in rows])

    async def _remove(self, request: Remove, caller: Caller) -> RemovedVersion:
        version = request.namespace, request.type, request.version
        act = caller.act(request.call, f"{request.type}@{request.version}", namespace=request.namespace)
        existed: bool = await Later(lambda done, failed: self._table.remove(*version, done, failed, act))
        if not existed:
            versions = ", ".join(row.version for row in await self._rows(request.namespace, request.type))
            if not versions:
                raise _unknown(request.type)
            raise ApiError(
                Code.WORKFLOW_NOT_FOUND,
                f"the workflow {request.type} has no version {request.version}; it has: {versions}",
            )
        return RemovedVersion(request.type, request.version, "removed")

    async def _workers(self, request: Workers) -> DeciderList:
        return DeciderList(
            [
                DeciderInfo(
                    worker=row.worker,
                    versions=names_in_row(row.versions),
                    decisions=row.decisions,
                    steps=row.steps,
                    places=row.places,
                    full=row.decisions - row.steps >= row.places,
                    draining=row.draining,
                    cache=None if row.cache is None else CacheInfo(**row.cache._asdict()),
                )
                for row in self._deciders(request.namespace)
            ]
        )

    async def _rows(self, namespace: str, name: str | None) -> Sequence[VersionRow]:
        rows: Sequence[VersionRow] = await Later(lambda done, failed: self._table.list(namespace, name, done, failed))
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
        needed=row.needed,
    )

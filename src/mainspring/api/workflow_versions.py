"""Calls about the versions of workflows, and about the workers that have them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.request import Request, Touches
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations


class VersionInfo(msgspec.Struct):
    """A version of a workflow."""

    type: str
    version: str
    open: int
    """Open runs with this version."""
    parked: int
    """Those of them that are parked."""
    workers: int
    """Connected workers that have it."""
    last_seen_at: str | None
    """When such a worker was last connected; None: never."""
    gets_new_runs: bool
    """Whether runs without a stated version begin with it."""
    needed: bool
    """Whether runs need its code: open ones or new ones."""


class VersionList(msgspec.Struct):
    """The versions of workflows, by the names of these; the newest version comes first."""

    versions: list[VersionInfo]
    next: str | UnsetType = UNSET
    """The value of ``after`` for the next page; left out: there are no more."""


class RemovedVersion(msgspec.Struct):
    """A version that nothing needed."""

    type: str
    version: str
    state: Literal["removed"]


class CacheInfo(msgspec.Struct):
    """A worker's memory for runs, as of its last report. The last four count since its start."""

    runs: int
    bytes: int
    limit: int
    decisions: int
    hits: int
    replays: int
    evictions: int


class DeciderInfo(msgspec.Struct):
    """A connected worker that decides runs."""

    worker: str
    versions: list[str]
    """Such as ``order@2``."""
    decisions: int
    """Decisions that it has now."""
    steps: int
    """Those of them that only keep a step, which runs or waits for its next attempt, as of the worker's last report."""
    places: int
    """Decisions that it takes at a time, besides these."""
    full: bool
    """Whether all of its places are taken: it gets no further decision until one of them ends."""
    draining: bool
    """Whether it takes no more of them, because it ends."""
    cache: CacheInfo | None
    """None: it has not reported, as workers of earlier versions."""


class DeciderList(msgspec.Struct):
    """The connected workers that decide runs."""

    workers: list[DeciderInfo]
    next: str | UnsetType = UNSET
    """The value of ``after`` for the next page; left out: there are no more."""


class Versions(Request[VersionList]):
    """The versions of a workflow, or of all. Codes: ``workflow_not_found``."""

    permission = Permission.READ
    call = "workflows.versions"
    rows = "versions"
    type: Text | None = None
    after: Text | None = None


class Remove(Request[RemovedVersion]):
    """Remove a version of a workflow that nothing needs. Codes: ``workflow_not_found``, ``conflict``."""

    permission = Permission.DEVELOP
    touches = Touches.FUNCTION
    function_field = "type"
    call = "workflows.remove"
    type: Text
    version: Text


class Workers(Request[DeciderList]):
    """The connected workers that decide runs. Codes: none of its own."""

    permission = Permission.READ
    call = "workflows.workers"
    rows = "workers"
    after: Text | None = None

"""Calls about the workers that are connected to the nodes of a store."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.request import Request, Touches
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations


class WorkerInfo(msgspec.Struct):
    """A connected worker; docs/reference/protocol.md explains the keys."""

    id: str
    name: str
    node: str
    term: int
    """Of its node."""
    client: str
    """``extension`` or ``gearman``: its protocol."""
    state: str
    """``live``, ``silent`` or ``draining``."""
    slots: int | None
    """How many jobs it runs at a time, if it has declared it."""
    running: int
    connected_at: str | None
    version: str | None
    """Its version of Mainspring; None if unknown."""
    stops: bool
    """Whether it stops on request."""
    silent_since: str | None
    """Since when it has sent nothing although it should; it gets no work until it sends something."""


class WorkerDecisions(msgspec.Struct):
    """The decisions of workflows that a worker has."""

    running: int
    steps: int
    """Those of them that only keep a step, as of the worker's last report."""
    places: int
    """Decisions that it takes at a time, besides these."""
    full: bool
    """Whether all of its places are taken: it gets no further decision until one of them ends."""


class WorkerDetails(WorkerInfo):
    """A worker with its functions and jobs; both are None for a worker of another node than the one that answers."""

    functions: list[str] | None
    jobs: list[str] | None
    """The handles of running jobs, at most 1,000."""
    decisions: WorkerDecisions | None
    """None also for a worker that decides no runs."""


class Listed(msgspec.Struct):
    """A page of workers, sorted by their nodes' terms."""

    workers: list[WorkerInfo]
    next: str | None
    """The value of ``after`` for the next page; None on the last one."""


class List(Request[Listed]):
    """The workers of a namespace at all nodes; of each other node the first 200, as of its last heartbeat. Codes: ``invalid``."""

    permission = Permission.READ
    call = "workers.list"
    rows = "workers"
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = PAGE_LIMIT
    after: Text | None = None


class Show(Request[WorkerDetails]):
    """One worker. Codes: ``worker_not_found``."""

    permission = Permission.READ
    call = "workers.show"
    worker: Text
    """Its id."""


class Drain(Request[WorkerInfo]):
    """Give a worker no more jobs of tasks, or give it jobs again. Codes: ``worker_not_found``."""

    permission = Permission.OPERATE
    touches = Touches.ALL
    call = "workers.drain"
    worker: Text
    draining: bool = True


class Stop(Request[WorkerInfo]):
    """Ask a worker to stop once its jobs have ended. Codes: ``worker_not_found``, ``conflict`` if it takes no such requests."""

    permission = Permission.OPERATE
    touches = Touches.ALL
    call = "workers.stop"
    worker: Text

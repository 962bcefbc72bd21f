"""The status of a node, as ``mainspring status`` shows it."""

from __future__ import annotations

import heapq
import os
from typing import TYPE_CHECKING, Final

from mainspring.api.handlers.text import rfc3339
from mainspring.api.nodes import (
    CommitNumbers,
    FunctionStatus,
    JobNumbers,
    NodeStatus,
    SetAsideStatus,
    WaitingJobs,
    WorkflowStatus,
)
from mainspring.clock import to_us
from mainspring.jobs.held import FunctionQueue
from mainspring.namespaces import namespace_of
from mainspring.version import version
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.faces.gearman.peers import Peers
    from mainspring.jobs.service import JobService
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.settings import ServerSettings
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.set_aside import SetAside
    from mainspring.workflows.service import WorkflowService

STATUS_FUNCTIONS: Final = 1000
"""Functions in one status, at most: those with the most jobs."""
MOST_VERSIONS: Final = 1000
"""Versions of workflows in one status, at most."""


class Status:
    """Reads a node's status. ``started`` is the monotonic time of its start, by ``clock``."""

    def __init__(
        self,
        settings: ServerSettings,
        service: JobService,
        peers: Peers,
        commits: CommitQueue,
        schedules: ScheduleService,
        clock: Clock,
        started: float,
        workflows: WorkflowService | None,
        set_aside: SetAside,
    ) -> None:
        self._settings = settings
        self._service = service
        self._peers = peers
        self._commits = commits
        self._schedules = schedules
        self._clock = clock
        self._started = started
        self._workflows = workflows
        self._set_aside = set_aside

    def read(self, namespace: str, sees: Callable[[str], bool] | None, everything: bool) -> NodeStatus:
        """Return the current status, with the functions and workflows of a namespace that a predicate accepts, or all of them.

        Without ``everything``, no number counts jobs, workers or functions of others.
        """
        service = self._service
        own = [queue for queue in service.all_functions() if namespace_of(queue.name) == namespace]
        if sees is not None:
            own = [queue for queue in own if sees(function_text(queue.name))]
        functions = own if len(own) <= STATUS_FUNCTIONS else heapq.nlargest(STATUS_FUNCTIONS, own, FunctionQueue.total)
        workers = [worker for worker in service.workers() if worker.abilities]
        if not everything:
            seen = {queue.name for queue in own}
            workers = [worker for worker in workers if any(queue.name in seen for queue in worker.abilities)]
        return NodeStatus(
            version=version(),
            name=self._settings.name,
            term=service.term,
            store=self._settings.store.shown if everything else self._settings.store.shown.partition(":")[0],
            pid=os.getpid() if everything else None,
            uptime=round(self._clock.monotonic() - self._started, 3),
            connections=len(self._peers.connected) if everything else None,
            schedules=self._schedules.fires,
            workers=len({worker.beside or worker for worker in workers}),
            known_functions=service.number_of_functions if everything else len(own),
            jobs=_sum(service.queues(), *service.jobs_of_others) if everything else _sum(own),
            commits=CommitNumbers(self._commits.groups, self._commits.jobs) if everything else None,
            functions=[_function(queue) for queue in functions],
            workflows=[]
            if self._workflows is None
            else [one for one in self._versions(self._workflows, namespace) if sees is None or sees(one.type)],
            set_aside=[
                SetAsideStatus(one.kind, one.name.replace("\x1f", "/"), rfc3339(to_us(one.since)), one.fault)
                for one in self._set_aside.entries()
            ]
            if everything
            else [],
        )

    @staticmethod
    def _versions(workflows: WorkflowService, namespace: str) -> list[WorkflowStatus]:
        counts = workflows.counts()
        versions = sorted(
            (one.namespace, one.name, one.version) for one in workflows.definitions.all() if one.namespace == namespace
        )
        return [  # the versions of workflows are listed page by page elsewhere
            WorkflowStatus(
                *key[1:], workflows.versions.workers(*key), counts.parked.get(key, 0), counts.stranded.get(key, 0)
            )
            for key in versions[:MOST_VERSIONS]
        ]


def _sum(functions: Iterable[FunctionQueue], total: int = 0, waiting: int = 0) -> JobNumbers:
    """Return the numbers of the jobs of functions, added to those of others."""
    running = 0
    for queue in functions:
        total += queue.total()
        running += queue.running
        waiting += queue.size + sum(queue.backlog)
    return JobNumbers(total, running, waiting)


def _function(queue: FunctionQueue) -> FunctionStatus:
    return FunctionStatus(
        function=function_text(queue.name),
        total=queue.total(),
        running=queue.running,
        workers=sum(queue.workers.values()),
        waiting=WaitingJobs(*queue.waiting_by_priority()),
    )

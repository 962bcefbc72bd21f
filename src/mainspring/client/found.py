"""Jobs and runs that a server has listed, with the rows that it has listed them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.client.asking import OnServers
from mainspring.client.job import SubmittedJob
from mainspring.client.run import Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mainspring.api.jobs import JobInfo
    from mainspring.api.submitting import Submission
    from mainspring.api.workflows import RunInfo, StartedRun
    from mainspring.client.connections import Connections
    from mainspring.client.job import Job


class ListedJob(SubmittedJob[bytes]):
    """A job that a server has listed. ``row`` is what the server had about it then; its result is bytes."""

    __slots__ = ("row",)

    def __init__(self, connections: Connections, row: JobInfo) -> None:
        super().__init__(connections, row.handle, bytes)
        self.row = row


class ListedRun(Run[bytes]):
    """A run that a server has listed. ``row`` is what the server had about it then; its result is bytes."""

    def __init__(self, connections: Connections, row: RunInfo) -> None:
        super().__init__(connections, row.run, bytes)
        self.row = row


class FindsJobs(OnServers):
    """Makes jobs of answers."""

    def _as_job(self, submitted: Submission) -> Job[bytes]:
        return SubmittedJob(self._connections, submitted.handle or "", bytes, joined=bool(submitted.joined))

    def _as_listedjob(self, row: JobInfo | None) -> Any:
        return None if row is None else ListedJob(self._connections, row)

    def _each_listedjob(self, rows: Iterator[JobInfo]) -> Iterator[ListedJob]:
        return (ListedJob(self._connections, row) for row in rows)

    def _aeach_listedjob(self, rows: AsyncIterator[JobInfo]) -> AsyncIterator[ListedJob]:
        return (ListedJob(self._connections, row) async for row in rows)


class FindsRuns(OnServers):
    """Makes runs of answers."""

    def _as_run(self, started: StartedRun) -> Run[bytes]:
        return Run(self._connections, started.handle, bytes, joined=started.joined)

    def _as_listedrun(self, row: RunInfo | None) -> Any:
        return None if row is None else ListedRun(self._connections, row)

    def _each_listedrun(self, rows: Iterator[RunInfo]) -> Iterator[ListedRun]:
        return (ListedRun(self._connections, row) for row in rows)

    def _aeach_listedrun(self, rows: AsyncIterator[RunInfo]) -> AsyncIterator[ListedRun]:
        return (ListedRun(self._connections, row) async for row in rows)

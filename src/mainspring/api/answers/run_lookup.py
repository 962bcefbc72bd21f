"""Runs by the keys that requests give, and the rows of runs in answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring.api.answers.run_rows import run_handle, run_info, unbegun_info
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.clock import to_us
from mainspring.namespaces import ANY
from mainspring.storage.set_aside import REMEDY
from mainspring.workflows.model import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.workflows import RunInfo
    from mainspring.jobs.service import JobService
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import Shown, ShownRun, Unbegun

KEY_LIMIT: Final = 128
"""Bytes of a key: more than any unique, and any handle with a run."""
UNBEGUN_END: Final = frozenset({"cancelled", "expired"})
"""The states of jobs that ended before a worker or a run began."""


class ShowsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def show(self, key: Key, done: Callable[[Shown], None], failed: Failed) -> None:
        """Read one run; without one, the jobs that the key may name, whose runs have not begun."""


class RunLookup:
    """Finds the runs of a node by their keys."""

    def __init__(self, workflows: ShowsRuns, service: JobService, jobs: JobCalls) -> None:
        self._workflows = workflows
        self._service = service
        self._jobs = jobs

    def key(self, namespace: str, text: str) -> Key:
        """Return the key of a run of a namespace from its text. Raises ApiError."""
        if not 0 < len(text.encode()) <= KEY_LIMIT:
            raise ApiError(Code.INVALID, "a run has a handle, such as H:node:1000000000001, or a workflow id: give one")
        handle, _, run = text.rpartition("@")
        if self._service.id_of(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
            return Key(run=int(run), namespace=namespace)
        root = self._service.id_of(text.encode())
        return Key(job=root or 0, workflow_id=text if root is None else "", namespace=namespace)

    def run_id(self, text: str) -> int:
        """Return the number of the run that a page continues after. Raises ApiError."""
        key = self.key(ANY, text)
        if key.workflow_id:
            raise ApiError(Code.INVALID, f"{text!r} is not the `next` of an earlier answer, nor a run's handle")
        return key.run or key.job

    def handle(self, root: int, run: int) -> str:
        """Return the handle of one run of a root job."""
        return run_handle(self._service.handle_of(root).decode(), run)

    async def show(self, key: Key) -> Shown:
        """Return the run of a key; without one, the jobs that the key may name."""
        shown: Shown = await Later(lambda done, failed: self._workflows.show(key, done, failed))
        return shown

    async def find(self, namespace: str, key: str) -> ShownRun | Unbegun:
        """Return the run of a key, or the job whose run is to begin. Raises ApiError."""
        shown = await self.show(self.key(namespace, key))
        if not isinstance(shown, list):
            return shown
        if not shown:
            raise await self.unknown(namespace, key)
        if len(shown) > 1:
            raise ambiguous(key)
        return shown[0]

    async def unknown(self, namespace: str, key: str) -> ApiError:
        """Return the refusal of a key that names no run."""
        job_id = self.key(namespace, key).job
        job = await self._jobs.find(job_id, namespace) if job_id else None
        if job is None:
            return ApiError(
                Code.RUN_NOT_FOUND,
                f"no run has the handle or workflow id {key}: it never existed here, or is no longer kept; mainspring workflows"
                " list shows those there are",
            )
        held = self._service.find_held(job_id)
        if held is not None and not held.stored:
            why = f"a client waits for the job {key} of {job.function}, which is not stored before a worker or a run begins"
        elif job.state in UNBEGUN_END:
            why = f"the job {key} of {job.function} ended before a run began ({job.state})"
        else:
            why = f"{key} is a job of the task {job.function}, and not a run of a workflow"
        return ApiError(Code.RUN_NOT_FOUND, f"{why}; use mainspring jobs show {key}")

    def unbegun_info(self, unbegun: Unbegun) -> RunInfo:
        """Return the row of a run that has not begun."""
        handle = self._service.handle_of(unbegun.job.id).decode()
        is_paused = self._service.spec_of(unbegun.job.function).paused
        return unbegun_info(handle, unbegun, to_us(self._service.wall()), is_paused=is_paused)

    def info(self, shown: ShownRun, stranded: Collection[tuple[str, str, str]]) -> RunInfo:
        """Return the row of a run. ``stranded``: the namespaces, types and versions whose runs wait for a worker."""
        handle = self._service.handle_of(shown.row.root).decode()
        return run_info(handle, shown, to_us(self._service.wall()), stranded=is_stranded(shown, stranded))


def is_stranded(shown: ShownRun, stranded: Collection[tuple[str, str, str]]) -> bool:
    """Return whether a run waits for a worker with its type and version, and no such worker is connected."""
    row = shown.row
    return bool(row.decision) and row.parked is None and (row.namespace, row.type, row.version) in stranded


def ambiguous(key: str) -> ApiError:
    """Return the refusal of a key that may name several runs."""
    return ApiError(
        Code.CONFLICT,
        f"several jobs that have not started have the unique {key}: give the handle of the one that is the run;"
        f" mainspring jobs list --unique {key} lists them",
    )


def unread(key: str, fault: str) -> ApiError:
    """Return the refusal of a request to a run that this node cannot read."""
    return ApiError(
        Code.CONFLICT, f"this node cannot read the run {key}, so that it takes no requests: {fault}; {REMEDY}"
    )

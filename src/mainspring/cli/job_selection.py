"""The jobs that a command is for, by handle or by criteria, and the way in which many jobs are changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter

from mainspring.api.job_filters import JobCriteria
from mainspring.cli.options import TIME_OPTION, at_least, count, plain

FILTER_GROUP = Group("Jobs by filter", sort_key=1)
OPERATION_GROUP = Group("Operation", sort_key=2)

Handle = Annotated[str, Parameter(help="The job's handle, such as H:node:1000000000001.")]
State = Literal["scheduled", "pending", "leased", "running", "succeeded", "failed", "cancelled", "expired"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Criteria for jobs, all of which a job has to meet."""

    state: Annotated[
        list[State] | None, plain("--state", "Jobs in this state; may be repeated.", negative="", group=FILTER_GROUP)
    ] = None
    function: Annotated[str | None, plain("--function", "Jobs of this function.", group=FILTER_GROUP)] = None
    unique: Annotated[str | None, plain("--unique", "Jobs with this unique.", group=FILTER_GROUP)] = None
    key: Annotated[str | None, plain("--key", "Jobs with this concurrency key.", group=FILTER_GROUP)] = None
    schedule: Annotated[str | None, plain("--schedule", "Jobs of this schedule.", group=FILTER_GROUP)] = None
    workflow: Annotated[
        str | None,
        plain("--workflow", "Jobs of this run, given by its handle or workflow id.", group=FILTER_GROUP),
    ] = None
    error: Annotated[
        str | None,
        plain("--error", "Jobs whose last failure has this type, such as ValueError.", group=FILTER_GROUP),
    ] = None
    tag: Annotated[str | None, plain("--tag", "Jobs with this tag.", group=FILTER_GROUP)] = None
    created_after: Annotated[
        float | None,
        plain(
            "--created-after",
            "Jobs that were submitted at this time or later, such as 2030-01-31T12:00:00Z.",
            group=FILTER_GROUP,
            **TIME_OPTION,
        ),
    ] = None
    created_before: Annotated[
        float | None,
        plain("--created-before", "Jobs that were submitted before this time.", group=FILTER_GROUP, **TIME_OPTION),
    ] = None

    def criteria(self) -> JobCriteria:
        """Return the criteria."""
        return JobCriteria(
            state=list(self.state) if self.state else None,
            function=self.function,
            unique=self.unique,
            key=self.key,
            schedule=self.schedule,
            workflow=self.workflow,
            error_type=self.error,
            tag=self.tag,
            created_from=utc(self.created_after),
            created_to=utc(self.created_before),
        )


def utc(time: float | None) -> datetime | None:
    """Return a time in seconds since 1970 as requests have it."""
    return None if time is None else datetime.fromtimestamp(time, UTC)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """The way in which many jobs are changed."""

    dry_run: Annotated[
        bool,
        plain("--dry-run", "Only count the jobs that match, and show five.", negative="", group=OPERATION_GROUP),
    ] = False
    expect: Annotated[
        int | None,
        plain(
            "--expect",
            "Change nothing if more jobs match than this.",
            group=OPERATION_GROUP,
            metavar="JOBS",
            **at_least(0, count, str, "is no number of jobs"),
        ),
    ] = None
    rate: Annotated[
        float | None,
        plain("--rate", "Change at most this many jobs per second.", group=OPERATION_GROUP, metavar="JOBS"),
    ] = None
    yes: Annotated[
        bool, plain("--yes", "Do not ask for confirmation at a terminal.", negative="", group=OPERATION_GROUP)
    ] = False


NO_SELECTION: Final = JobSelection()
DEFAULT_OPTIONS: Final = OperationOptions()

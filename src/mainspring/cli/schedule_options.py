"""The options of ``mainspring schedules add``, ``edit`` and ``preview``: when a schedule runs, and its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cyclopts import Group, Parameter

from mainspring.cli.options import ARGS_NAMES, DURATION_OPTION, TIME_OPTION, args_of, plain, reading
from mainspring.errors import SettingsError
from mainspring.quantities import parse_duration, parse_time

TIMING_GROUP = Group("When it runs", sort_key=0)
JOB_GROUP = Group("The job", sort_key=1)


def parse_misfire(text: str) -> str | int:
    """Return a misfire policy. Raises SettingsError."""
    if text in {"skip", "once", "all"}:
        return text
    if text.isdecimal():
        return int(text)
    raise SettingsError(f"{text!r} is not a policy for missed times: use skip, once, all or a number")


def _or_none(parse: Any) -> Any:
    """Return a parser that returns None for ``none`` and parses other text with ``parse``."""
    return lambda text: None if text == "none" else parse(text)


_OPTIONAL_TIME_OPTION: dict[str, Any] = {"converter": reading(_or_none(parse_time)), "metavar": "TIME"}
_OPTIONAL_DURATION_OPTION: dict[str, Any] = {"converter": reading(_or_none(parse_duration)), "metavar": "DURATION"}


class _NotGiven(float):
    """The value of an option that is not given: the request leaves its field out.

    It has the type of the options: the parser checks defaults, too, in a process that has imported Pydantic.
    """

    def __repr__(self) -> str:
        return ""


NOT_GIVEN: Final = _NotGiven("nan")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """The options of ``add``, ``edit`` and ``preview``."""

    cron: Annotated[
        str | None,
        plain(
            "--cron",
            "Run at the times of a cron expression: five fields, six with the seconds first, or a name such as @daily.",
            group=TIMING_GROUP,
        ),
    ] = None
    every: Annotated[
        float | None,
        plain(
            "--every",
            "Run at this interval, counted from --start, or from 1970 without it.",
            group=TIMING_GROUP,
            **DURATION_OPTION,
        ),
    ] = None
    at: Annotated[
        float | None,
        plain("--at", "Run once, at a time such as 2030-01-31T12:00:00Z.", group=TIMING_GROUP, **TIME_OPTION),
    ] = None
    parent: Annotated[
        list[str] | None,
        plain(
            "--parent",
            "Run when this other schedule has succeeded; if the option is given several times, when all have.",
            group=TIMING_GROUP,
            negative="",
        ),
    ] = None
    timezone: Annotated[
        str | None,
        plain("--timezone", "The time zone of --cron, by its IANA name; by default UTC.", group=TIMING_GROUP),
    ] = None
    start: Annotated[
        float | None,
        plain("--start", "Do not run before this time; none removes it.", group=TIMING_GROUP, **_OPTIONAL_TIME_OPTION),
    ] = NOT_GIVEN
    end: Annotated[
        float | None,
        plain("--end", "Do not run after this time; none removes it.", group=TIMING_GROUP, **_OPTIONAL_TIME_OPTION),
    ] = NOT_GIVEN
    exclude: Annotated[
        list[str] | None,
        plain(
            "--exclude",
            "Do not run on this day, such as 2030-12-24. The option may be given several times.",
            group=TIMING_GROUP,
            negative="",
        ),
    ] = None
    jitter: Annotated[
        float | None,
        plain("--jitter", "Delay each job by a random time up to this.", group=TIMING_GROUP, **DURATION_OPTION),
    ] = None
    misfire: Annotated[
        str | int | None,
        plain(
            "--misfire",
            "The policy for missed times: skip all, run once for the newest, run all, or run this number of the newest.",
            group=TIMING_GROUP,
            converter=reading(parse_misfire),
            metavar="POLICY",
        ),
    ] = None
    overlap: Annotated[
        Literal["allow", "forbid", "queue", "replace"] | None,
        plain("--overlap", "The policy for a time while an earlier run is not finished.", group=TIMING_GROUP),
    ] = None
    wait_for_children: Annotated[
        bool | None,
        plain(
            "--wait-for-children",
            "Count a run as finished only when the runs of its children are finished.",
            group=TIMING_GROUP,
            negative="--no-wait",
        ),
    ] = None
    function: Annotated[
        str | None, plain("--function", "The function to run; by default the schedule's name.", group=JOB_GROUP)
    ] = None
    args: Annotated[
        str | None,
        plain(
            ARGS_NAMES,
            "The arguments of the jobs: text, or - for standard input.",
            group=JOB_GROUP,
            metavar="ARGS",
            allow_leading_hyphen=True,
        ),
    ] = None
    priority: Annotated[
        Literal["high", "normal", "low"] | None,
        plain("--priority", "Jobs of a higher priority start first; by default normal.", group=JOB_GROUP),
    ] = None
    max_attempts: Annotated[
        int | None,
        plain(
            ("--max-attempts", "--attempts"),
            "How often to run a job, with growing waits between attempts, before it counts as failed.",
            group=JOB_GROUP,
        ),
    ] = None
    run_timeout: Annotated[
        float | None,
        plain(
            ("--run-timeout", "--timeout"),
            "Stop an attempt that runs longer than this; none removes the limit.",
            group=JOB_GROUP,
            **_OPTIONAL_DURATION_OPTION,
        ),
    ] = NOT_GIVEN
    unique: Annotated[str | None, plain("--unique", "The unique of the jobs.", group=JOB_GROUP)] = None
    expires: Annotated[
        float | None,
        plain(
            "--expires",
            "End a job as expired if it has not started within this time; none removes the limit.",
            group=JOB_GROUP,
            **_OPTIONAL_DURATION_OPTION,
        ),
    ] = NOT_GIVEN

    tag: Annotated[
        list[str] | None,
        plain(
            "--tag", "A tag of the jobs; may be repeated, and replaces all earlier ones.", group=JOB_GROUP, negative=""
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the given options as fields of a request."""
        fields: dict[str, Any] = {
            "cron": self.cron,
            "every": self.every,
            "at": self.at,
            "parents": self.parent,
            "timezone": self.timezone,
            "exclude": self.exclude,
            "jitter": self.jitter,
            "misfire": self.misfire,
            "overlap": self.overlap,
            "wait_for_children": self.wait_for_children,
            "function": self.function,
            "payload": args_of(None, self.args),
            "priority": self.priority,
            "retry": None if self.max_attempts is None else {"max_attempts": self.max_attempts},
            "unique": self.unique,
            "tags": self.tag,
        }
        optional = {"start": self.start, "end": self.end, "timeout": self.run_timeout, "expires": self.expires}
        return {key: value for key, value in fields.items() if value is not None} | {
            key: value for key, value in optional.items() if value is not NOT_GIVEN
        }


NO_OPTIONS = ScheduleOptions()

"""The JSON form of a schedule in API calls, and its conversion to and from a ``Schedule``.

docs/reference/protocol.md lists the keys. Times are RFC 3339 text, durations seconds. Stored schedules have keys with the
namespace in place of names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from mainspring import namespaces
from mainspring.clock import time_of, us_of
from mainspring.errors import UsageError
from mainspring.jobs.model import Priority, Retry
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import DEFAULT, Namespaced, key_of_text, name_bytes, name_text, split_text
from mainspring.schedules.model import At, Cron, Every, Misfire, Overlap, Schedule
from mainspring.sizes import LEVELS, Seconds, Text, Texts, Time, about, described, is_too_deep

if TYPE_CHECKING:
    from mainspring.schedules.model import Fire, Trigger
    from mainspring.schedules.reconcile import Stored

_SECOND = 1_000_000
_FURTHEST = 300_000_000_000.0
"""Seconds beyond the last year. Larger values are clamped to it: they must not overflow here, and `registration` refuses them."""


class Specification(Namespaced, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields of a schedule. A missing field keeps its value, or has its default in a new schedule."""

    name: Annotated[Text, about("The name of the schedule.")]
    function: Annotated[Text | UnsetType, described("The function to run; by default the schedule's name.")] = UNSET
    args: Annotated[
        Raw | UnsetType, described("The arguments of the jobs: text, or - for standard input.", label="Arguments")
    ] = UNSET
    payload: Annotated[bytes | UnsetType, about("The arguments as base64 of any bytes, in place of `args`.")] = UNSET
    cron: Annotated[
        Text | UnsetType,
        described(
            "Run at the times of a cron expression: five fields, six with the seconds first, or a name such as @daily.",
            label="Cron expression",
        ),
    ] = UNSET
    every: Annotated[
        Seconds | UnsetType,
        described("Run at this interval, counted from --start, or from 1970 without it.", label="Or an interval"),
    ] = UNSET
    at: Annotated[
        Time | UnsetType, described("Run once, at a time such as 2030-01-31T12:00:00Z.", label="Or once, at")
    ] = UNSET
    timezone: Annotated[
        Text | UnsetType,
        described("The time zone of --cron, by its IANA name; by default UTC.", label="Time zone"),
    ] = UNSET
    start: Annotated[
        Time | UnsetType | None, described("Do not run before this time; none removes it.", label="Not before")
    ] = UNSET
    end: Annotated[
        Time | UnsetType | None, described("Do not run after this time; none removes it.", label="Not after")
    ] = UNSET
    jitter: Annotated[
        Seconds | UnsetType, described("Delay each job by a random time up to this.", label="Random delay up to")
    ] = UNSET
    exclude: Annotated[
        Texts | UnsetType,
        described(
            "Do not run on this day, such as 2030-12-24. The option may be given several times.",
            label="Not on these days",
        ),
    ] = UNSET
    misfire: Annotated[
        Misfire | UnsetType,
        described(
            "The policy for missed times: skip all, run once for the newest, run all, or run this number of the newest.",
            metavar="POLICY",
            label="Missed times",
        ),
    ] = UNSET
    misfire_after: Annotated[
        Seconds | UnsetType, about("How late a time may run without being a missed one, in seconds.")
    ] = UNSET
    overlap: Annotated[
        Text | UnsetType,
        described(
            "The policy for a time while an earlier run is not finished.",
            label="If an earlier run goes on",
            choices=tuple(one.name.lower() for one in Overlap),
        ),
    ] = UNSET
    parents: Annotated[
        Texts | UnsetType,
        described(
            "Run when this other schedule has succeeded; if the option is given several times, when all have.",
            "--parent",
            label="Or after other schedules",
        ),
    ] = UNSET
    wait_for_children: Annotated[
        bool | UnsetType,
        described(
            "Count a run as finished only when the runs of its children are finished.",
            label="A run is finished only when its children are",
        ),
    ] = UNSET
    priority: Annotated[
        Text | UnsetType,
        described(
            "Jobs of a higher priority start first; by default normal.",
            choices=tuple(one.name.lower() for one in Priority),
        ),
    ] = UNSET
    retry: Annotated[Retry | UnsetType | None, about("When to try a job again; null: not at all.")] = UNSET
    timeout: Annotated[
        Seconds | UnsetType | None,
        described(
            "Stop an attempt that runs longer than this; none removes the limit.",
            "--run-timeout",
            "--timeout",
            label="Time limit of an attempt",
        ),
    ] = UNSET
    unique: Annotated[Text | UnsetType, described("The unique of the jobs.")] = UNSET
    expires: Annotated[
        Seconds | UnsetType | None,
        described(
            "End a job as expired if it has not started within this time; none removes the limit.",
            label="Expires if not started within",
        ),
    ] = UNSET
    start_within: Annotated[
        Seconds | UnsetType | None,
        described(
            "Report a job that has not begun within this time, and the schedule if it has no job then; none: do not.",
            label="Late if not begun within",
        ),
    ] = UNSET
    deadline: Annotated[
        Seconds | UnsetType | None,
        described("Report a job that has not ended within this time; none: do not.", label="Late if not ended within"),
    ] = UNSET
    tags: Annotated[
        Texts | UnsetType,
        described("A tag of the jobs; may be repeated, and replaces all earlier ones.", "--tag"),
    ] = UNSET

    def schedule(self, before: Schedule | None = None) -> Schedule:
        """Return the whole schedule. Raises UsageError if it is invalid by itself.

        A trigger replaces earlier parents, and parents replace an earlier trigger.
        """
        fields = self._fields()
        trigger = self._trigger()
        if trigger is not None:
            fields |= {"trigger": trigger} | ({} if self.parents else {"parents": ()})
        elif self.parents:
            fields |= {"trigger": None, "start_us": None, "end_us": None} | {
                key: value for key, value in fields.items() if key in {"start_us", "end_us"}
            }
        if before is None:
            after = Schedule(**({"function": self.name.encode()} | fields), name=self.name)
        else:
            after = replace(before, **fields)
        from mainspring.schedules import catalogue  # noqa: PLC0415 - slow to load, and commands do not need it

        catalogue.check(after)
        return after

    def _trigger(self) -> Trigger | None:
        triggers: list[Trigger] = []
        if self.cron is not UNSET:
            triggers.append(Cron(self.cron))
        if self.every is not UNSET:
            triggers.append(Every(_us(self.every)))
        if self.at is not UNSET:
            triggers.append(At(us_of(self.at)))
        if len(triggers) > 1:
            raise UsageError(f"schedule {self.name!r}: cron, every and at exclude each other: give one of them")
        return triggers[0] if triggers else None

    def _payload(self) -> bytes | UnsetType:
        if self.args is UNSET:
            return self.payload
        if self.payload is not UNSET:
            raise UsageError(f"schedule {self.name!r}: give args or payload, not both")
        if is_too_deep(args := bytes(self.args)):
            raise UsageError(
                f"schedule {self.name!r}: its arguments have more than {LEVELS.most} levels: make them flatter"
            )
        return args

    def _fields(self) -> dict[str, Any]:
        values = (
            ("timezone", self.timezone),
            ("jitter", self.jitter),
            ("misfire", self.misfire),
            ("misfire_after", self.misfire_after),
            ("wait_for_children", self.wait_for_children),
            ("retry", self.retry),
            ("timeout", self.timeout),
            ("expires", self.expires),
            ("start_within", self.start_within),
            ("deadline", self.deadline),
            ("args", self._payload()),
        )
        fields: dict[str, Any] = {key: value for key, value in values if value is not UNSET}
        for key, text in (("function", self.function), ("unique", self.unique)):
            if text is not UNSET:
                fields[key] = name_bytes(text)
        for key, names in (("exclude", self.exclude), ("parents", self.parents)):
            if names is not UNSET:
                fields[key] = tuple(names)
        for key, time in (("start_us", self.start), ("end_us", self.end)):
            if time is not UNSET:
                fields[key] = None if time is None else us_of(time)
        if self.tags is not UNSET:
            fields["tags"] = check_tags(self.tags, f"schedule {self.name!r}")
        if self.overlap is not UNSET:
            fields["overlap"] = _named(self.overlap, {one.value: one for one in Overlap}, "overlap")
        if self.priority is not UNSET:
            fields["priority"] = int(_named(self.priority, {one.name.lower(): one for one in Priority}, "priority"))
        return fields


def specify(schedule: Schedule) -> Specification:
    """Return the specification of a schedule, with all fields."""
    trigger = schedule.trigger
    return Specification(
        name=schedule.name,
        function=name_text(schedule.function),
        payload=schedule.args,
        cron=trigger.expression if isinstance(trigger, Cron) else UNSET,
        every=trigger.interval_us / _SECOND if isinstance(trigger, Every) else UNSET,
        at=time_of(trigger.at_us) if isinstance(trigger, At) else UNSET,
        timezone=schedule.timezone,
        start=None if schedule.start_us is None else time_of(schedule.start_us),
        end=None if schedule.end_us is None else time_of(schedule.end_us),
        jitter=schedule.jitter,
        exclude=list(schedule.exclude),
        misfire=schedule.misfire,
        misfire_after=schedule.misfire_after,
        overlap=schedule.overlap.value,
        parents=list(schedule.parents),
        wait_for_children=schedule.wait_for_children,
        priority=Priority(schedule.priority).name.lower(),
        retry=schedule.retry,
        timeout=schedule.timeout,
        unique=name_text(schedule.unique),
        expires=schedule.expires,
        tags=list(schedule.tags) or UNSET,  # older nodes refuse the key, and the next two
        start_within=UNSET if schedule.start_within is None else schedule.start_within,
        deadline=UNSET if schedule.deadline is None else schedule.deadline,
    )


def with_keys(schedule: Schedule, namespace: str) -> Schedule:
    """Return a schedule of a namespace as it is stored."""
    if namespace == DEFAULT:
        for parent in schedule.parents:
            # This refuses the key of another namespace; `registration` checks the other names.
            key_of_text(namespace, parent)
        return schedule
    return replace(
        schedule,
        name=key_of_text(namespace, schedule.name),
        function=namespaces.key(namespace, schedule.function),
        parents=tuple(key_of_text(namespace, parent) for parent in schedule.parents),
        namespace=namespace,
    )


def with_names(schedule: Schedule) -> Schedule:
    """Return a stored schedule without keys."""
    namespace, name = split_text(schedule.name)
    if namespace == DEFAULT:
        return schedule
    parents = tuple(split_text(parent)[1] for parent in schedule.parents)
    function = namespaces.name_of(schedule.function)
    return replace(schedule, name=name, function=function, parents=parents, namespace=DEFAULT)


def stored_with_names(stored: Stored) -> Stored:
    """Return a schedule as it is stored, without keys."""
    schedule = with_names(stored.schedule)
    if schedule is stored.schedule:
        return stored
    return stored._replace(schedule=schedule, state=replace(stored.state, app=split_text(stored.state.app)[1]))


def row_with_names(row: Fire) -> Fire:
    """Return a row without keys."""
    namespace, name = split_text(row.schedule)
    if namespace == DEFAULT:
        return row
    return replace(row, schedule=name, root=split_text(row.root)[1], parent=split_text(row.parent)[1])


def text_with_names(text: str, namespace: str) -> str:
    """Return a message about schedules of a namespace without keys."""
    return text.replace(f"{namespace}\x1f", "").replace(f"{namespace}\\x1f", "") if namespace != DEFAULT else text


def _us(seconds: float) -> int:
    return round(max(-_FURTHEST, min(seconds, _FURTHEST)) * _SECOND)


def _named(text: str, choices: dict[str, Any], what: str) -> Any:
    if text not in choices:
        raise UsageError(f"{what} must be one of {', '.join(choices)}; it is {text!r}")
    return choices[text]

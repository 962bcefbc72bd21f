"""The schedules that an App's code declares: checked at their definition, encoded for the wire when a worker declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from mainspring.client.operating import Schedules
from mainspring.client.options import Duration, Options, check_flag, check_text, instant, refusal, seconds
from mainspring.errors import UsageError
from mainspring.jobs.model import Priority
from mainspring.jobs.model import Retry as StoredRetry
from mainspring.schedules import catalogue
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import At, Cron, Every, Overlap, Schedule
from mainspring.schedules.specification import specify

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.connections import Connections
    from mainspring.schedules.model import Misfire, Trigger


class HasName(Protocol):
    """A task."""

    @property
    def name(self) -> str:
        """The task's name."""


Parent: TypeAlias = "HasName | str"
"""A scheduled task, or the name of a schedule that other code creates."""
Arguments: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""The arguments of a scheduled task: positional or keyword arguments."""


class Timing(NamedTuple):
    """The arguments of ``App.scheduled`` that decide when a schedule runs."""

    cron: str | None = None
    every: Duration | None = None
    at: datetime | None = None
    parent: Parent | Sequence[Parent] | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    jitter: Duration = 0.0
    exclude: Iterable[date | str] = ()
    misfire: Misfire = "once"
    overlap: Literal["allow", "forbid", "queue", "replace"] = "allow"
    wait_for_children: bool = False


def default_name(place: Mapping[str, Any], variables: Sequence[str]) -> str:
    """Return the name of an App whose code chooses none.

    ``place`` has the globals of the module that creates it, and ``variables`` are the names of the App among them, or none if it
    is the module's only App. So the name depends neither on the file's directory nor on the way in which a worker finds it.
    """
    path = Path(place.get("__file__") or "app.py")
    stem = path.resolve().parent.name if path.stem in {"__init__", "__main__"} else path.stem
    return f"{stem}:{variables[0]}" if variables and "app" not in variables else stem


class Declarations(Schedules):
    """The schedules in an App's code, and requests about those on its servers.

    ``name`` distinguishes the Apps that share a store; without one, ``default`` returns it.
    """

    def __init__(self, name: str | None, default: Callable[[], str], connections: Connections) -> None:
        super().__init__(connections)
        if name is not None and not check_text(name, "name"):
            raise UsageError("an App's name must not be empty")
        self._name = name
        self._default = default
        self._declared: dict[str, Schedule] = {}

    def declare(self, schedule: Schedule) -> None:
        """Add a schedule.  Raises UsageError if it is invalid, its name is in use, or it closes a cycle."""
        catalogue.check(schedule)
        if schedule.name in self._declared:
            raise UsageError(
                f"two schedules are named {schedule.name!r}: give one of them another name with @app.scheduled(name=…)"
            )
        _ = Catalogue({**self._declared, schedule.name: schedule}).graph  # raises for a cycle
        self._declared[schedule.name] = schedule

    def __len__(self) -> int:
        return len(self._declared)

    def check_parents(self, parent: Parent | Sequence[Parent] | None) -> None:
        """Raise UsageError for a task that has no schedule here; a name may be that of a schedule that other code creates."""
        for one in _listed(parent):
            if not isinstance(one, str) and one.name not in self._declared:
                raise UsageError(f"task {one.name!r} has no schedule, so no other can follow it: schedule it first")

    def all(self) -> list[Schedule]:
        """Return the schedules."""
        return list(self._declared.values())

    @property
    def name(self) -> str:
        """The name of the App: the chosen one, or that of its file."""
        return self._name or self._default()

    @property
    def is_named(self) -> bool:
        """Whether the code chooses the name."""
        return self._name is not None

    def params(self) -> dict[str, Any]:
        """Return the parameters of the call that declares them, as all versions of servers read them."""
        return {"app": self.name, "schedules": [msgspec.to_builtins(specify(one)) for one in self.all()]}

    @property
    def needed(self) -> bool:
        """Whether the worker has to declare the schedules.

        An App without a chosen name and without schedules is not declared. Another program, with a file of the same name, may
        have schedules of the same functions, and the declaration would remove them.
        """
        return bool(self._declared) or self.is_named


def check_arguments(given: object) -> None:
    """Raise UsageError for a value that cannot be a schedule's ``args``."""
    if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, Mapping)):
        raise refusal("args", "a tuple or list of arguments, or a dict of keyword arguments", given)


def build_schedule(name: str, function: str, timing: Timing, options: Options, unique: str, payload: bytes) -> Schedule:
    """Return a schedule with a user's options.  Raises UsageError for values of a wrong type."""
    check_flag(timing.wait_for_children, "wait_for_children")
    if options.version is not None:
        raise UsageError(
            f"schedule {name!r}: a schedule starts runs of the newest version: schedule the workflow without options(version=…)"
        )
    misfire: object = timing.misfire
    if isinstance(misfire, bool) or not isinstance(misfire, (str, int)):
        raise refusal("misfire", "'skip', 'once', 'all' or a number", misfire)
    triggers: list[Trigger] = []
    if timing.cron is not None:
        triggers.append(Cron(check_text(timing.cron, "cron", "an expression such as '*/10 * * * *'")))
    if timing.every is not None:
        triggers.append(Every(round(min(seconds(timing.every, "every"), 1e12) * 1_000_000)))
    if timing.at is not None:
        triggers.append(At(_instant_us(timing.at, "at")))
    if len(triggers) > 1:
        raise UsageError("cron, every and at exclude each other: give one of them")
    return Schedule(
        name=name,
        function=function.encode(),
        args=payload,
        trigger=triggers[0] if triggers else None,
        timezone=check_text(timing.timezone, "timezone", "the name of a time zone, such as 'Europe/Berlin'"),
        start_us=None if timing.start is None else _instant_us(timing.start, "start"),
        end_us=None if timing.end is None else _instant_us(timing.end, "end"),
        jitter=float(seconds(timing.jitter, "jitter")),
        exclude=_days(timing.exclude),
        misfire=timing.misfire,
        overlap=_overlap(timing.overlap),
        parents=_parents(timing.parent),
        wait_for_children=timing.wait_for_children,
        priority=int(Priority[(options.priority or "normal").upper()]),
        retry=None if options.retry is None else StoredRetry(**options.retry.wire()),
        timeout=options.timeout,
        unique=unique.encode(),
        expires=options.expires,
        start_within=options.start_within,
        deadline=options.deadline,
        tags=options.tags or (),
    )


def _instant_us(value: datetime, what: str) -> int:
    return round(instant(value, what) * 1_000_000)


def _days(days: Iterable[date | str]) -> tuple[str, ...]:
    given: object = days
    if isinstance(given, (str, bytes, date)) or not isinstance(given, Iterable):
        raise refusal("exclude", "several dates, such as [date(2030, 12, 24)]", given)
    return tuple(sorted({_day(day) for day in given}))


def _day(day: object) -> str:
    if isinstance(day, str):
        return day
    if isinstance(day, datetime) or not isinstance(day, date):
        raise refusal("each day of exclude", "a date, such as date(2030, 12, 24)", day)
    return day.isoformat()


def _overlap(text: str) -> Overlap:
    try:
        return Overlap(text)
    except ValueError:
        raise refusal("overlap", f"one of {', '.join(Overlap)}", text) from None


def _listed(parent: Parent | Sequence[Parent] | None) -> list[Parent]:
    if parent is None:
        return []
    return [parent] if isinstance(parent, str) or not isinstance(parent, Sequence) else list(parent)


def _parents(parent: Parent | Sequence[Parent] | None) -> tuple[str, ...]:
    parents = _listed(parent)
    for one in parents:
        if not isinstance(one, str) and not hasattr(one, "name"):
            raise refusal("parent", "a scheduled task, the name of a schedule, or several of them", one)
    return tuple(one if isinstance(one, str) else one.name for one in parents)

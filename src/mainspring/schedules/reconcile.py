"""Schedules that code declares, against those that are stored: what is added, changed and removed when a node starts.

**Which code counts.** While a new version is rolled out, nodes of the old one and of the new one run side by side, and each
declares its own schedules. If each made the store like itself, the schedules would change at every restart of any node. So each
set of declarations is known by its digest, and the store remembers when it saw a digest of an App for the first time. Of the
digests of an App that live nodes have, the one that was first seen latest *governs*, and only a node that has it reconciles:

- a new version governs from the start of its first node on, also when nodes of the old one are started again meanwhile;
- after a rollback the old version governs again as soon as no live node has the new one;
- no clock of a node and no number that somebody has to count up is part of it.

**What it may touch.** Schedules of this App that code has made. A name that belongs to another App, or was made by hand, is left
alone and told. What was edited by hand stays until the code itself says something new about that schedule. A schedule that others
still have as a parent is not removed.
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mainspring.quantities import format_duration
from mainspring.schedules import triggers
from mainspring.schedules.model import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mainspring.schedules.model import Schedule, ScheduleState


class Deployment(NamedTuple):
    """One set of declarations of an App, and when the store saw it for the first time."""

    app: str
    digest: bytes
    first_seen_us: int


class Kind(StrEnum):
    """What reconciling does to one schedule."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    LEFT = "left alone"
    """It should change, and may not; the text says why."""


class Change(NamedTuple):
    """One difference. ``before`` is what is stored, ``after`` what code declares; ``text`` is a line for people."""

    kind: Kind
    name: str
    before: Schedule | None
    after: Schedule | None
    text: str


class Stored(NamedTuple):
    """A schedule in the store."""

    schedule: Schedule
    state: ScheduleState


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def digest(schedules: Iterable[Schedule]) -> bytes:
    """Return what names a set of declarations: 16 bytes, the same for the same schedules in any order."""
    told = sorted((schedule.name, _encode(schedule)) for schedule in schedules)
    return blake2b(_encode(told), digest_size=16).digest()


def governs(mine: Deployment, known: Iterable[Deployment], live: Collection[bytes]) -> bool:
    """Return whether these declarations count, among those known of the same App.

    ``live`` has the digests that live nodes have for this App; one's own counts as live. Two that were first seen in the same
    microsecond are ordered by digest, so that all nodes agree.
    """
    others = (one for one in known if one.app == mine.app and one.digest != mine.digest and one.digest in live)
    return all((one.first_seen_us, one.digest) < (mine.first_seen_us, mine.digest) for one in others)


def differences(app: str, declared: Collection[Schedule], stored: Mapping[str, Stored]) -> list[Change]:
    """Compare what the governing code of an App declares with what is stored (by name, all of the namespace).

    Returns the changes in the order in which they can be made: added and changed ones with parents first, removed ones with
    children first.
    """
    return [change for change in compare(app, declared, stored) if change is not None]


def compare(app: str, declared: Collection[Schedule], stored: Mapping[str, Stored]) -> Iterator[Change | None]:
    """Yield the same one by one, and None for a schedule that stays as it is: for those who stop in between."""
    following = {name: one.schedule for name, one in stored.items()}
    for schedule in _parents_first(declared):
        change = _declared(app, schedule, stored.get(schedule.name))
        if change is not None and change.kind is not Kind.LEFT:
            following[schedule.name] = schedule
        yield change
    children: dict[str, set[str]] = {}
    for one in following.values():
        for parent in one.parents:
            children.setdefault(parent, set()).add(one.name)
    names = {schedule.name for schedule in declared}
    gone = [one.schedule for name, one in stored.items() if name not in names and _belongs(app, one.state)]
    for one in reversed(_parents_first(gone)):
        if left := children.get(one.name):
            why = f"code does not have it any more, but it is a parent of {', '.join(sorted(left))}"
            yield _left(one, None, why)
        else:
            for parent in one.parents:
                children[parent].discard(one.name)
            yield Change(Kind.REMOVED, one.name, one, None, f"removed {one.name}: {triggers.describe(one)}")


def _declared(app: str, schedule: Schedule, stored: Stored | None) -> Change | None:
    if stored is None:
        return Change(
            Kind.ADDED, schedule.name, None, schedule, f"added {schedule.name}: {triggers.describe(schedule)}"
        )
    before, state = stored
    if not _belongs(app, state):
        owner = "by hand" if state.origin is Origin.CLI else f"by the App {state.app!r}"
        return _left(before, schedule, f"code declares it, but it was made {owner}")
    if before == schedule or state.declared == digest([schedule]):
        return None
    return Change(Kind.CHANGED, schedule.name, before, schedule, f"changed {schedule.name}: {_told(before, schedule)}")


def _left(before: Schedule, after: Schedule | None, why: str) -> Change:
    return Change(Kind.LEFT, before.name, before, after, f"left {before.name} alone: {why}")


def _belongs(app: str, state: ScheduleState) -> bool:
    return state.origin is Origin.CODE and state.app == app


def _parents_first(schedules: Iterable[Schedule]) -> list[Schedule]:
    """Order schedules by how many come before them in the longest line of parents."""
    named = {schedule.name: schedule for schedule in schedules}
    parents = {name: {parent for parent in one.parents if parent in named} for name, one in named.items()}
    sorter = TopologicalSorter(parents)
    with contextlib.suppress(CycleError):  # is refused elsewhere, with its names
        sorter.prepare()
    place = {name: number for number, name in enumerate(named)}
    ordered: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        sorter.done(*ready)
        ordered += ready
    rest = named.keys() - ordered
    return [named[name] for name in (*ordered, *sorted(rest, key=place.__getitem__))]


# ---- the text of a change ----


def _told(before: Schedule, after: Schedule) -> str:
    told = []
    if (before.trigger, before.parents) != (after.trigger, after.parents):
        told.append(f"{triggers.describe(before)} → {triggers.describe(after)}")
    for field in type(after).__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if old != new and field not in {"trigger", "parents"}:
            told.append(_difference(field, old, new))
    return "; ".join(told)


def _difference(field: str, old: Any, new: Any) -> str:
    match field:
        case "args":  # may be long, or secret
            return "args"
        case "start_us" | "end_us":
            return f"{field.removesuffix('_us')} {_time(old)} → {_time(new)}"
        case "exclude":
            added, removed = sorted(set(new) - set(old)), sorted(set(old) - set(new))
            return " ".join(["exclude", *(f"+{day}" for day in added), *(f"-{day}" for day in removed)])
        case "jitter" | "misfire_after" | "timeout" | "expires":
            return f"{field} {_duration(old)} → {_duration(new)}"
        case _:
            return f"{field} {_value(old)} → {_value(new)}"


def _time(instant_us: int | None) -> str:
    return "none" if instant_us is None else triggers.isoformat(instant_us)


def _duration(seconds: float | None) -> str:
    return "none" if seconds is None else format_duration(seconds)


def _value(value: object) -> str:
    if value is None or value in {"", b""}:
        return "none"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)

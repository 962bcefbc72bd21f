"""Reconciliation of declared and stored schedules: which schedules are added, changed and removed when code runs.

**The governing version.** During a rolling deploy, nodes of the old and the new version run side by side, and each declares its
own schedules. If each applied its declarations to the store, the schedules would change at every restart of any node. So a digest
identifies each set of declarations, and the store records when it saw a digest of an App for the first time. Among the digests of
an App's live nodes, the one with the latest first sighting *governs*, and only its nodes reconcile:

- a new version governs from the start of its first node on, even if nodes of the old version restart;
- after a rollback the old version governs again as soon as no live node has the new one;
- the rule needs neither the clock of a node nor a version number that people have to increment.

**Its scope.** Reconciliation changes only schedules that this App's code has created. A schedule of another App, or one that was
created by hand, stays and is reported. An edit by hand stays until the code's declaration of that schedule changes. A schedule
that is still a parent of others is not removed.
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mainspring.byte_names import name_text
from mainspring.quantities import format_duration
from mainspring.schedules import triggers
from mainspring.schedules.model import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mainspring.schedules.model import Schedule, ScheduleState


class Deployment(NamedTuple):
    """A set of declarations of an App, and the time when the store first saw it."""

    app: str
    digest: bytes
    first_seen_us: int


class Kind(StrEnum):
    """The kind of a change to one schedule."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    LEFT = "left alone"
    """It differs, but must not be changed; the text gives the reason."""


class Change(NamedTuple):
    """One difference between the stored schedule ``before`` and the declared one ``after``; ``text`` is a line for people."""

    kind: Kind
    name: str
    before: Schedule | None
    after: Schedule | None
    text: str


class Stored(NamedTuple):
    """A schedule in the store."""

    schedule: Schedule
    state: ScheduleState
    unread: str = ""
    """Why some of its values could not be read: they are missing or have their defaults. See ``codecs``."""


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def digest(schedules: Iterable[Schedule]) -> bytes:
    """Return the identifier of a set of declarations: 16 bytes, the same for the same schedules in any order."""
    encoded = sorted((schedule.name, _encode(schedule)) for schedule in schedules)
    return blake2b(_encode(encoded), digest_size=16).digest()


def governs(mine: Deployment, deployments: Iterable[Deployment], live: Collection[bytes]) -> bool:
    """Return whether these declarations count, among those deployments of the same App.

    ``live`` has the digests of this App's live nodes; the node's own counts as live. If two were first seen in the same
    microsecond, their digests decide, so that all nodes agree.
    """
    others = (one for one in deployments if one.app == mine.app and one.digest != mine.digest and one.digest in live)
    return all((one.first_seen_us, one.digest) < (mine.first_seen_us, mine.digest) for one in others)


def differences(app: str, declared: Collection[Schedule], stored: Mapping[str, Stored]) -> list[Change]:
    """Compare the schedules that an App's governing code declares with the stored ones (by name, all of the namespace).

    Return the changes in the order in which they can be applied: additions and changes with parents first, then removals with
    children first.
    """
    return [change for change in compare(app, declared, stored) if change is not None]


def compare(app: str, declared: Collection[Schedule], stored: Mapping[str, Stored]) -> Iterator[Change | None]:
    """Yield the same changes one by one, and None for each unchanged schedule, so that callers can pause in between."""
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
    before, state, _ = stored
    if not _belongs(app, state):
        owner = "by hand" if state.origin is Origin.CLI else f"by the App {state.app!r}"
        return _left(before, schedule, f"code declares it, but it was made {owner}")
    if before == schedule or state.declared == digest([schedule]):
        return None
    return Change(
        Kind.CHANGED,
        schedule.name,
        before,
        schedule,
        f"changed {schedule.name}: {_summary(before, schedule)}",
    )


def _left(before: Schedule, after: Schedule | None, why: str) -> Change:
    return Change(Kind.LEFT, before.name, before, after, f"left {before.name} alone: {why}")


def _belongs(app: str, state: ScheduleState) -> bool:
    return state.origin is Origin.CODE and state.app == app


def _parents_first(schedules: Iterable[Schedule]) -> list[Schedule]:
    """Sort schedules by the length of their longest chain of ancestors."""
    named = {schedule.name: schedule for schedule in schedules}
    parents = {name: {parent for parent in one.parents if parent in named} for name, one in named.items()}
    sorter = TopologicalSorter(parents)
    with contextlib.suppress(CycleError):  # `parents.Graph` refuses cycles with their names
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


def _summary(before: Schedule, after: Schedule) -> str:
    texts = []
    if (before.trigger, before.parents) != (after.trigger, after.parents):
        texts.append(f"{triggers.describe(before)} → {triggers.describe(after)}")
    for field in type(after).__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if old != new and field not in {"trigger", "parents"}:
            texts.append(_difference(field, old, new))
    return "; ".join(texts)


def _difference(field: str, old: Any, new: Any) -> str:
    match field:
        case "args":  # possibly long or secret
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
        return name_text(value)
    return str(value)

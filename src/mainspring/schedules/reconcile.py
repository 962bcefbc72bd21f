"""Reconciliation of declared and stored schedules: which schedules are added, changed and removed when code runs.

**The governing version.** During a rolling deploy, nodes of the old and the new version run side by side, and each declares its
own schedules. If each applied its declarations to the store, the schedules would change at every restart of any node. So a digest
identifies each set of declarations, and the store records when it saw a digest of an App for the first time. Among the digests of
an App's live nodes, the one with the latest first sighting *governs*, and only its nodes reconcile:

- a new version governs from the start of its first node on, even if nodes of the old version restart;
- after a rollback the old version governs again as soon as no live node has the new one;
- the rule needs neither the clock of a node nor a version number that people have to increment.

**Its scope.** Reconciliation changes only schedules that this App's code has created. A schedule that was created by hand stays
and is reported, and so does a schedule of another App, as long as code of that App runs; afterwards an App whose code declares
it for the same function takes it over. So a new name of an App needs no command. An edit by hand stays until the code's
declaration of that schedule changes. A schedule that is still a parent of others is not removed.

**Whose code it is.** Two projects may call their Apps the same, above all if neither chooses the name. `is_of_other_code` decides
by functions: if an App has stored schedules, and the code defines none of their functions, then these schedules belong to
another project. An App with a default name gets another one then (`name_of`). One with a chosen name is refused while the other
code runs; afterwards it replaces the schedules.

Below are the codecs for stores whose values are bytes: of schedules, of their states and of the rows of their fire times. A fault
is the reason why this node cannot decide the fire times of a stored schedule, although another node or version could.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from datetime import date
from enum import StrEnum
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring import namespaces
from mainspring.access.caller import LOCAL, Permission
from mainspring.errors import ForbiddenError, UsageError
from mainspring.namespaces import name_text
from mainspring.quantities import format_duration
from mainspring.schedules import triggers
from mainspring.schedules.model import Cron, Every, Fire, FireState, Origin, Schedule, ScheduleState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mainspring.access.caller import Caller


_NUMBERED: Final = re.compile(r" \((\d{1,4})\)")


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
    ADOPTED = "adopted"
    """It was of an App that runs no more, and of the same function."""
    LEFT = "left alone"
    """It differs, but must not be changed; the text gives the reason."""


class Change(NamedTuple):
    """One difference between the stored schedule ``before`` and the declared one ``after``; ``text`` is a line for people."""

    kind: Kind
    name: str
    before: Schedule | None
    after: Schedule | None
    text: str
    warning: bool = False
    """Whether people should look at it: a declaration that does not apply, or the end of a schedule of a function that the code
    does not define."""


class Code(NamedTuple):
    """The code that declares an App's schedules. Functions are keys."""

    functions: frozenset[bytes] | None = None
    """The functions that it defines, with those without schedules; None: unknown."""
    left_out: frozenset[bytes] = frozenset()
    """Functions that this process leaves out, although the code defines them: their schedules stay as they are."""
    is_named: bool = True
    """Whether the code chooses the name of its App; otherwise it has the name of its file."""


UNKNOWN_CODE: Final = Code()


class Stored(NamedTuple):
    """A schedule in the store."""

    schedule: Schedule
    state: ScheduleState
    unread: str = ""
    """Why some of its values could not be read: they are missing or have their defaults. See `fault_of`."""


def is_unchanged(before: Stored, now: Stored) -> bool:
    """Return whether nobody has changed a schedule: requests and code change what is compared here, and fires never do."""
    return _decided(before) == _decided(now)


def _decided(stored: Stored) -> tuple[object, ...]:
    state = stored.state
    return stored.schedule, state.origin, state.app, state.declared, state.paused


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


def is_of_other_code(app: str, declared: Collection[Schedule], code: Code, stored: Mapping[str, Stored]) -> bool:
    """Return whether the stored schedules of an App are of functions that the code does not define, all of them.

    This cannot be known of workers of earlier versions, which do not name their functions.
    """
    if code.functions is None:
        return False
    theirs = [one for one in stored.values() if _belongs(app, one.state) and not one.unread]
    functions = {one.schedule.function for one in theirs}
    return bool(functions) and functions.isdisjoint(_functions(declared, code))


def name_of(app: str, declared: Collection[Schedule], code: Code, stored: Mapping[str, Stored]) -> str:
    """Return the name of the App in the store: ``app``, or if that is of other code and only a default, a numbered one.

    The code finds its number again by its functions, whichever of several projects starts first.
    """
    if code.is_named or not is_of_other_code(app, declared, code, stored):
        return app
    numbers = {
        int(match[1])
        for one in stored.values()
        if one.state.origin is Origin.CODE
        and one.state.app.startswith(app)
        and (match := _NUMBERED.fullmatch(one.state.app, len(app)))
    }
    for number in sorted(numbers):
        if not is_of_other_code(f"{app} ({number})", declared, code, stored):
            return f"{app} ({number})"
    return f"{app} ({next(number for number in range(2, len(numbers) + 3) if number not in numbers)})"


def owners(app: str, declared: Iterable[Schedule], stored: Mapping[str, Stored]) -> list[str]:
    """Return the other Apps that have schedules which an App's code declares."""
    states = [stored[schedule.name].state for schedule in declared if schedule.name in stored]
    return sorted({state.app for state in states if state.origin is Origin.CODE and state.app != app})


def differences(
    app: str, declared: Collection[Schedule], stored: Mapping[str, Stored], code: Code = UNKNOWN_CODE
) -> list[Change]:
    """Compare the schedules that an App's governing code declares with the stored ones (by name, all of the namespace).

    Return the changes in the order in which they can be applied: additions and changes with parents first, then removals with
    children first.
    """
    return [change for change in compare(app, declared, stored, code) if change is not None]


def compare(
    app: str,
    declared: Collection[Schedule],
    stored: Mapping[str, Stored],
    code: Code = UNKNOWN_CODE,
    live_apps: Collection[str] = (),
) -> Iterator[Change | None]:
    """Yield the same changes one by one, and None for each unchanged schedule, so that callers can pause in between.

    ``live_apps`` are other Apps whose code runs.
    """
    following = {name: one.schedule for name, one in stored.items()}
    missing: set[str] = set()  # declared schedules that another worker has to add
    for schedule in _parents_first(declared):
        if schedule.function in code.left_out:
            if schedule.name not in stored:
                missing.add(schedule.name)
            yield None
            continue
        change = _declared(app, schedule, stored.get(schedule.name), live_apps)
        if change is not None and change.kind is not Kind.LEFT and (after := missing.intersection(schedule.parents)):
            if schedule.name not in stored:
                missing.add(schedule.name)
            why = f"it runs after {', '.join(sorted(after))}, which this worker leaves out"
            change = _left(schedule, schedule, why)._replace(warning=False)
        if change is not None and change.kind is not Kind.LEFT:
            following[schedule.name] = schedule
        yield change
    children: dict[str, set[str]] = {}
    for one in following.values():
        for parent in one.parents:
            children.setdefault(parent, set()).add(one.name)
    names = {schedule.name for schedule in declared}
    gone = [one.schedule for name, one in stored.items() if name not in names and _belongs(app, one.state)]
    defined = _functions(declared, code)
    for one in reversed(_parents_first(gone)):
        if one.function in code.left_out:
            continue
        if left := children.get(one.name):
            why = f"code does not have it any more, but it is a parent of {', '.join(sorted(left))}"
            yield _left(one, None, why)
        else:
            for parent in one.parents:
                children[parent].discard(one.name)
            text = f"removed {one.name}: {triggers.describe(one)}"
            foreign = code.functions is not None and one.function not in defined
            if foreign:
                text += f"; this code of the App {_name(app)!r} does not define its function {_text(one.function)}"
            yield Change(Kind.REMOVED, one.name, one, None, text, foreign)


def _functions(declared: Iterable[Schedule], code: Code) -> set[bytes]:
    return {schedule.function for schedule in declared} | (code.functions or frozenset())


def _declared(app: str, schedule: Schedule, stored: Stored | None, live_apps: Collection[str]) -> Change | None:
    name = schedule.name
    if stored is None:
        return Change(Kind.ADDED, name, None, schedule, f"added {name}: {triggers.describe(schedule)}")
    before, state, _ = stored
    is_applied = before == schedule or state.declared == digest([schedule])
    if _belongs(app, state):
        if is_applied:
            return None
        text = f"changed {name}: {_summary(before, schedule)}"
        return Change(Kind.CHANGED, name, before, schedule, text)
    if state.origin is Origin.CLI:
        return _left(before, schedule, f"code declares it, but it was made by hand; {_to_adopt(app, name)}")
    owner = f"the App {_name(state.app)!r}"
    if before.function != schedule.function:
        function = _text(before.function)
        why = f"code declares it, but it was made by {owner} for the function {function}; {_to_adopt(app, name)}"
        return _left(before, schedule, why)
    if state.app in live_apps:
        why = f"code declares it, but {owner} has it, and also runs; this App takes it over a minute after that one has ended"
        return _left(before, schedule, why)
    text = f"took over {name} from {owner}, which does not run any more"
    if not is_applied:
        text += f": {_summary(before, schedule)}"
    return Change(Kind.ADOPTED, name, before, before if is_applied else schedule, text, warning=True)


def check_app(app: str, stored: Iterable[Stored], caller: Caller) -> None:
    """Raise ForbiddenError if an App has schedules of functions for which a caller has no rights: it is another one's App.

    Its declarations decide which version of the App governs, and its name who else may use that. So the caller may neither
    declare schedules of the App nor give it others.
    """
    namespace, name = namespaces.split_text(app)
    if caller.functions(Permission.DEVELOP, namespace) is None:
        return
    beyond = sum(_belongs(app, one.state) and not _reaches(caller, Permission.DEVELOP, one) for one in stored)
    if beyond:
        raise ForbiddenError(
            f"the App {name!r} has {beyond} schedules of functions for which {caller.name!r} lacks the permission"
            f" {Permission.DEVELOP.value!r}: give this App another name with App(name=…), use a token for all of its functions,"
            " or let an administrator remove them"
        )


def _reaches(caller: Caller, permission: Permission, stored: Stored) -> bool:
    function = stored.schedule.function
    return caller.may(permission, namespaces.namespace_of(function), _text(function))


def other_code(app: str, name: str, stored: Mapping[str, Stored], caller: Caller = LOCAL) -> Change:
    """Return a line about an App that is called ``name`` because other code has the default name ``app``.

    It names the schedules that the ``caller`` may see.
    """
    theirs = [
        _name(key) for key, one in stored.items() if _belongs(app, one.state) and _reaches(caller, Permission.READ, one)
    ]
    if not theirs:
        text = f"another App has the name {_name(app)!r}: this one is {_name(name)!r} here. Name it with App(name=…)"
        return Change(Kind.LEFT, name, None, None, text, warning=True)
    text = (
        f"another App has the name {_name(app)!r}, with the schedules {_some(theirs)}, whose functions this code lacks: this one"
        f" is {_name(name)!r} here. Name it with App(name=…). If those are of an earlier version of this code, remove them with:"
        f" mainspring schedules remove {' '.join(map(shlex.quote, sorted(theirs)[:MOST_NAMED]))}{_scope(app)}"
    )
    return Change(Kind.LEFT, name, None, None, text, warning=True)


def refusal(app: str, stored: Mapping[str, Stored]) -> str:
    """Return why the declaration of an App's code is refused while other code has the name."""
    theirs = [_name(key) for key, one in stored.items() if _belongs(app, one.state)]
    return (
        f"another App named {_name(app)!r} runs on this server, with the schedules {_some(theirs)}, whose functions this code"
        " lacks: give one of them another name with App(name=…). If it is an earlier version of this code, stop its workers:"
        " a minute later, the schedules of this one apply"
    )


MOST_NAMED: Final = 10
"""The most schedules that a message names."""


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(sorted(names)[:MOST_NAMED]) + more


def _to_adopt(app: str, schedule: str) -> str:
    name = shlex.quote(_name(schedule))
    return f"give it to the code with: mainspring schedules adopt {name} --app {shlex.quote(_name(app))}{_scope(app)}"


def _scope(app: str) -> str:
    namespace, _ = namespaces.split_text(app)
    return "" if namespace == namespaces.DEFAULT else f" --namespace {namespace}"


def _name(key: str) -> str:
    return namespaces.split_text(key)[1]


def _text(function: bytes) -> str:
    return name_text(namespaces.name_of(function))


def _left(before: Schedule, after: Schedule | None, why: str) -> Change:
    return Change(Kind.LEFT, before.name, before, after, f"left {before.name} alone: {why}", warning=after is not None)


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
        case "jitter" | "misfire_after" | "timeout" | "expires" | "start_within" | "deadline":
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


T = TypeVar("T", bound=msgspec.Struct)

encode: Final = msgspec.msgpack.Encoder().encode
_decode_schedule: Final = msgspec.msgpack.Decoder(Schedule).decode
_decode_state: Final = msgspec.msgpack.Decoder(ScheduleState).decode
_decode_fire: Final = msgspec.msgpack.Decoder(Fire).decode
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of stored values that cannot be decoded."""


def decode_schedule(name: str, data: bytes) -> tuple[Schedule, str]:
    """Return a schedule, and what could not be read of it; empty if all could."""
    try:
        return _decode_schedule(data), ""
    except UNREADABLE as error:
        return _decoded_part(Schedule, data, {"function": b""}, {"name": name}), f"{error}"


def decode_state(data: bytes) -> tuple[ScheduleState, str]:
    """Return the state of a schedule, and what could not be read of it; empty if all could."""
    try:
        return _decode_state(data), ""
    except UNREADABLE as error:
        return _decoded_part(ScheduleState, data, {}, {}), f"{error}"


def decode_stored(name: str, schedule: bytes, state: bytes) -> Stored:
    """Return a schedule with its state."""
    decoded, unread = decode_schedule(name, schedule)
    decoded_state, unread_state = decode_state(state)
    return Stored(decoded, decoded_state, unread or unread_state)


def decode_fires(rows: Iterable[bytes]) -> list[Fire]:
    """Return rows, without those that are so damaged that they do not name their schedules and fire times."""
    return [fire for row in rows if (fire := _fire(row, {})) is not None]


def decode_fire(schedule: str, fire_us: int, data: bytes) -> Fire:
    """Return the row of a fire time. A state that cannot be read counts as skipped: it needs nothing more."""
    fire = _fire(data, {"schedule": schedule, "fire_us": fire_us})
    assert fire is not None, "it has its key"
    return fire


def _fire(data: bytes, key: Mapping[str, Any]) -> Fire | None:
    try:
        return _decode_fire(data)
    except UNREADABLE:
        try:
            return _decoded_part(Fire, data, {"state": FireState.SKIPPED}, key)
        except TypeError:
            return None


def _decoded_part(kind: type[T], data: bytes, defaults: Mapping[str, Any], key: Mapping[str, Any]) -> T:
    """Return a struct with those of its fields that can be read. Raises TypeError if a required one is missing."""
    try:
        raw = msgspec.msgpack.decode(data)
    except UNREADABLE:
        raw = {}
    return readable_part(kind, raw if isinstance(raw, dict) else {}, defaults, key)


def readable_part(kind: type[T], raw: Mapping[str, Any], defaults: Mapping[str, Any], key: Mapping[str, Any]) -> T:
    """Return a struct with those of its decoded fields that can be read. Raises TypeError if a required one is missing."""
    values = dict(defaults)
    for field in msgspec.structs.fields(kind):
        if field.name in raw:
            try:
                values[field.name] = msgspec.convert(raw[field.name], field.type, builtin_types=(bytes,))
            except UNREADABLE:
                continue
    return kind(**{**values, **key})


def fault_of(stored: Stored) -> str:
    """Return why this node cannot decide the fire times of a schedule; empty if it can."""
    if stored.unread:
        return f"this version of Mainspring cannot read it: {stored.unread}"
    return fault(stored.schedule)


def fault(schedule: Schedule) -> str:
    """Return what this node does not know of a schedule: its zone, its expression, a date; empty if it knows all.

    A zone that becomes known later, because it is installed, is found then.
    """
    try:
        match schedule.trigger:
            case Cron(expression):
                triggers.time_zone(schedule.timezone)
                triggers.parse(expression)
            case Every(interval_us) if interval_us <= 0:
                return f"its interval is {interval_us} microseconds"
            case _:
                pass
        if schedule.exclude:
            triggers.time_zone(schedule.timezone)
            _check_dates(schedule.exclude)
    except UsageError as error:
        return str(error)
    if not (isfinite(schedule.jitter) and isfinite(schedule.misfire_after)):
        return "its jitter or misfire_after is no finite number"
    return ""


@lru_cache(maxsize=1000)
def _check_dates(days: tuple[str, ...]) -> None:
    for day in days:
        try:
            date.fromisoformat(day)
        except ValueError:
            raise UsageError(f"exclude has {day!r}, which is not a date") from None

"""The schedules in the tree: their paths, and the records in their nodes.

Records are JSON. Bytes that are text become a string; see ``records``.

::

    /schedules/catalogue                            its version rises when a specification changes; lists these
    /schedules/specs/<b>/<schedule>                 its specification by the user
    /schedules/states/<schedule>                    its state; a transaction that locks it writes it
    /schedules/due/<minute>-<shard>/<us>.<version>.<schedule>   its next fire time; no data
    /schedules/unfinished/<schedule>/<us>           a row that is not finished; no data
    /schedules/mending/<b>/q.<schedule>             it has waiting rows; no data
    /schedules/mending/<b>/j.<job>.<us>.<schedule>  a row that has joined a job; no data
    /schedules/mending/<b>/s.<us>.<schedule>        a row that waits for its children; no data
    /schedules/joins/<us>.<schedule>                the progress of its parents for one occasion
    /schedules/declared/<app>                       the declarations of an App
    /fires/<schedule>                               the fire time up to which its rows were dropped
    /fires/<schedule>/<block>/<us>                  the row of a fire time

``<schedule>`` is its name, percent-encoded. The parents that a schedule or a time needs are created with it.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.engines.zookeeper import paths, records
from mainspring.schedules.codecs import UNREADABLE, readable_part
from mainspring.schedules.model import Fire, FireState, Schedule, ScheduleState
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment
from mainspring.schedules.store import Declared, Standing, standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.schedules.store import Key

CATALOGUE: Final = f"{paths.SCHEDULES}/catalogue"
SPECS: Final = f"{paths.SCHEDULES}/specs"
STATES: Final = f"{paths.SCHEDULES}/states"
DUE: Final = f"{paths.SCHEDULES}/due"
_MINUTE_NAME: Final = re.compile(r"[0-9]{12,18}-[0-9]{1,3}")
_DUE_NAME: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.(.+)", re.DOTALL)
UNFINISHED: Final = f"{paths.SCHEDULES}/unfinished"
REPAIRS: Final = f"{paths.SCHEDULES}/mending"
JOINS: Final = f"{paths.SCHEDULES}/joins"
DECLARED: Final = f"{paths.SCHEDULES}/declared"

BUCKETS: Final = tuple(f"{number:x}" for number in range(16))
ROOTS: Final = (
    CATALOGUE, SPECS, STATES, DUE, UNFINISHED, REPAIRS, JOINS, DECLARED, paths.FIRES,
    *(f"{root}/{bucket}" for root in (SPECS, REPAIRS) for bucket in BUCKETS),
)  # fmt: skip
"""The nodes of an empty tree."""
SHARDS: Final = 4
"""Parents of one minute: ten thousand schedules with names of 60 letters, due at once, are listed in 200 kB each."""
BLOCK_US: Final = 4096 * 1_000_000
"""Rows of about an hour share a parent: at ten a second, the most there can be, a megabyte of names."""


def part(name: str) -> str:
    """Return the last part of a path for the name of a schedule or an App."""
    encoded = paths.encode(name.encode())
    return f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded


def name_of(part: str) -> str:
    """Return the name of a `part`."""
    return paths.decode(part).decode()


def _bucket(text: str) -> str:
    return BUCKETS[zlib.crc32(text.encode()) & 15]


def spec(name: str) -> str:
    """Return the path of a specification."""
    text = part(name)
    return f"{SPECS}/{_bucket(text)}/{text}"


def state(name: str) -> str:
    """Return the path of a schedule's state."""
    return f"{STATES}/{part(name)}"


def fires(name: str) -> str:
    """Return the parent of the blocks of a schedule's rows."""
    return f"{paths.FIRES}/{part(name)}"


def block(name: str, fire_us: int) -> str:
    """Return the parent of a row. Names of blocks are numbers, which rise with time."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}"


def row(name: str, fire_us: int) -> str:
    """Return the path of a row."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}/{fire_us}"


def key_of_row(path: str) -> tuple[str, int]:
    """Return the schedule and the fire time of a `row`."""
    _, name, _, time = path.rsplit("/", 3)
    return name_of(name), int(time)


def unfinished(name: str) -> str:
    """Return the parent of the index nodes of a schedule's unfinished rows."""
    return f"{UNFINISHED}/{part(name)}"


def join(name: str, fire_us: int) -> str:
    """Return the path of a join."""
    return f"{JOINS}/{fire_us}.{part(name)}"


def declared(app: str) -> str:
    """Return the path of an App's declarations."""
    return f"{DECLARED}/a.{part(app)}"


# ---- due schedules ----


class DueName(NamedTuple):
    """The parsed name of a node below ``due``."""

    next_us: int
    version: int
    name: str


def due(name: str, now: ScheduleState) -> str | None:
    """Return the path of the index node of a schedule's next fire time; None if there is none."""
    if now.next_us is None:
        return None
    text = part(name)
    shard = zlib.crc32(text.encode()) % SHARDS
    return f"{DUE}/{minute(now.next_us):012d}-{shard}/{now.next_us}.{now.version}.{text}"


def minutes_of(names: Iterable[str] | None) -> list[str]:
    """Return the children of `DUE` that are parents of a minute, without foreign nodes."""
    return [name for name in names or () if _MINUTE_NAME.fullmatch(name)]


def minute(time_us: int) -> int:
    """Return the minute of a time."""
    return time_us // paths.MINUTE_US


def due_names_of(names: Iterable[str] | None) -> list[DueName]:
    """Return the parsed names of the children of such a parent, without foreign nodes."""
    found = [match for name in names or () if (match := _DUE_NAME.fullmatch(name)) is not None]
    return [DueName(int(one[1]), int(one[2]), name_of(one[3])) for one in found]


# ---- possible repairs ----


class RepairMark(NamedTuple):
    """The parsed name of a node below ``mending``."""

    kind: str
    """``q``, ``j`` or ``s``."""
    name: str
    fire_us: int = 0
    job: int = 0


def _repair_mark(text: str) -> str:
    return f"{REPAIRS}/{_bucket(text)}/{text}"


def queued(name: str) -> str:
    """Return the path of the index node of a schedule with waiting rows."""
    return _repair_mark(f"q.{part(name)}")


def repair_mark(fire: Fire) -> str | None:
    """Return the path of the index node of a row that may need a repair; None for all others."""
    match standing(fire):
        case Standing.JOINED:
            return _repair_mark(f"j.{fire.job}.{fire.fire_us}.{part(fire.schedule)}")
        case Standing.ENDED:
            return _repair_mark(f"s.{fire.fire_us}.{part(fire.schedule)}")
        case _:
            return None


def parse_repair_mark(child: str) -> RepairMark:
    """Return the parsed name of such a node."""
    kind, _, rest = child.partition(".")
    match kind:
        case "j":
            job, fire_us, text = rest.split(".", 2)
            return RepairMark(kind, name_of(text), int(fire_us), int(job))
        case "s":
            fire_us, _, text = rest.partition(".")
            return RepairMark(kind, name_of(text), int(fire_us))
        case _:
            return RepairMark(kind, name_of(rest))


T = TypeVar("T", Schedule, ScheduleState, Fire, Join)
_BYTES: Final[dict[type, tuple[str, ...]]] = {
    Schedule: ("function", "args", "unique"),
    ScheduleState: ("declared",),
    Fire: ("error",),
    Join: (),
}
"""The fields with bytes."""


def encode_record(value: Schedule | ScheduleState | Fire | Join, **more: Any) -> bytes:
    """Return a value as a node's data; ``more`` are fields that are not its own."""
    fields = msgspec.to_builtins(value, builtin_types=(bytes,))
    for field in _BYTES[type(value)]:
        records.text(fields.pop(field, b""), field, fields)
    return records.encode(fields | more)


def decode_record(data: bytes, kind: type[T]) -> T:
    """Return the value of a node's data."""
    return _convert(records.decode(data), kind)


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    for field in _BYTES[kind]:
        fields[field] = records.untext(fields, field)
    return msgspec.convert(fields, kind, builtin_types=(bytes,))


def decode_schedule(name: str, data: bytes) -> tuple[Schedule, str]:
    """Return a schedule, and what could not be read of it; see ``schedules.codecs``."""
    return _decode_part(data, Schedule, {"function": b""}, {"name": name})


def decode_state(data: bytes) -> tuple[ScheduleState, str]:
    """Return the state of a schedule, and what could not be read of it."""
    return _decode_part(data, ScheduleState, {}, {})


def _decode_part(data: bytes, kind: type[T], defaults: dict[str, Any], key: dict[str, Any]) -> tuple[T, str]:
    fields: dict[str, Any] = {}
    try:
        fields = records.decode(data)
        return _convert(fields, kind), ""
    except UNREADABLE as error:
        return readable_part(kind, fields, defaults, key), f"{error}"


class Row:
    """A row with the keys of the rows that have joined its job."""

    __slots__ = ("fire", "joined")

    def __init__(self, fire: Fire, joined: Sequence[Key] = ()) -> None:
        self.fire = fire
        self.joined = joined

    def encode(self) -> bytes:
        """Return it as a node's data."""
        return encode_record(self.fire, **({"joined": self.joined} if self.joined else {}))


def decode_row(schedule: str, fire_us: int, data: bytes) -> Row:
    """Return the row of a fire time."""
    key = {"schedule": schedule, "fire_us": fire_us}
    fire, unread = _decode_part(data, Fire, {"state": FireState.SKIPPED}, key)
    joined = () if unread else records.decode(data).get("joined", ())
    return Row(fire, [(name, at) for name, at in joined])


def history(forgotten_us: int) -> bytes:
    """Return the data of the parent of a schedule's rows: the fire time up to which they were dropped."""
    return records.encode({"forgotten_us": forgotten_us})


def forgotten_us(data: bytes) -> int:
    """Return the fire time up to which rows were dropped; 0 if none were."""
    return int(records.decode(data).get("forgotten_us", 0))


# ---- the changes of the catalogue ----

CHANGED_NAMES: Final = 500
"""Names of changed specifications that the catalogue keeps, for nodes with an older version in their cache."""


def changes_since(data: bytes, version: int) -> set[str] | None:
    """Return the schedules whose specifications have changed after a version; None if that version is too old."""
    record = records.decode(data)
    if version < record.get("since", 0):
        return None
    return {name for at, names in record.get("changed", ()) if at > version for name in names}


def changed(data: bytes, version: int, names: Sequence[str]) -> bytes:
    """Return the catalogue's data after one more change, which gives it ``version``."""
    record = records.decode(data)
    since, changes = record.get("since", 0), [*record.get("changed", ()), [version, list(names)]]
    while sum(len(names) for _, names in changes) > CHANGED_NAMES:
        since = changes.pop(0)[0]
    return records.encode({"since": since, "changed": changes})


# ---- declarations ----


def declarations(app: str, data: bytes) -> list[Declared]:
    """Return the declarations of an App."""
    return [
        Declared(Deployment(app, bytes.fromhex(digest), first_us), last_us)
        for digest, (first_us, last_us) in records.decode(data).get("declarations", {}).items()
    ]


def declare(app: str, data: bytes, digest: bytes, now_us: int) -> bytes:
    """Return the data of an App's declarations after one more."""
    record = records.decode(data)
    registered = record.get("declarations", {})
    # Later than the others, also if the clock was set back.
    new_us = max(now_us, *(times[0] + 1 for times in registered.values()), 0)
    first_us = registered.get(digest.hex(), (new_us,))[0]
    return records.encode({"app": app, "declarations": registered | {digest.hex(): [first_us, now_us]}})

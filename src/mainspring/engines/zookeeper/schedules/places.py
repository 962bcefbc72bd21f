"""Where the schedules are in the tree.

::

    /schedules/catalogue                            its version rises when a specification changes; which ones did
    /schedules/specs/<b>/<schedule>                 what a user says
    /schedules/states/<schedule>                    how it stands; whoever locks it writes it
    /schedules/due/<minute>-<shard>/<us>.<version>.<schedule>   its next fire time; no data
    /schedules/unfinished/<schedule>/<us>           a row that is not finished; no data
    /schedules/mending/<b>/q.<schedule>             it has rows that wait; no data
    /schedules/mending/<b>/j.<job>.<us>.<schedule>  a row that has joined a job; no data
    /schedules/mending/<b>/s.<us>.<schedule>        a row that waits for its children; no data
    /schedules/joins/<us>.<schedule>                how far its parents are for an occasion
    /schedules/declared/<app>                       the declarations of an App
    /fires/<schedule>                               up to which fire time its rows were dropped
    /fires/<schedule>/<block>/<us>                  the row of a fire time

``<schedule>`` is its name, percent-encoded. The parents that a schedule or a time needs are created when they are needed.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.engines.zookeeper import paths
from mainspring.schedules.store import Standing, standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.schedules.model import Fire, ScheduleState

CATALOGUE: Final = f"{paths.SCHEDULES}/catalogue"
SPECS: Final = f"{paths.SCHEDULES}/specs"
STATES: Final = f"{paths.SCHEDULES}/states"
DUE: Final = f"{paths.SCHEDULES}/due"
_MINUTE_NAME: Final = re.compile(r"[0-9]{12,18}-[0-9]{1,3}")
_DUE_NAME: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.(.+)", re.DOTALL)
UNFINISHED: Final = f"{paths.SCHEDULES}/unfinished"
MENDING: Final = f"{paths.SCHEDULES}/mending"
JOINS: Final = f"{paths.SCHEDULES}/joins"
DECLARED: Final = f"{paths.SCHEDULES}/declared"

BUCKETS: Final = tuple(f"{number:x}" for number in range(16))
ROOTS: Final = (
    CATALOGUE, SPECS, STATES, DUE, UNFINISHED, MENDING, JOINS, DECLARED, paths.FIRES,
    *(f"{root}/{bucket}" for root in (SPECS, MENDING) for bucket in BUCKETS),
)  # fmt: skip
"""What an empty tree is given."""
SHARDS: Final = 4
"""Parents of one minute: ten thousand schedules of one name's length of 60 that are due together are listed in 200 kB each."""
BLOCK_US: Final = 4096 * 1_000_000
"""Rows of about an hour share a parent: at ten a second, the most there can be, a megabyte of names."""


def part(name: str) -> str:
    """Write a schedule's name, or an App's, as the last part of a path."""
    encoded = paths.encode(name.encode())
    return f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded


def name_of(part: str) -> str:
    """Return the name that `part` has written."""
    return paths.decode(part).decode()


def _bucket(text: str) -> str:
    return BUCKETS[zlib.crc32(text.encode()) & 15]


def spec(name: str) -> str:
    """Return where a specification is."""
    text = part(name)
    return f"{SPECS}/{_bucket(text)}/{text}"


def state(name: str) -> str:
    """Return where it is written how a schedule stands."""
    return f"{STATES}/{part(name)}"


def fires(name: str) -> str:
    """Return the parent of the blocks of a schedule's rows."""
    return f"{paths.FIRES}/{part(name)}"


def block(name: str, fire_us: int) -> str:
    """Return the parent of a row. Names of blocks are numbers, which rise with time."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}"


def row(name: str, fire_us: int) -> str:
    """Return where a row is."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}/{fire_us}"


def unfinished(name: str) -> str:
    """Return the parent of what stands for a schedule's rows that are not finished."""
    return f"{UNFINISHED}/{part(name)}"


def join(name: str, fire_us: int) -> str:
    """Return where a join is."""
    return f"{JOINS}/{fire_us}.{part(name)}"


def declared(app: str) -> str:
    """Return where an App's declarations are."""
    return f"{DECLARED}/a.{part(app)}"


# ---- what is due ----


class DueName(NamedTuple):
    """What the name of a node below ``due`` says."""

    next_us: int
    version: int
    name: str


def due(name: str, now: ScheduleState) -> str | None:
    """Return the node that says when a schedule is due next; None where it never is."""
    if now.next_us is None:
        return None
    text = part(name)
    shard = zlib.crc32(text.encode()) % SHARDS
    return f"{DUE}/{minute(now.next_us):012d}-{shard}/{now.next_us}.{now.version}.{text}"


def minutes_of(names: Iterable[str] | None) -> list[str]:
    """Return those of the children of `DUE` that are parents of a minute: somebody else may have put others there."""
    return [name for name in names or () if _MINUTE_NAME.fullmatch(name)]


def minute(time_us: int) -> int:
    """Return the minute of a time."""
    return time_us // paths.MINUTE_US


def due_names_of(names: Iterable[str] | None) -> list[DueName]:
    """Read those of the children of such a parent that are named as they should be."""
    found = [match for name in names or () if (match := _DUE_NAME.fullmatch(name)) is not None]
    return [DueName(int(one[1]), int(one[2]), name_of(one[3])) for one in found]


# ---- what is to be mended ----


class Mendable(NamedTuple):
    """What the name of a node below ``mending`` says."""

    kind: str
    """``q``, ``j`` or ``s``."""
    name: str
    fire_us: int = 0
    job: int = 0


def _mending(text: str) -> str:
    return f"{MENDING}/{_bucket(text)}/{text}"


def queued(name: str) -> str:
    """Return what stands for a schedule with rows that wait."""
    return _mending(f"q.{part(name)}")


def mending(fire: Fire) -> str | None:
    """Return what stands for a row that may have to be mended; None for all others."""
    match standing(fire):
        case Standing.JOINED:
            return _mending(f"j.{fire.job}.{fire.fire_us}.{part(fire.schedule)}")
        case Standing.ENDED:
            return _mending(f"s.{fire.fire_us}.{part(fire.schedule)}")
        case _:
            return None


def mendable(child: str) -> Mendable:
    """Read the name of such a node."""
    kind, _, rest = child.partition(".")
    match kind:
        case "j":
            job, fire_us, text = rest.split(".", 2)
            return Mendable(kind, name_of(text), int(fire_us), int(job))
        case "s":
            fire_us, _, text = rest.partition(".")
            return Mendable(kind, name_of(text), int(fire_us))
        case _:
            return Mendable(kind, name_of(rest))

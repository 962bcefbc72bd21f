"""The paths of all nodes of the tree, below the chroot.

::

    /pending_tasks/<bb>/<task>     due, without a worker: the record of the task
    /running_tasks/<bb>/<task>     assigned: the record of the task
    /completed_tasks/<bb>/<task>   ended, and not published yet: the record of the outcome
    /delayed_tasks/<minute>/<us>.<id>.<task> not due yet: the record of the task; the microsecond of the minute
    /expiring/<minute>/<us>.<id>.<task>      a live task that expires unless it is started in time; no data
    /workers/<node>-<term>         ephemeral: a live node; its row
    /queues/<node>-<term>/<task>   a task assigned to it: an assignment
    /wants/<node>-<term>           its open requests
    /journals/<node>-<term>        the number of its last batch, and its changes of the counts
    /names/<bb>/<task>             from submission to publication: the job that has the name
    /results/<block>/<handle>      from submission to the end of retention: the name of the task, then its outcome
    /terms/<term>                  the node that had a term
    /master                        ephemeral: the master
    /master_term                   its version rises with each master: the fence
    /mail/<node>-<term>/m-<number> messages for a node
    /draining/<node>               a request that it claim no more tasks
    /schedules/…, /fires/…         see `schedules.places`
    /layout                        the version of all this
    /cluster                       beside another store: the id of the cluster; of the rest only `workers` and `mail` exist

``<task>`` consists of function and unique, so a second task of the same name cannot be created.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from mainspring import namespaces
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable

PENDING: Final = "/pending_tasks"
RUNNING: Final = "/running_tasks"
COMPLETED: Final = "/completed_tasks"
DELAYED: Final = "/delayed_tasks"
EXPIRING: Final = "/expiring"
WORKERS: Final = "/workers"
QUEUES: Final = "/queues"
WANTS: Final = "/wants"
JOURNALS: Final = "/journals"
NAMES: Final = "/names"
RESULTS: Final = "/results"
TERMS: Final = "/terms"
MASTER: Final = "/master"
MASTER_TERM: Final = "/master_term"
MAIL: Final = "/mail"
DRAINING: Final = "/draining"
SCHEDULES: Final = "/schedules"
FIRES: Final = "/fires"
LAYOUT: Final = "/layout"
CLUSTER: Final = "/cluster"

ROOTS: Final = (
    PENDING, RUNNING, COMPLETED, DELAYED, EXPIRING, WORKERS, QUEUES, WANTS, JOURNALS, NAMES, RESULTS, TERMS, MASTER_TERM, MAIL,
    DRAINING, SCHEDULES,
)  # fmt: skip
"""The roots of an empty tree, which the first node creates."""
TOPS: Final = frozenset((*ROOTS, MASTER, FIRES, LAYOUT, CLUSTER))
"""All nodes directly below the chroot."""
BUCKETED: Final = (PENDING, RUNNING, COMPLETED, NAMES)
BUCKETS: Final = tuple(f"{number:02x}" for number in range(256))
"""One answer lists the children of one node, and has a limit of about a megabyte."""

LONGEST: Final = 200
"""Bytes of a task's name; a longer one is cut and ends with a digest of the whole."""
BLOCK: Final = 1000
"""Ids whose results share a parent."""
MINUTE_US: Final = 60_000_000

_SAFE: Final = "!$&'()*+,;=@"


def encode(text: bytes) -> str:
    """Return a part of a path for bytes."""
    return quote(text, safe=_SAFE)


def decode(part: str) -> bytes:
    """Return the bytes of a part that `encode` has returned."""
    return unquote_to_bytes(part)


def encode_function(key: bytes) -> str:
    """Return a part of a path for a function, given by its key: the tree has its name, because it has one namespace only."""
    return encode(namespaces.name_of(key))


def decode_function(part: str) -> bytes:
    """Return the key of a function of a part that `encode_function` has returned."""
    return namespaces.key(namespaces.DEFAULT, decode(part))


def _part(text: bytes) -> str:
    """Return one encoded part of a name: without slashes and colons; a leading ``~`` is reserved."""
    encoded = encode(text)
    return f"%7E{encoded[1:]}" if encoded.startswith("~") else encoded


def task_name(function: bytes, unique: bytes, job_id: int) -> str:
    """Return the name of a task: its function, given by its key, and its unique or else its id."""
    function = namespaces.name_of(function)
    name = f"{_part(function)}:{_part(unique) if unique else f'~{job_id}'}"
    if len(name) <= LONGEST:
        return name
    # The head depends on the function only: tasks of a function with a long name can still be found by their function.
    digest = hashlib.sha256(b"%d:%b%b" % (len(function), function, unique)).hexdigest()[:40]
    head = _part(function)
    if len(head) > 100:
        head = f"~{hashlib.sha256(function).hexdigest()[:40]}"
    return f"{head}:~{digest}"


def function_of(task: str) -> bytes | None:
    """Return the key of the function in a task's name; None if it was too long and only the record contains it."""
    head = task.partition(":")[0]
    return None if head.startswith("~") else decode_function(head)


def bucket(task: str) -> str:
    """Return the two digits of a task's bucket."""
    return f"{zlib.crc32(task.encode()) & 0xFF:02x}"


def _of_task(root: str, task: str) -> str:
    return f"{root}/{bucket(task)}/{task}"


pending = partial(_of_task, PENDING)
"""Return the path of a pending task."""
running = partial(_of_task, RUNNING)
"""Return the path of an assigned task."""
completed = partial(_of_task, COMPLETED)
"""Return the path of an ended task before its publication."""
name = partial(_of_task, NAMES)
"""Return the path of a task's name, which makes the task unique."""


def minute(root: str, time_us: int) -> str:
    """Return the parent of the entries of one minute (``DELAYED``, ``EXPIRING``); their names sort by time."""
    return f"{root}/{time_us // MINUTE_US:012d}"


def _timed(root: str, task: str, time_us: int, job_id: int) -> str:
    return f"{minute(root, time_us)}/{time_us % MINUTE_US:08d}.{job_id}.{task}"


delayed = partial(_timed, DELAYED)
"""Return the path of a delayed task, by its due time and its job's id."""
expiring = partial(_timed, EXPIRING)
"""Return the path of the index node of a task's expiry, by the time and its job's id."""


class Timed(NamedTuple):
    """The parsed name of an entry of ``delayed`` or ``expiring``; they sort in the order of their times."""

    time_us: int
    id: int
    task: str
    path: str


def block(job_id: int) -> str:
    """Return the parent of a job's result."""
    term, number = divmod(job_id, TERM_SPAN)
    return f"{RESULTS}/{term}-{number // BLOCK}"


def first_of_block(name: str) -> int:
    """Return the smallest id whose result is in a block, by the block's name."""
    term, _, number = name.partition("-")
    return int(term) * TERM_SPAN + int(number) * BLOCK


def result(job_id: int, node: str) -> str:
    """Return the path of a job's result: its last part is the job's handle. ``node`` had the id's term."""
    return f"{block(job_id)}/H:{node}:{job_id}"


# Other clients may have created nodes with other names: lists of a root's children ignore them.
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_TIMED_NAME: Final = re.compile(r"([0-9]{8})\.([0-9]{1,18})\.(.+:.+)", re.DOTALL)


def worker_name(node: str, term: int) -> str:
    """Return the name of a run of a node: ``n1-7``."""
    return f"{node}-{term}"


def term_of(worker: str) -> int:
    """Return the term of a worker's name."""
    return int(worker.rpartition("-")[2])


def named(pattern: re.Pattern[str], names: Iterable[str] | None) -> list[str]:
    """Return the names that match a pattern, in order."""
    return sorted(name for name in names or () if pattern.fullmatch(name))


workers_of = partial(named, re.compile(r".+-[0-9]{1,18}", re.DOTALL))
"""Return those of a root's children that are named like a worker."""
journals_of = partial(named, re.compile(r"total|.+-[0-9]{1,18}(\.[0-9]{1,18})?", re.DOTALL))
"""Return those of the children of ``/journals`` that are named like a journal."""
blocks_of = partial(named, re.compile(r"[0-9]{1,18}-[0-9]{1,18}"))
"""Return those of the children of ``/results`` that are named like a block."""
minutes_of = partial(named, re.compile(r"[0-9]{12}"))
"""Return those of a root's children that are named like a minute."""
handles_of = partial(named, re.compile(r"H:.+:[0-9]{1,18}", re.DOTALL))
"""Return those of a block's children that are named like a handle."""


def numbers_of(names: Iterable[str] | None) -> list[int]:
    """Return the numbers among names, in order: terms, or the blocks and times of a schedule's rows."""
    return sorted(int(name) for name in names or () if _NUMBER.fullmatch(name))


def timed_of(parent: str, names: Iterable[str] | None) -> list[Timed]:
    """Return the parsed names of a minute's children, without foreign ones."""
    minute_us = int(parent.rpartition("/")[2]) * MINUTE_US
    found = [match for name in names or () if (match := _TIMED_NAME.fullmatch(name)) is not None]
    return [Timed(minute_us + int(one[1]), int(one[2]), one[3], f"{parent}/{one[0]}") for one in found]


def id_of(handle: str) -> int:
    """Return the id in a handle."""
    return int(handle.rpartition(":")[2])


def below(root: str, child: str) -> str:
    """Return the path of a root's child."""
    return f"{root}/{child}"


worker = partial(below, WORKERS)
"""Return the ephemeral node of a worker."""
queue = partial(below, QUEUES)
"""Return the parent of a worker's assignments."""
wants = partial(below, WANTS)
"""Return the path of a worker's open requests."""
journal = partial(below, JOURNALS)
"""Return the path of a worker's journal."""
mail = partial(below, MAIL)
"""Return the parent of a worker's messages."""


def assignment(who: str, task: str) -> str:
    """Return the path of the assignment of a task to a worker."""
    return f"{QUEUES}/{who}/{task}"

"""Where everything is: the tree below the chroot.

::

    /pending_tasks/<bb>/<task>     due, and nobody has it: the record of the task
    /running_tasks/<bb>/<task>     assigned: the record of the task
    /completed_tasks/<bb>/<task>   ended, and not published yet: the record of the outcome
    /delayed_tasks/<minute>/<us>.<id>.<task> not due yet: the record of the task; the microsecond of the minute
    /expiring/<minute>/<us>.<id>.<task>      a live task that expires unless it is started in time; no data
    /workers/<node>-<term>         ephemeral: a node that lives; what it says of itself
    /queues/<node>-<term>/<task>   what is assigned to it: an assignment
    /wants/<node>-<term>           what it would take: its open claims
    /journals/<node>-<term>        the number of its last batch, and what it has changed in the counts
    /names/<bb>/<task>             from submission to publication: which job has the name
    /results/<block>/<handle>      from submission to the end of retention: where the task is, then its outcome
    /terms/<term>                  the node that had a term
    /master                        ephemeral: who is the master
    /master_term                   its version rises with each master: the fence
    /mail/<node>-<term>/m-<number> messages for a node
    /draining/<node>               somebody asked it to take nothing more
    /schedules/…, /fires/…         see `schedules.places`
    /layout                        the version of all this
    /cluster                       beside another store: the name of this place; of the rest only `workers` and `mail` are there

``<task>`` is made of function and unique, so that a second task of the same name cannot be created: the computation is single.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

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
"""What an empty tree is given, by whoever comes first."""
TOPS: Final = frozenset((*ROOTS, MASTER, FIRES, LAYOUT, CLUSTER))
"""All that is directly below the chroot."""
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
    """Write bytes as a part of a path."""
    return quote(text, safe=_SAFE)


def decode(part: str) -> bytes:
    """Return the bytes that `encode` has written."""
    return unquote_to_bytes(part)


def _part(text: bytes) -> str:
    """Encode one part of a name: without slashes and colons, and a leading ``~`` is ours."""
    encoded = encode(text)
    return f"%7E{encoded[1:]}" if encoded.startswith("~") else encoded


def task_name(function: bytes, unique: bytes, job_id: int) -> str:
    """Return the name of a task: its function and its unique; one without a unique gets its id for one."""
    name = f"{_part(function)}:{_part(unique) if unique else f'~{job_id}'}"
    if len(name) <= LONGEST:
        return name
    # By function as by whole: tasks of a function with a long name are still found by their function.
    digest = hashlib.sha256(b"%d:%b%b" % (len(function), function, unique)).hexdigest()[:40]
    head = _part(function)
    if len(head) > 100:
        head = f"~{hashlib.sha256(function).hexdigest()[:40]}"
    return f"{head}:~{digest}"


def function_of(task: str) -> bytes | None:
    """Return the function that a task's name tells; None where it was too long and only the record tells it."""
    head = task.partition(":")[0]
    return None if head.startswith("~") else decode(head)


def bucket(task: str) -> str:
    """Return the two digits under which a task is found."""
    return f"{zlib.crc32(task.encode()) & 0xFF:02x}"


def pending(task: str) -> str:
    """Return where a due task is that nobody has."""
    return f"{PENDING}/{bucket(task)}/{task}"


def running(task: str) -> str:
    """Return where an assigned task is."""
    return f"{RUNNING}/{bucket(task)}/{task}"


def completed(task: str) -> str:
    """Return where an ended task waits for its publication."""
    return f"{COMPLETED}/{bucket(task)}/{task}"


def name(task: str) -> str:
    """Return the node that makes a computation single."""
    return f"{NAMES}/{bucket(task)}/{task}"


def minute(root: str, time_us: int) -> str:
    """Return the parent of what has its time in one minute (``DELAYED``, ``EXPIRING``): names that sort by time."""
    return f"{root}/{time_us // MINUTE_US:012d}"


def delayed(task: str, due_us: int, job_id: int) -> str:
    """Return where a task waits for its time."""
    return f"{minute(DELAYED, due_us)}/{due_us % MINUTE_US:08d}.{job_id}.{task}"


def expiring(task: str, expires_us: int, job_id: int) -> str:
    """Return what says when a task expires."""
    return f"{minute(EXPIRING, expires_us)}/{expires_us % MINUTE_US:08d}.{job_id}.{task}"


class Timed(NamedTuple):
    """What the names of ``delayed`` and ``expiring`` say: they sort as they are to be taken."""

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
    """Return where the result of a job is, or will be: its last part is the job's handle. ``node`` had the id's term."""
    return f"{block(job_id)}/H:{node}:{job_id}"


# Somebody else may have put other names among them: they are passed over where the children of a root are listed.
_WORKER_NAME: Final = re.compile(r".+-[0-9]{1,18}", re.DOTALL)
_JOURNAL_NAME: Final = re.compile(r"total|.+-[0-9]{1,18}(\.[0-9]{1,18})?", re.DOTALL)
_BLOCK_NAME: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MINUTE_NAME: Final = re.compile(r"[0-9]{12}")
_TIMED_NAME: Final = re.compile(r"([0-9]{8})\.([0-9]{1,18})\.(.+:.+)", re.DOTALL)
_HANDLE: Final = re.compile(r"H:.+:[0-9]{1,18}", re.DOTALL)


def worker_name(node: str, term: int) -> str:
    """Return the name of a run of a node: ``n1-7``."""
    return f"{node}-{term}"


def term_of(worker: str) -> int:
    """Return the term of a worker's name."""
    return int(worker.rpartition("-")[2])


def workers_of(names: Iterable[str] | None) -> list[str]:
    """Return those of a root's children that are named like a worker."""
    return [name for name in names or () if _WORKER_NAME.fullmatch(name)]


def journals_of(names: Iterable[str] | None) -> list[str]:
    """Return those of the children of ``/journals`` that are named like a journal."""
    return [name for name in names or () if _JOURNAL_NAME.fullmatch(name)]


def blocks_of(names: Iterable[str] | None) -> list[str]:
    """Return those of the children of ``/results`` that are named like a block."""
    return [name for name in names or () if _BLOCK_NAME.fullmatch(name)]


def numbers_of(names: Iterable[str] | None) -> list[int]:
    """Return the numbers among names, in order: terms, or the blocks and times of a schedule's rows."""
    return sorted(int(name) for name in names or () if _NUMBER.fullmatch(name))


def minutes_of(names: Iterable[str] | None) -> list[str]:
    """Return those of a root's children that are named like a minute, in order."""
    return sorted(name for name in names or () if _MINUTE_NAME.fullmatch(name))


def timed_of(parent: str, names: Iterable[str] | None) -> list[Timed]:
    """Read those of a minute's children that are named like something that waits for its time."""
    minute_us = int(parent.rpartition("/")[2]) * MINUTE_US
    found = [match for name in names or () if (match := _TIMED_NAME.fullmatch(name)) is not None]
    return [Timed(minute_us + int(one[1]), int(one[2]), one[3], f"{parent}/{one[0]}") for one in found]


def handles_of(names: Iterable[str] | None) -> list[str]:
    """Return those of a block's children that are named like a handle."""
    return [name for name in names or () if _HANDLE.fullmatch(name)]


def id_of(handle: str) -> int:
    """Return the id in a handle."""
    return int(handle.rpartition(":")[2])


def worker(who: str) -> str:
    """Return the ephemeral node of a worker."""
    return f"{WORKERS}/{who}"


def queue(who: str) -> str:
    """Return the parent of what is assigned to a worker."""
    return f"{QUEUES}/{who}"


def assignment(who: str, task: str) -> str:
    """Return the node by which a task is assigned to a worker."""
    return f"{QUEUES}/{who}/{task}"


def wants(who: str) -> str:
    """Return where a worker says what it would take."""
    return f"{WANTS}/{who}"


def journal(who: str) -> str:
    """Return where a worker's last batch is noted."""
    return f"{JOURNALS}/{who}"


def mail(who: str) -> str:
    """Return the parent of a worker's messages."""
    return f"{MAIL}/{who}"

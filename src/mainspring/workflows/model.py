"""The values of the workflows slice besides histories: definitions, runs, their keys and their states.

Times are microseconds of wall time since 1970 UTC (``…_us``); 0 means none. Durations are seconds.

Of the versions that have connected workers, new runs get the one that was registered first the most recently. So a rolling deploy
moves new runs to the new version with its first worker, and workers of the old version that reconnect do not take them back.

The store has for each version when it was first and last seen. The second is written once a minute while workers with the version
are connected. A version that was last seen long before another one has no workers any more. The node writes that a version is
gone ten seconds after its last worker has left, if another one has workers (`definitions`); after a crash of the node, the times
say so.

The state of a run is what its events amount to. `draft.fold` makes it of events, and the store keeps a snapshot of it, so that
a long history is not read again. Values that do not follow from events are in `Parking`.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring import namespaces
from mainspring.errors import UsageError
from mainspring.ids import Handles
from mainspring.jobs.model import FUNCTION_LIMIT
from mainspring.namespaces import name_bytes, name_text
from mainspring.sizes import CANNOT_READ
from mainspring.workflows.history import ChildPolicy

if TYPE_CHECKING:
    from collections.abc import Collection

YEAR: Final = 366 * 86_400.0
"""Seconds; the longest execution timeout, and the default."""

SEMANTICS: Final = 3
"""The newest behaviour of workflow code: how it is cancelled, ends and receives.

A decision records the behaviour with which it was made, and each replay repeats it with the same one. So a version of Mainspring
can change what the same code does, and go on with the runs that an earlier one has begun.

| number | difference from the one before |
|---|---|
| 0 | that of decisions that record none |
| 1 | A cancellation never takes the place of the outcome of a job with ``cancel="wait"``, and is not forgotten after it. |
|   | A run is cancelled once, and its close waits for the tasks that it leaves. |
|   | Errors inside of exception groups, and those of refused calls, park it. Failures of side effects are recorded. |
|   | ``map`` lets ContinueAsNew pass. The next run gets signals with which tasks have only begun. |
| 2 | A result that does not have the declared type fails the run. Values that JSON would change are refused. |
| 3 | Calls of a rerun get the results that it has taken over; see ``workflows.carrying``. |
"""


CHILD_TAG: Final = "mainspring:child"
"""The tag of the children that native code starts."""
PART_TAG: Final = "mainspring:map-part"
"""The tag of a child that runs a part of a map in place of its workflow's function. Only the code of a worker sets it."""


PART: Final = b"\0map\0"
"""The first bytes of the input of a part of a map."""


class Status(IntEnum):
    """The status of a run. The numbers are stored."""

    OPEN = 0
    COMPLETED = 1
    FAILED = 2
    CANCELED = 3
    TERMINATED = 4
    CONTINUED_AS_NEW = 5
    TIMED_OUT = 6

    @property
    def open(self) -> bool:
        """Whether the run goes on."""
        return self is Status.OPEN


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """A version of a workflow, as its workers register it."""

    name: str
    version: str = "1"
    namespace: str = "default"
    timeout: float = YEAR
    """Seconds that a run may last."""
    app: str = ""
    first_seen_us: int = 0
    last_seen_us: int = 0

    @property
    def function(self) -> bytes:
        """Return the key of the function whose jobs start its runs."""
        return namespaces.key(self.namespace, self.name.encode())


class Limits(msgspec.Struct, frozen=True):
    """Limits of a run, which the node's settings give."""

    timeout: float = YEAR
    """Seconds that a run may last; also the time-out of a run without one."""
    events: int = 25_000
    reserved: int = 1_000
    """The last events, which take no signals."""
    warn_events: int = 10_000
    warn_bytes: int = 10 * 2**20
    open_activities: int = 1_000
    open_timers: int = 1_000
    open_children: int = 1_000
    largest: int = 900_000_000
    """Bytes of a payload or result; the engine's limit."""


class Key(NamedTuple):
    """The name of a run: one of ``job``, ``run`` and ``workflow_id``."""

    job: int = 0
    """A root job: it names the open run, or the last run, of its chain."""
    run: int = 0
    """One run of a chain."""
    workflow_id: str = ""
    namespace: str = "default"
    """The namespace of the run; ``namespaces.ANY`` in requests that the node itself makes about a ``job``."""


def workflow_id_of(unique: bytes) -> str:
    """Return the workflow id of a root job with a unique. No workflow id has a NUL, which not all stores keep in texts."""
    return unique.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def key_of(namespace: str, text: str) -> Key:
    """Return the key of a run of a namespace from a handle, a run's handle or a workflow id."""
    handle, _, run = text.rpartition("@")
    if Handles.parse(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
        return Key(run=int(run), namespace=namespace)
    root = Handles.parse(text.encode())
    return Key(job=root or 0, workflow_id=text if root is None else "", namespace=namespace)


UNKNOWN_BUILD: Final = "?"
"""Stands in a run's list of failed builds for those of lost deciders: any connected one may be the one that crashes."""


class Parked(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Why a run is parked."""

    kind: str
    """``mismatch``, ``missing``, ``defect``, ``permission`` or ``losses``."""
    message: str
    """One sentence for people."""
    recorded: tuple[str, ...] = ()
    """Of a mismatch: the recorded commands around the first difference, one line each."""
    code: tuple[str, ...] = ()
    """Of a mismatch: the commands of the code at the same places."""
    at: int = 0
    """The index of the first difference in both."""


class RunProgress(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How much of its work a run's code has reported as done."""

    done: int
    total: int
    text: str = ""


class About(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The things that a run's code waits for besides its activities and timers, for people: ``Completion.about``."""

    channels: tuple[str, ...] = ()
    """The names of the signals that it waits to receive, in order."""
    unread: dict[str, int] = {}
    """The number of unread signals, by name."""
    steps: tuple[str, ...] = ()
    """The functions of local steps that run."""
    conditions: int = 0
    """The number of conditions that it waits for."""
    progress: RunProgress | None = None
    holds: tuple[str, ...] = ()
    """The slots of resources that it waits for, as texts, one for each request."""


encode_about: Final = msgspec.msgpack.Encoder().encode
_decode_about: Final = msgspec.msgpack.Decoder(About).decode


def decode_about(about: bytes) -> About:
    """Return a decider's report; an empty one for no bytes, or for bytes of an unknown form."""
    try:
        return _decode_about(about) if about else About()
    except CANNOT_READ:
        return About()


def step_key(secret: bytes, run: int) -> bytes:
    """Return the key of a run, 16 bytes, with which its steps are recorded in transactions of users (``step_run`` of the store).

    ``secret`` is that of the store.
    """
    return hashlib.sha256(secret + run.to_bytes(8)).digest()[:16]


def decision_function(namespace: str, name: str, version: str) -> bytes:
    """Return the function of the decision tasks of a workflow's version."""
    return f"{DECISION_PREFIX}{namespace}\x1f{name}@{version}".encode()


def check_stated_version(function: bytes, version: str) -> None:
    """Raise UsageError unless a workflow of this function can have this version."""
    name = namespaces.name_of(function).decode("utf-8", "backslashreplace")
    size = len(decision_function(namespaces.DEFAULT, name, version))
    if not version.isprintable() or "@" in version or size > FUNCTION_LIMIT:
        raise UsageError(
            f"{version!r} is not a version of a workflow: give short printable text without @, such as '2'"
        )


def decisions_of(function: bytes) -> tuple[str, str, str] | None:
    """Return namespace, name and version whose decision tasks a function has; None for the functions of other jobs."""
    if not function.startswith(_PREFIX):
        return None
    namespace, _, listed = function[len(_PREFIX) :].decode("utf-8", "backslashreplace").partition("\x1f")
    name, _, version = listed.rpartition("@")
    return namespace, name, version


def function_text(function: bytes) -> str:
    r"""Return a function's name as text, without its namespace; see `byte_names`.

    ``order@2 (decisions)`` stands for decision tasks, and ``order@2\ (decisions)`` for a function of users with that name.
    """
    decisions = decisions_of(function)
    if decisions is None:
        text = name_text(namespaces.name_of(function))
        return text.removesuffix(DECISIONS) + _NO_DECISIONS if text.endswith(DECISIONS) else text
    _, name, version = decisions
    return f"{name}@{version}{DECISIONS}"


def is_of_decisions(text: str) -> bool:
    """Return whether the text of a function stands for the decisions of a workflow."""
    return text.endswith(DECISIONS) and not text.endswith(_NO_DECISIONS)


def function_named(text: str, namespace: str) -> bytes:
    """Return the function of a namespace that `function_text` shows as this text. Raises UsageError for the text of none."""
    if text.endswith(_NO_DECISIONS):
        text = text.removesuffix(_NO_DECISIONS) + DECISIONS
    elif text.endswith(DECISIONS):
        name, at, version = text.removesuffix(DECISIONS).rpartition("@")
        if not at:
            raise UsageError(
                f"{text!r} names no decisions: these have the name and the version of a workflow, as {_EXAMPLE!r}"
            )
        return decision_function(namespace, name, version)
    return namespaces.key(namespace, name_bytes(text))


DECISIONS: Final = " (decisions)"
"""The end of the text for the function of decision tasks."""
_NO_DECISIONS: Final = "\\" + DECISIONS
_EXAMPLE: Final = f"order@2{DECISIONS}"
DECISION_PREFIX: Final = "\x1fd\x1f"
_PREFIX: Final = DECISION_PREFIX.encode()


SEEN_INTERVAL: Final = 60.0
"""Seconds between two writes of the time at which a connected version was last seen."""
LATELY_US: Final = 100_000_000
"""A version that was last seen this long before another one counts as gone. It is more than the interval, with time for a
reconnection, and at most two minutes pass until it is noticed."""


def version_for_new_runs(definitions: Collection[Definition]) -> Definition | None:
    """Return the version that a run without a stated one gets; None if there are no versions."""
    if not definitions:
        return None
    latest_us = max(one.last_seen_us for one in definitions)
    connected = (one for one in definitions if latest_us - one.last_seen_us < LATELY_US)
    return max(connected, key=lambda one: (one.first_seen_us, len(one.version), one.version))


SNAPSHOT_FORMAT: Final = 1
"""The format of stored states. A snapshot of another format is ignored: the state is folded from event 1."""
REQUESTS_KEPT: Final = 100
"""The keys of requests that a run remembers."""


class OpenActivity(msgspec.Struct, array_like=True, gc=False):
    """An activity that has not closed. Times are 0 if there is no such timeout, or if it is over."""

    scheduled: int
    activity_id: str
    function: bytes
    job: int
    scheduled_us: int
    start_by_us: int = 0
    """The end of its schedule-to-start timeout."""
    close_by_us: int = 0
    """The end of its schedule-to-close timeout."""
    started: int = 0
    cancel_requested: int = 0
    """The event that requests its cancellation."""
    start_to_close: float = 0
    heartbeat: float = 0
    end_by_us: int = 0
    """The end of its start-to-close timeout; only in a full history."""
    beat_by_us: int = 0
    """The end of its heartbeat timeout, counted from its start; only in a full history."""
    abandoned: bool = False
    """Whether it goes on after the close of the run."""

    @property
    def due_us(self) -> int:
        """The earliest end of a timeout; 0: none."""
        return min(filter(None, (self.start_by_us, self.close_by_us, self.end_by_us, self.beat_by_us)), default=0)


class OpenTimer(msgspec.Struct, array_like=True, gc=False):
    """A timer that has not fired."""

    started: int
    timer_id: str
    fire_us: int
    start_to_fire: float = 0
    """Seconds; 0 in snapshots of older nodes."""
    control: str = ""


class OpenChild(msgspec.Struct, array_like=True, gc=False):
    """A child that has not closed."""

    initiated: int
    workflow_id: str
    run: int
    policy: ChildPolicy = ChildPolicy.TERMINATE
    """Its fate if its parent is terminated or times out."""
    started: int = 0
    number: int = 0
    """The command that started it."""
    type: str = ""


class State(msgspec.Struct, array_like=True):
    """The state of a run after its event ``last``."""

    last: int = 0
    status: int = 0
    """`model.Status`."""
    run: int = 0
    root: int = 0
    type: str = ""
    version: str = ""
    namespace: str = "default"
    workflow_id: str = ""
    started_us: int = 0
    closed_us: int = 0
    close_by_us: int = 0
    """The end of the execution timeout."""
    full: bool = False
    scheduled: int = 0
    """The open decision task's event; 0 if there is none. A second one may be scheduled behind a started one: ``waiting``."""
    started: int = 0
    waiting: int = 0
    seen: int = 0
    """The last event that a completed decision was given."""
    last_trigger: int = 0
    """The last event that asks for a decision."""
    decided_us: int = 0
    """The latest time that the run's code has read; the time of the next decision is not before it."""
    cancel_requested: int = 0
    activities: dict[int, OpenActivity] = {}
    """By the event that scheduled them."""
    activity_ids: dict[str, int] = {}
    deadlines: dict[int, int] = {}
    """The earliest end of a timeout of each activity that has one."""
    timers: dict[str, OpenTimer] = {}
    steps: dict[int, int] = {}
    """The steps that were recorded since the last completed decision: their digests by number."""
    batch: int = 0
    """The last batch of these steps."""
    step_seen: int = 0
    step_us: int = 0
    """``seen`` and the time of the decision that recorded them; another decider resumes it with the same."""
    requests: dict[int, None] = {}
    """The keys of the last requests from outside, the oldest first."""
    children: dict[int, OpenChild] = {}
    """By the event that initiated them."""
    externals: dict[int, None] = {}
    """The events that initiated signals and cancels to other runs that have no answer yet."""
    task_list: str = ""
    task_priority: int = 1
    task_timeout: float = 0
    task_by_us: int = 0
    """The end of the decision task's current timeout; only in a full history."""
    previous_started: int = 0
    """The start of the last completed decision task."""
    child_policy: ChildPolicy = ChildPolicy.TERMINATE
    tags: tuple[str, ...] = ()
    parent_run: int = 0
    """The run whose child it is; 0 if it is none."""
    parent_initiated: int = 0
    """The event of the parent that initiated it."""
    continued_run: int = 0
    """The run before it in its chain; 0 if there is none."""
    new_run: int = 0
    """The run after it."""
    attempt: int = 1
    begin_us: int = 0
    """The time of its first decision, while it waits for that; 0: it has begun."""
    timed_from_us: int = 0
    """The start of the first attempt, from which the execution timeout runs; 0: its own start."""
    failure: str = ""
    """Why the attempt before has failed; of a failed run that another attempt follows, why it has failed itself."""
    last_us: int = 0
    """The time of the event ``last``: no later event has an earlier one."""
    cancel_reason: str = ""
    """The first reason that a request to cancel has given."""
    depth: int = 0
    """How many deliveries of events have led to the run or to a signal for it; see `depth_of`."""
    depth_us: int = 0
    """When it began, or got the last such signal."""
    holds: dict[int, int] = {}
    """The requests for slots of resources, and the holds, by their numbers, with the events of the requests.

    A node of an earlier version drops them: the rows of the holds decide what the run has."""
    forked_run: int = 0
    """The run of which this one is a reset or a rerun; 0 if it is none."""
    forked_at: int = 0
    """Of a reset: the completed decision of that run which is made anew."""


DEPTH_LASTS_US: Final = 3_600_000_000
"""Microseconds for which a run has a depth. A run that lives for months gets signals from listeners now and then, and each answer
to one would make it deeper: so its events would be delivered no more. A circle with a slower run does no harm."""


def depth_of(state: State, now_us: int) -> int:
    """Return the depth of what a run does at a time."""
    return state.depth if state.depth and now_us < state.depth_us + DEPTH_LASTS_US else 0


class Pause(msgspec.Struct, frozen=True, array_like=True):
    """A pause of a run: until it is resumed, no decision of it is handed out and none of its waiting activities starts."""

    at_us: int
    """Since when."""
    until_us: int = 0
    """When it ends by itself; 0: not at all."""
    reason: str = ""
    by: str = ""
    """The caller who has paused it last."""
    held: dict[int, int] = {}
    """The activities that it holds, by their Scheduled events, with the due times of their jobs before; 0: they were due."""


class Parking(msgspec.Struct, array_like=True):
    """The values of a run that do not follow from its events."""

    losses: int = 0
    """The losses of the decision task since it was scheduled, or since the last step that it recorded."""
    parked: Parked | None = None
    parked_us: int = 0
    builds: tuple[str, ...] = ()
    """The builds that could not make the decision, the last ones."""
    retry_us: int = 0
    """The time at which a run that is parked after losses is tried once more; 0: not at all."""
    pause: Pause | None = None
    """A node of an earlier version would drop it: see `workflows.tables.RunTables.admits_pauses`."""


class _Snapshot(msgspec.Struct, array_like=True):
    format: int
    state: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode_snapshot = msgspec.msgpack.Decoder(_Snapshot).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


def encode_state(state: State) -> bytes:
    """Return the stored form of a state."""
    return _encode((SNAPSHOT_FORMAT, state))


def decode_state(snapshot: bytes) -> State | None:
    """Return a stored state; None if none is stored, or this version cannot read it: the history has all that it has."""
    if not snapshot:
        return None
    try:
        stored = _decode_snapshot(snapshot)
        return _decode_state(stored.state) if stored.format == SNAPSHOT_FORMAT else None
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return None


_FIRE_US: Final = attrgetter("fire_us")


def due_us(state: State, parking: Parking | None = None) -> int:
    """Return the earliest time at which something of a run is due; 0 if nothing is."""
    times = [state.close_by_us, state.task_by_us, state.begin_us]
    if state.timers:
        times.append(min(map(_FIRE_US, state.timers.values())))
    if state.deadlines:
        times.append(min(state.deadlines.values()))
    if parking is not None and not state.status:
        times.append(parking.retry_us)
        if parking.pause is not None:
            times.append(parking.pause.until_us)
    return min(filter(None, times), default=0)

"""The state of a run: what its events amount to.

`fold` makes it of events, and the store keeps a snapshot of it, so that a long history is not read again. Values that do not
follow from events are in `Parking`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import Parked  # noqa: TC001 - msgspec reads the annotations

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

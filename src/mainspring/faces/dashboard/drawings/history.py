"""The history of a run: a lane for each activity, timer and child, ticks for decisions, flags for signals.

Long times in which nothing happens are compressed. A history with very many lanes is drawn as one band for each type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import CompressedScale
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 960
LEFT: Final = 220
TOP: Final = 34
ROW: Final = 20
MOST_LANES: Final = 60
MOST_TICKS: Final = 120
MOST_FLAGS: Final = 40

_BEGINS: Final = {
    "ActivityTaskScheduled": "activity",
    "TimerStarted": "timer",
    "StartChildWorkflowExecutionInitiated": "child",
}
_STARTS: Final = frozenset({"ActivityTaskStarted", "ChildWorkflowExecutionStarted"})
_ENDS: Final = {
    "ActivityTaskCompleted": "succeeded",
    "ActivityTaskFailed": "failed",
    "ActivityTaskTimedOut": "timed_out",
    "ActivityTaskCanceled": "cancelled",
    "TimerFired": "succeeded",
    "TimerCanceled": "cancelled",
    "ChildWorkflowExecutionCompleted": "succeeded",
    "ChildWorkflowExecutionFailed": "failed",
    "ChildWorkflowExecutionTimedOut": "timed_out",
    "ChildWorkflowExecutionCanceled": "cancelled",
    "ChildWorkflowExecutionTerminated": "cancelled",
    "StartChildWorkflowExecutionFailed": "failed",
}
_FIRST: Final = ("scheduledEventId", "initiatedEventId", "startedEventId")
"""The attributes with the event that begins a lane. ``startedEventId`` of activities is another event, so it comes last."""


class Lane(NamedTuple):
    """An activity, a timer or a child."""

    kind: str
    name: str
    scheduled: float
    """Seconds since 1970, as the next two."""
    started: float | None
    ended: float | None
    """None: it is open."""
    state: str
    event: int
    """The number of the event with which it begins."""
    number: int = 1
    """Of a band: how many it stands for."""
    failures: int = 0


class Break(NamedTuple):
    """A compressed time."""

    x: float
    text: str


class Bar(NamedTuple):
    """A lane as it is drawn."""

    lane: Lane
    y: int
    scheduled: float
    started: float
    ended: float
    label: str


class History(NamedTuple):
    """The drawing."""

    bars: list[Bar]
    ticks: list[float]
    flags: list[tuple[float, str]]
    breaks: list[Break]
    span: float
    """Seconds."""
    is_banded: bool
    failures: int

    @property
    def height(self) -> int:
        """The height of all."""
        return TOP + ROW * len(self.bars) + 12


def attributes_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an event, which are below a key of its type."""
    kind: str = event["eventType"]
    found: dict[str, Any] = event.get(f"{kind[0].lower()}{kind[1:]}EventAttributes", {})
    return found


def name_of(event: dict[str, Any]) -> str:
    """Return the name of what an event begins or means; empty if it has none."""
    given = attributes_of(event)
    for key in ("activityType", "workflowType"):
        if isinstance(given.get(key), dict):
            return str(given[key].get("name", ""))
    return str(given.get("signalName") or given.get("timerId") or given.get("markerName") or given.get("reason") or "")


def lanes_of(events: Sequence[dict[str, Any]]) -> list[Lane]:
    """Return the lanes of events in order. Those that began before the first event are left out."""
    lanes: dict[int, Lane] = {}
    for event in events:
        kind, time = event["eventType"], event["eventTimestamp"]
        if kind in _BEGINS:
            name = f"timer {name_of(event)}" if kind == "TimerStarted" else name_of(event)
            lanes[event["eventId"]] = Lane(_BEGINS[kind], name, time, None, None, "running", event["eventId"])
            continue
        if kind not in _STARTS and kind not in _ENDS:
            continue
        given = attributes_of(event)
        first = next((given[key] for key in _FIRST if key in given), None)
        lane = lanes.get(first) if first is not None else None
        if lane is None:
            continue
        if kind in _STARTS:
            lanes[lane.event] = lane._replace(started=time)
        else:
            state = _ENDS[kind]
            is_failure = state in {"failed", "timed_out"}
            lanes[lane.event] = lane._replace(ended=time, state=state, failures=int(is_failure))
    return list(lanes.values())


def bands_of(lanes: Sequence[Lane]) -> list[Lane]:
    """Return one lane for all of a kind and name, those with the most first."""
    bands: dict[tuple[str, str], Lane] = {}
    for lane in lanes:
        name = "timers" if lane.kind == "timer" else lane.name
        band = bands.get((lane.kind, name))
        if band is None:
            bands[lane.kind, name] = lane._replace(name=name)
            continue
        ended = None if band.ended is None or lane.ended is None else max(band.ended, lane.ended)
        failures = band.failures + lane.failures
        state = "failed" if failures else "running" if ended is None else "succeeded"
        bands[lane.kind, name] = band._replace(
            number=band.number + 1, failures=failures, ended=ended, state=state, started=band.started or lane.started
        )
    return sorted(bands.values(), key=lambda band: -band.number)


def history(events: Sequence[dict[str, Any]], now: float, *, is_open: bool) -> History | None:
    """Return the drawing of events in order; None if there are none."""
    if not events:
        return None
    lanes = lanes_of(events)
    failures = sum(lane.failures for lane in lanes)
    is_banded = len(lanes) > MOST_LANES
    if is_banded:
        lanes = bands_of(lanes)[:MOST_LANES]
    times = sorted({event["eventTimestamp"] for event in events})
    if is_open and now > times[-1]:
        times.append(now)
    scale = CompressedScale(times, LEFT, WIDTH)
    last = times[-1]
    bars = []
    for number, lane in enumerate(lanes):
        ended = lane.ended if lane.ended is not None else last
        label = lane.name if lane.number == 1 else f"{lane.number:,} {lane.name}"
        bars.append(
            Bar(
                lane,
                TOP + ROW * number,
                scale(lane.scheduled),
                scale(lane.started if lane.started is not None else lane.scheduled),
                scale(ended),
                label,
            )
        )
    decided = [scale(one["eventTimestamp"]) for one in events if one["eventType"] == "DecisionTaskCompleted"]
    signals = [
        (scale(one["eventTimestamp"]), name_of(one))
        for one in events
        if one["eventType"] == "WorkflowExecutionSignaled"
    ]
    breaks = [Break(round(x, 1), duration(seconds)) for x, seconds in scale.gaps]
    ticks = sorted(set(decided))[-MOST_TICKS:]
    return History(bars, ticks, signals[-MOST_FLAGS:], breaks, times[-1] - times[0], is_banded, failures)

"""Drawings of a run: its history, and why it is parked.

A history has a lane for each activity, timer and child, ticks for decisions, flags for signals. Width is time; only long times
in which no activity and no child is open are cut short. A history with very many lanes is drawn as one band for each type.

For a parked run, the recorded commands are on the left, those of the replayed code on the right.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import CompressedScale, apart, rows_of
from mainspring.faces.dashboard.words import duration, number
from mainspring.workflows.history import STEP_TIMER, Event, kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.api.workflows import ParkingInfo

WIDTH: Final = 960
LEFT: Final = 220
TOP: Final = 34
ROW: Final = 20
BAR: Final = 11
"""The height of a bar."""
LINE: Final = 14
"""The height of a row of texts."""
MOST_LANES: Final = 60
TICKS_APART: Final = 6.0
FLAGS_APART: Final = 16.0
MOST_SIGNALS: Final = 40
"""In the table: the newest."""
MOST_PARTS: Final = 12
"""Of a bar: with more attempts they would be too narrow."""
LEAST_FAILURES: Final = 3.0
"""The width of the failures of a band, so that a few among many are seen."""
NARROWEST: Final = 4.0
"""A part of a bar, with the space after it."""

UNNEEDED: Final = "not needed"
"""The state of a cancelled timer: the wait that it guards has ended in time."""
_BEGINS: Final = {
    "ActivityTaskScheduled": "activity",
    "TimerStarted": "timer",
    "StartChildWorkflowExecutionInitiated": "child",
}
_STARTS: Final = frozenset({"ActivityTaskStarted", "ChildWorkflowExecutionStarted"})
_ENDS: Final = {kind.__name__: kind.outcome for kind in kinds(Event) if kind.outcome} | {"TimerCanceled": UNNEEDED}
_FIRST: Final = ("scheduledEventId", "initiatedEventId", "startedEventId")
"""The attributes with the event that begins a lane. ``startedEventId`` of activities is another event, so it comes last."""
_LEGEND: Final[Sequence[str]] = ("failed", "timed_out", "cancelled", "running", "open", "succeeded", UNNEEDED)
"""States in the order of the legend: failures first."""


class Lane(NamedTuple):
    """An activity, a timer or a child."""

    kind: str
    name: str
    scheduled: float
    """Seconds since 1970, as the next two."""
    started: float | None
    """None: it has not started, or the history has its start only with its end."""
    ended: float | None
    """None: it is open."""
    state: str
    event: int
    """The number of the event with which it begins."""
    number: int = 1
    """Of a band: how many it stands for."""
    failures: int = 0
    attempts: int = 0
    """0: none is recorded."""


class Break(NamedTuple):
    """A compressed time."""

    x: float
    text: str
    row: int


class Bar(NamedTuple):
    """A lane as it is drawn."""

    lane: Lane
    y: int
    scheduled: float
    started: float
    ended: float
    label: str

    @property
    def path(self) -> str:
        """The outline of the bar: one part for each attempt, all of the same length, since their times are not recorded."""
        width = max(self.ended - self.started, 2.0)
        parts = max(1, min(self.lane.attempts, MOST_PARTS, int(width / NARROWEST)))
        step = width / parts
        part = round(step - (1.5 if parts > 1 else 0.0), 1)
        begins = (round(self.started + step * at, 1) for at in range(parts))
        return "".join(self._block(x, part) for x in begins)

    @property
    def failures(self) -> str:
        """The outline of the part of a band that stands for its failures, at its end; empty for other lanes."""
        lane = self.lane
        if not lane.failures or lane.failures == lane.number:
            return ""
        whole = max(self.ended - self.started, 2.0)
        width = round(max(whole * lane.failures / lane.number, min(LEAST_FAILURES, whole)), 1)
        return self._block(round(self.started + whole - width, 1), width)

    def _block(self, x: float, width: float) -> str:
        return f"M{x} {self.y + 4}h{width}v{BAR}h-{width}z"


class History(NamedTuple):
    """The drawing."""

    bars: list[Bar]
    ticks: list[float]
    flags: list[float]
    signals: list[tuple[float, str]]
    """The newest: the time in seconds since 1970, and the name."""
    signals_number: int
    breaks: list[Break]
    span: float
    """Seconds."""
    is_banded: bool
    failures: int
    legend: list[tuple[str, int]]
    """The states of the lanes and how many have each, failures first."""
    left_out: int
    """Bands without room."""

    @property
    def lanes_height(self) -> int:
        """The place of the lower end of the lanes."""
        return TOP + ROW * len(self.bars)

    @property
    def height(self) -> int:
        """The height of all."""
        return self.lanes_height + LINE * max((one.row + 1 for one in self.breaks), default=0) + 6


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


def timer_words(name: str, seconds: float | None, guards: str | None) -> str:
    """Return a timer in words, such as ``timer 2: 8 h for signal approved``."""
    length = "" if seconds is None else f": {duration(seconds)}"
    return f"timer {name}{length}{' for ' if guards else ''}{guards or ''}"


def _timer(event: dict[str, Any]) -> str:
    given = attributes_of(event)
    name, control = name_of(event), str(given.get("control", ""))
    if name.startswith(STEP_TIMER) and control:
        control = f"attempt {control} of the step"
    try:
        seconds = float(given.get("startToFireTimeout", ""))
    except ValueError:
        seconds = None
    return timer_words(name, seconds, control)


def lanes_of(events: Iterable[dict[str, Any]]) -> list[Lane]:
    """Return the lanes of events in order. Those that began before the first event are left out."""
    lanes: dict[int, Lane] = {}
    for event in events:
        kind, time = event["eventType"], event["eventTimestamp"]
        if kind in _BEGINS:
            name = _timer(event) if kind == "TimerStarted" else name_of(event)
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
            lanes[lane.event] = lane._replace(started=time, attempts=given.get("attempt", 1))
        else:
            state = _ENDS[kind]
            is_failure = state in {"failed", "timed_out"}
            # Lean histories record the start of an activity together with its end: when it started is not known.
            started = None if lane.started == time else lane.started
            lanes[lane.event] = lane._replace(started=started, ended=time, state=state, failures=int(is_failure))
    return list(lanes.values())


def bands_of(lanes: Sequence[Lane]) -> list[Lane]:
    """Return one lane for all of a kind and name: those with failures first, then those with the most."""
    bands: dict[tuple[str, str], Lane] = {}
    for lane in lanes:
        name = "timers" if lane.kind == "timer" else lane.name
        band = bands.get((lane.kind, name))
        if band is None:
            bands[lane.kind, name] = lane._replace(name=name, started=None, attempts=0)
            continue
        ended = None if band.ended is None or lane.ended is None else max(band.ended, lane.ended)
        failures = band.failures + lane.failures
        open_state = band.state if band.ended is None else lane.state
        count = band.number + 1
        state = "failed" if failures == count else open_state if ended is None else "succeeded"
        bands[lane.kind, name] = band._replace(number=count, failures=failures, ended=ended, state=state)
    return sorted(bands.values(), key=lambda band: (not band.failures, -band.number))


def history(events: Sequence[dict[str, Any]], now: float, *, is_open: bool) -> History | None:
    """Return the drawing of events in order; None if there are none.

    ``is_open``: the run is open and these are its newest events, so that the drawing reaches to the present.
    """
    if not events:
        return None
    lanes = lanes_of(events)
    if not is_open:
        lanes = [lane._replace(state="open") if lane.ended is None else lane for lane in lanes]
    failures = sum(lane.failures for lane in lanes)
    states = [lane.state for lane in lanes]
    legend = [(state, states.count(state)) for state in _LEGEND if state in states]
    is_banded = len(lanes) > MOST_LANES
    left_out = 0
    if is_banded:
        bands = bands_of(lanes)
        lanes, left_out = bands[:MOST_LANES], max(len(bands) - MOST_LANES, 0)
    times = sorted({event["eventTimestamp"] for event in events})
    if is_open and now > times[-1]:
        times.append(now)
    last = times[-1]
    work = [(lane.scheduled, last if lane.ended is None else lane.ended) for lane in lanes if lane.kind != "timer"]
    scale = CompressedScale(times, LEFT, WIDTH, work)
    bars = [
        Bar(
            lane,
            TOP + ROW * row,
            scale(lane.scheduled),
            scale(lane.started if lane.started is not None else lane.scheduled),
            scale(lane.ended if lane.ended is not None else last),
            lane.name if lane.number == 1 else f"{number(lane.number)} {lane.name}",
        )
        for row, lane in enumerate(lanes)
    ]
    decided = {scale(one["eventTimestamp"]) for one in events if one["eventType"] == "DecisionTaskCompleted"}
    signals = [
        (one["eventTimestamp"], name_of(one)) for one in events if one["eventType"] == "WorkflowExecutionSignaled"
    ]
    gaps = [(round(x, 1), duration(seconds)) for x, seconds in scale.gaps]
    breaks = [Break(*gap, row) for gap, row in zip(gaps, rows_of(gaps), strict=True)]
    return History(
        bars,
        apart(decided, TICKS_APART),
        apart((scale(time) for time, _ in signals), FLAGS_APART),
        signals[-MOST_SIGNALS:],
        len(signals),
        breaks,
        times[-1] - times[0],
        is_banded,
        failures,
        legend,
        left_out,
    )


DIFFERENCE_TOP: Final = 24
DIFFERENCE_ROW: Final = 24
MOST_COMMANDS: Final = 100
"""Rows; each has up to six shapes."""
LONGEST_COMMAND: Final = 56
"""Characters of a command."""


class Pair(NamedTuple):
    """The commands at one place; empty: none."""

    y: int
    recorded: str
    code: str
    is_first_difference: bool
    agrees: bool


class Difference(NamedTuple):
    """The drawing."""

    pairs: list[Pair]

    @property
    def height(self) -> int:
        """The height of all."""
        return DIFFERENCE_TOP + DIFFERENCE_ROW * len(self.pairs) + 6


def difference(parking: ParkingInfo) -> Difference | None:
    """Return the drawing; None if the run is parked for another reason than a difference."""
    if not (parking.recorded or parking.code):
        return None
    both = list(zip_longest(parking.recorded, parking.code, fillvalue=""))[:MOST_COMMANDS]
    return Difference(
        [
            Pair(DIFFERENCE_TOP + DIFFERENCE_ROW * row, _cut(recorded), _cut(code), row == parking.at, row < parking.at)
            for row, (recorded, code) in enumerate(both)
        ]
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_COMMAND else text[: LONGEST_COMMAND - 1] + "…"

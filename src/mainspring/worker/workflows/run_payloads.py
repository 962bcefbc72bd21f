"""The payloads of runs: the code and its replays have them plain, and everything that leaves the worker is encoded.

Events are decoded as they come in, and reports are encoded as they go out. So digests and comparisons are of plain payloads: a
codec may encode the same payload in another way each time. Errors, the options of activities and what nodes read, such as
requests for slots, are not encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.codecs import JSON_KEY, PREFIX
from mainspring.errors import CodecError, LostKeyError
from mainspring.worker.reports import encoded_item, encoded_value
from mainspring.workflows import history, requests
from mainspring.workflows.carrying import arguments_digest
from mainspring.workflows.history import MarkerName, decode_events, is_hold_answer
from mainspring.workflows.model import Parked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from msgspec import Raw

    from mainspring.codecs import Codecs, Kind
    from mainspring.workflows.history import Event
    from mainspring.workflows.requests import Decision, StepResult

_MARKERS: Final[dict[str, Kind]] = {
    MarkerName.STEP: "step",
    MarkerName.SIDE: "side effect",
    MarkerName.CARRIED_STEP: "step",
    MarkerName.CARRIED_SIDE: "side effect",
    MarkerName.CARRIED_ACTIVITY: "result",
    MarkerName.CARRIED_CHILD: "result",
    MarkerName.GIVEN_RESULT: "result",
}
"""The markers of the native API whose details are values of users."""
_PAYLOADS: Final[dict[type[Any], tuple[str, Kind, str]]] = {
    history.WorkflowExecutionStarted: ("input", "arguments", "type"),
    history.WorkflowExecutionCompleted: ("result", "result", ""),
    history.WorkflowExecutionContinuedAsNew: ("input", "arguments", "type"),
    history.WorkflowExecutionSignaled: ("input", "signal", "name"),
    history.ActivityTaskScheduled: ("input", "arguments", "function"),
    history.ActivityTaskCompleted: ("result", "result", ""),
    history.StartChildWorkflowExecutionInitiated: ("input", "arguments", "type"),
    history.ChildWorkflowExecutionCompleted: ("result", "result", "type"),
    history.SignalExternalWorkflowExecutionInitiated: ("input", "signal", "name"),
    history.MarkerRecorded: ("details", "step", "function"),
    requests.ScheduleActivityTask: ("input", "arguments", "function"),
    requests.CompleteWorkflowExecution: ("result", "result", ""),
    requests.ContinueAsNewWorkflowExecution: ("input", "arguments", ""),
    requests.RecordMarker: ("details", "side effect", "function"),
    requests.StartChildWorkflowExecution: ("input", "arguments", "type"),
    requests.SignalExternalWorkflowExecution: ("input", "signal", "name"),
}
"""For each event and decision with a payload: its attribute, its kind, and the attribute with a name."""
_JSON: Final = JSON_KEY.encode()
_MOST_TEXT: Final = 4_096
"""Characters of an error in the reason of a parked run."""


class RunPayloads:
    """Encodes and decodes by ``codecs``. The arguments of ``external`` functions stay JSON: nodes put them into JSON."""

    def __init__(self, codecs: Codecs, external: Collection[str] = ()) -> None:
        self.codecs = codecs
        self._external = frozenset(name.encode() for name in external)

    def events(self, block: bytes | Raw) -> list[Event]:
        """Return the events of a block with plain payloads.

        Raises LostKeyError and CodecError, also without codecs: no code may run on an encoded payload.
        """
        if not isinstance(block, bytes):
            block = bytes(block)
        events = decode_events(block)
        if PREFIX in block or _JSON in block or self.codecs.is_strict:
            return self.plain(events)
        return events

    def plain(self, events: Iterable[Event]) -> list[Event]:
        """Return events with plain payloads. Raises as ``events``."""
        return [self._plain(event) for event in events]

    def _plain(self, event: Any) -> Event:
        place = _place(event)
        if place is None:
            decoded: Event = event
            return decoded
        attribute, kind, name = place
        payload = getattr(event, attribute)
        found = self.codecs.decode(payload, kind, name)
        plain: Event = event if found is payload else replace(event, **{attribute: found})
        return plain

    def steps(self, results: Sequence[StepResult]) -> tuple[StepResult, ...]:
        """Return the results of steps as they are recorded. Raises CodecError."""
        if not self.codecs:
            return tuple(results)
        return tuple(
            one if one.failed else replace(one, result=self.codecs.encode(one.result, "step", one.function))
            for one in results
        )

    def decisions(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """Return decisions as they are recorded. Raises CodecError."""
        return tuple(map(self._encoded, decisions)) if self.codecs else tuple(decisions)

    def _encoded(self, decision: Any) -> Decision:
        place = _place(decision)
        if place is not None:
            attribute, kind, name = place
            is_external = isinstance(decision, requests.ScheduleActivityTask) and decision.function in self._external
            encode = self.codecs.encode_json if is_external else self.codecs.encode
            plain = getattr(decision, attribute)
            encoded = encode(plain, kind, name)
            if encoded is plain:
                return decision  # type: ignore[no-any-return]
            decision = replace(decision, **{attribute: encoded})
            if isinstance(decision, requests.ScheduleActivityTask):
                decision = replace(decision, digest=arguments_digest(decision.function, plain))
            elif isinstance(decision, requests.StartChildWorkflowExecution):
                decision = replace(decision, digest=arguments_digest(decision.type.encode(), plain))
        changed: Decision = decision
        return changed

    def values(self, values: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
        """Return published values as they are stored. Raises CodecError, and UsageError for one that is too large then."""
        return tuple((name, encoded_value(self.codecs, name, value)) for name, value in values)

    def streams(self, streams: Iterable[tuple[str, tuple[bytes, ...]]]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """Return items of streams as they are stored. Raises CodecError, and UsageError for one that is too large then."""
        return tuple((name, tuple(encoded_item(self.codecs, name, one) for one in items)) for name, items in streams)


def _place(one: Any) -> tuple[str, Kind, str] | None:
    """Return the attribute, the kind and the name of the payload of an event or a decision; None if it has none."""
    found = _PAYLOADS.get(type(one))
    if found is None:
        return None
    attribute, kind, named = found
    if attribute == "details":
        if not one.native or one.failed or one.name not in _MARKERS:
            return None
        kind = _MARKERS[one.name]
    elif isinstance(one, history.WorkflowExecutionSignaled) and is_hold_answer(one):
        return None
    name = getattr(one, named) if named else ""
    return attribute, kind, name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def parked_by(error: CodecError) -> Parked:
    """Return why a run is parked whose payloads this worker cannot decode. It goes on with a worker that can."""
    text = str(error)[:_MOST_TEXT]
    if isinstance(error, LostKeyError):
        return Parked("missing", f"{text}; then the run goes on")
    return Parked("defect", f"{text}; correct the cause, and `mainspring workflows unpark` the run")

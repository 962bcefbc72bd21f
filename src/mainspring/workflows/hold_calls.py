"""Requests of workflow code for slots of resources, as markers of a decision; `run_holds` has what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.errors import UsageError
from mainspring.namespaces import key_of_text
from mainspring.resources.holds import HoldAnswer, Line, check_lines, check_name
from mainspring.resources.rules import Uses  # noqa: TC001 - msgspec reads the annotations
from mainspring.sizes import CANNOT_READ
from mainspring.workflows.history import MarkerName
from mainspring.workflows.requests import RecordMarker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.requests import Decision

MOST_HOLDS: Final = 100
"""Requests and holds that a run may have at a time."""
MARKERS: Final = frozenset({MarkerName.HOLD, MarkerName.RELEASE, MarkerName.WITHDRAW})


class HoldCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The details of the marker `HOLD`."""

    uses: Uses
    timeout: float = 0
    """Seconds that the code waits; 0: without end. The code's own timer ends the wait: this is for people."""


encode_call: Final = msgspec.json.Encoder().encode
decode_call: Final = msgspec.json.Decoder(HoldCall).decode
decode_answer: Final = msgspec.json.Decoder(HoldAnswer).decode


def is_about_holds(decision: Decision) -> bool:
    """Return whether a decision is one of these markers."""
    return isinstance(decision, RecordMarker) and decision.native and decision.name in MARKERS


def problem(decision: RecordMarker) -> str:
    """Return why a request cannot be one; empty if it can."""
    if not (decision.native and decision.name == MarkerName.HOLD):
        return ""
    try:
        call = decode_call(decision.details)
        check_lines(lines_of(call))
        for use in call.uses:
            check_name("the name of a resource", use.resource)
    except (*CANNOT_READ, UsageError) as error:
        return f"its request for resources is not valid: {error}"
    return ""


def too_many(draft: Draft, decisions: Sequence[Decision]) -> str:
    """Return why a list of decisions asks for too much; empty if it does not."""
    asks = sum(isinstance(one, RecordMarker) and one.native and one.name == MarkerName.HOLD for one in decisions)
    if asks and len(draft.state.holds) + asks > MOST_HOLDS:
        return f"the run has more than {MOST_HOLDS} requests and holds of resources at a time"
    return ""


def note(draft: Draft, decision: RecordMarker) -> None:
    """Note a marker that was recorded: the transaction asks for it."""
    if is_about_holds(decision):
        draft.holds.append(decision)


def lines_of(call: HoldCall, namespace: str = "") -> tuple[Line, ...]:
    """Return what a request asks for, with the keys of the resources' names in a namespace."""
    return tuple(
        Line(key_of_text(namespace, use.resource), use.units, tuple(sorted({*use.labels}))) for use in call.uses
    )

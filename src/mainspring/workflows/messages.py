"""The bodies of the packets between a node and a decider: MessagePack arrays, which grow at their ends.

The reference of the protocol extension describes the packets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

import msgspec

from mainspring.workflows.decisions.model import Decision, StepResult, StepRetry  # noqa: TC001 - msgspec reads the annotations
from mainspring.workflows.model import Parked  # noqa: TC001 - msgspec reads the annotations


class SettlementMessage(msgspec.Struct, array_like=True, frozen=True):
    """The success of an activity that the decider has executed itself. It reports other ends with SETTLE."""

    handle: bytes
    token: bytes
    result: bytes


class DecideMessage(msgspec.Struct, array_like=True, frozen=True):
    """The report of a decider about one run; see `workflows.requests.Completion`. The body of DECIDE is an array of these."""

    run: int
    handle: bytes
    """The decision task's delivery; empty if fused."""
    token: bytes
    seen: int
    now_us: int
    batch: int
    more: bool
    steps: tuple[StepResult, ...] = ()
    decisions: tuple[Decision, ...] = ()
    settlements: tuple[SettlementMessage, ...] = ()
    about: bytes = b""
    parked: Parked | None = None
    build: str = ""
    log: bytes = b""
    """Lines that the code has logged, as `deciding.log_lines` encodes them; a node stores them if it records the report."""
    semantics: int = 0
    """The behaviour with which the code ran; see ``workflows.model.SEMANTICS``."""
    retries: tuple[StepRetry, ...] = ()
    """Steps that wait for their next attempts; only to a node whose decisions say ``retries``."""


class Lease(IntEnum):
    """The lease of a decider on a run after an answer."""

    NONE = 0
    """It has none: the decider must not go on with the run before the next decision, if its report said that it does."""
    KEPT = 1
    """It keeps the one that it had."""
    NEXT = 2
    """The next decision follows the answer, in an ASSIGN."""


class DecidedMessage(msgspec.Struct, array_like=True, frozen=True):
    """The answer about one run; see `workflows.requests.Decided`.

    The body of DECIDED has one for each entry of DECIDE, in order.
    """

    run: int
    verdict: Literal["recorded", "stale", "refused", "parked"]
    why: str = ""
    events: msgspec.Raw = msgspec.Raw(b"\x90")
    """A block of the events after ``seen``."""
    status: int = 0
    refused_close: bool = False
    lease: Lease = Lease.NONE


class DecisionInfo(msgspec.Struct, frozen=True):
    """The information in the ASSIGN of a decision, as JSON."""

    run: str
    """Decimal, because JSON's numbers are not exact everywhere."""
    first: int
    """The first event of the payload. A worker that lacks earlier ones asks for them with HISTORY."""
    last: int
    """The last event of the run."""
    now_us: int
    attempt: int = 1
    open: int = 1_000
    """Activities that the run may have open at a time, and the same number of timers."""
    largest: int = 900_000_000
    """Bytes of a payload or result."""
    retries: bool = False
    """Whether the node takes ``DecideMessage.retries``."""


class ActivityInfo(msgspec.Struct, frozen=True):
    """The part of the information in an activity's ASSIGN that names its run, as JSON."""

    run: str = ""
    ref: int = 0
    """The event that scheduled the activity."""


encode_message: Final = msgspec.msgpack.Encoder().encode
decode_decide: Final = msgspec.msgpack.Decoder(list[DecideMessage]).decode
decode_decided: Final = msgspec.msgpack.Decoder(list[DecidedMessage]).decode
decode_decision_info: Final = msgspec.json.Decoder(DecisionInfo).decode
decode_activity_info: Final = msgspec.json.Decoder(ActivityInfo).decode
encode_runs: Final = msgspec.msgpack.Encoder().encode
decode_runs: Final = msgspec.msgpack.Decoder(list[int]).decode
"""To and from the body of FORGOTTEN."""

"""The bodies of the packets between a node and a decider: MessagePack arrays, which grow at their ends.

The reference of the protocol extension describes the packets.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from mainspring.workflows.decisions.model import Decision, StepResult  # noqa: TC001 - msgspec reads the annotations
from mainspring.workflows.model import Parked  # noqa: TC001 - msgspec reads the annotations


class SettlementMessage(msgspec.Struct, array_like=True, frozen=True):
    """The end of an activity that the decider has executed itself, as in SETTLE."""

    handle: bytes
    token: bytes
    outcome: str
    detail: bytes
    result: bytes


class DecideMessage(msgspec.Struct, array_like=True, frozen=True):
    """The body of DECIDE; see `workflows.store.Completion`."""

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


class DecidedMessage(msgspec.Struct, array_like=True, frozen=True):
    """The body of DECIDED; see `workflows.store.Decided`."""

    run: int
    verdict: Literal["recorded", "stale", "refused", "parked"]
    why: str = ""
    events: msgspec.Raw = msgspec.Raw(b"\x90")
    """A block of the events after ``seen``."""
    status: int = 0
    refused_close: bool = False


encode_message: Final = msgspec.msgpack.Encoder().encode
decode_decide: Final = msgspec.msgpack.Decoder(DecideMessage).decode
decode_decided: Final = msgspec.msgpack.Decoder(DecidedMessage).decode

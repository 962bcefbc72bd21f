"""The JSON in the packets of the extension; docs/reference/protocol.md is their specification."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainspring.jobs.failures import JobFailure  # noqa: TC001 - msgspec reads the annotations
from mainspring.jobs.model import Retry  # noqa: TC001 - msgspec reads the annotations
from mainspring.jobs.retry import LONGEST_WAIT
from mainspring.resources.said import SaidLimits  # noqa: TC001 - msgspec reads the annotations

FURTHEST = LONGEST_WAIT
"""Seconds of the longest time that can be named."""


class SubmitOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of SUBMIT."""

    priority: Literal["high", "normal", "low"] = "normal"
    wait: bool = False
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    expires: float | None = None
    retry: Retry | None = None
    keep_unique: float | None = None
    concurrency_key: str = ""


class RegisterOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of REGISTER."""

    timeout: float | None = None
    heartbeat: float | None = None
    retry: Retry | None = None
    limits: SaidLimits | None = None


class SettleDetail(msgspec.Struct, forbid_unknown_fields=True):
    """The detail of SETTLE."""

    error: JobFailure | None = None
    final: bool = False
    delay: float = 0.0


class Beats(msgspec.Struct, forbid_unknown_fields=True):
    """The body of HEARTBEAT."""

    jobs: list[tuple[str, str]]


decode_submit = msgspec.json.Decoder(SubmitOptions).decode
decode_register = msgspec.json.Decoder(RegisterOptions).decode
decode_settle = msgspec.json.Decoder(SettleDetail).decode
decode_beats = msgspec.json.Decoder(Beats).decode


def check_seconds(said: SubmitOptions | RegisterOptions, *names: str) -> None:
    """Raise ValueError where one of these options is no number of seconds that can be kept."""
    for name in names:
        seconds = getattr(said, name)
        if seconds is not None and not 0 <= seconds < FURTHEST:
            raise ValueError(f"{name} is a number of seconds from 0 on, not {seconds}")
        if seconds == 0 and name in {"timeout", "heartbeat"}:
            raise ValueError(f"{name} is 0, which would end each attempt at once: leave it out for none")

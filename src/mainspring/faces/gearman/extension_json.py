"""The JSON in the packets of the extension; docs/reference/protocol.md is their specification."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.api.submitting import JobOptions
from mainspring.jobs.model import (
    JobFailure,  # noqa: TC001 - msgspec reads the annotations
    Retry,  # noqa: TC001 - msgspec reads the annotations
)
from mainspring.resources.limit_specs import LimitSpec  # noqa: TC001 - msgspec reads the annotations
from mainspring.sizes import Identifier, Seconds, Text, Whole  # noqa: TC001 - msgspec reads the annotations

MOST_BEATS: Final = 100_000
"""Deliveries in one HEARTBEAT."""


class SubmitOptions(JobOptions, frozen=True, forbid_unknown_fields=True):
    """The options of SUBMIT."""

    wait: bool = False
    request_key: Text | None = None


class WorkflowOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a workflow in REGISTER."""

    version: Identifier = "1"
    digest: Identifier = ""
    """Identifies the code: a parked run is given to each code once."""
    app: Identifier = ""


class RegisterOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of REGISTER."""

    timeout: Seconds | None = None
    heartbeat: Seconds | None = None
    retry: Retry | None = None
    limits: LimitSpec | None = None
    workflow: WorkflowOptions | None = None
    """The function is a workflow, and the worker decides its runs; ``timeout`` is that of a run."""
    decisions: Whole = 100
    """The decisions that the worker takes at a time."""


class SettleDetail(msgspec.Struct, forbid_unknown_fields=True):
    """The detail of SETTLE."""

    error: JobFailure | None = None
    final: bool = False
    delay: float = 0.0


class Beats(msgspec.Struct, forbid_unknown_fields=True):
    """The body of HEARTBEAT."""

    jobs: Annotated[list[tuple[Text, Text]], msgspec.Meta(max_length=MOST_BEATS)]


decode_submit = msgspec.json.Decoder(SubmitOptions).decode
decode_register = msgspec.json.Decoder(RegisterOptions).decode
decode_settle = msgspec.json.Decoder(SettleDetail).decode
decode_beats = msgspec.json.Decoder(Beats).decode

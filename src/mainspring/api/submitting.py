"""Submitting jobs: in the background, or in the foreground, where the answer is how the job has ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainspring.api.request import Request

PriorityName = Literal["high", "normal", "low"]


class Submitted(msgspec.Struct):
    """A background job that is stored, or the one that it has joined."""

    handle: str


class Ended(msgspec.Struct):
    """How a job has ended."""

    handle: str
    succeeded: bool
    result: bytes = b""
    """All parts that its worker has sent, one after the other; empty where it has not succeeded."""
    exception: bytes | None = None
    """What a plain Gearman worker said with ``WORK_EXCEPTION``."""


class Submit(Request[Submitted]):
    """Store a job. Codes: ``too_many_functions``, ``refused``."""

    function: bytes
    payload: bytes
    unique: bytes = b""
    priority: PriorityName = "normal"


class Run(Request[Ended]):
    """Have a job run that lives as long as this call, or one that others wait for. Codes: ``too_many_functions``, ``refused``."""

    function: bytes
    payload: bytes
    unique: bytes = b""
    priority: PriorityName = "normal"

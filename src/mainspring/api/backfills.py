"""The call that runs a schedule for its past fire times."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.api.operations import Reason  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import Request, Touches
from mainspring.sizes import Seconds, Text  # noqa: TC001 - msgspec reads the annotations


class Begun(msgspec.Struct):
    """The answer to a request for a backfill."""

    id: str | None
    """The operation that fires the times; None for a dry run."""
    matched: int
    """The fire times in the range, whether they have run already or not."""
    at_least: bool
    """Whether there may be more, because the count took too long."""
    times: list[str | None]
    """The first ten of them."""


class Backfill(Request[Begun], kw_only=True):
    """Run a schedule for its past fire times that have not run, each once, in an operation.

    Codes: ``invalid``, ``schedule_not_found``, ``conflict``, ``unsupported``.
    """

    permission = Permission.OPERATE
    touches = Touches.SCHEDULE
    call = "schedules.backfill"
    name: Text
    from_: Time = msgspec.field(name="from")
    """The first time that may run."""
    to: Time | None = None
    """The last one; by default now."""
    max: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    """The most fire times that the range may have. If it has more, the request fails and nothing runs."""
    dry_run: bool = False
    """Only count the times."""
    reason: Reason = ""
    rate: Seconds | None = None
    """The most times per second; None: as fast as other work allows."""

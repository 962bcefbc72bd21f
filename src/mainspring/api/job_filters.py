"""The criteria for jobs in requests: of a list, and of an operation on many jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time as RFC 3339 text, with a time zone."""


class JobCriteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Criteria for jobs. A job matches if it meets all of them; docs/reference/protocol.md explains the keys.

    `jobs.List` has the same fields. It cannot inherit them: msgspec allows one base with fields, and all requests have another.
    """

    state: str | list[str] | None = None
    """One state, or several of which any will do."""
    function: str | None = None
    unique: str | None = None
    key: str | None = None
    schedule: str | None = None
    workflow: str | None = None
    """A run of a workflow, by its handle or workflow id."""
    error_type: str | None = None
    tag: str | None = None
    created_from: Time | None = None
    created_to: Time | None = None

"""The criteria for jobs in requests: of a list, and of an operation on many jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from mainspring.sizes import Text, Texts  # noqa: TC001 - msgspec reads the annotations

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time as RFC 3339 text, with a time zone."""


class JobCriteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Criteria for jobs. A job matches if it meets all of them; docs/reference/protocol.md explains the keys.

    `jobs.List` has the same fields. It cannot inherit them: msgspec allows one base with fields, and all requests have another.
    """

    state: Text | Texts | None = None
    """One state, or several of which any will do."""
    function: Text | None = None
    unique: Text | None = None
    key: Text | None = None
    schedule: Text | None = None
    workflow: Text | None = None
    """A run of a workflow, by its handle or workflow id."""
    error_type: Text | None = None
    tag: Text | None = None
    created_from: Time | None = None
    created_to: Time | None = None

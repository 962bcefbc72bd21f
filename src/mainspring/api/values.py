"""Calls about the published values of jobs and runs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import get
from mainspring.api.jobs import LONGEST_WAIT
from mainspring.api.request import Code, Handle, Request, Touches
from mainspring.features import Feature
from mainspring.sizes import Text, about


class PublishedValue(msgspec.Struct):
    """The last value of a name that a job or a run has published; docs/reference/protocol.md explains the keys."""

    name: str
    value: msgspec.Raw
    at: str | None
    attempt: int
    number: int


class PublishedValues(msgspec.Struct):
    """Published values of a job in the order of their names."""

    items: list[PublishedValue]
    ended: bool
    """Whether the job has ended, and no more values follow."""


ValueWait = Annotated[
    float,
    msgspec.Meta(ge=0, le=LONGEST_WAIT),
    about("Seconds to wait for a value if there is none, and the job has not ended."),
]
AfterChange = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
    about("Only values of later changes than the one of this number: the `number` of a value."),
]


class ListValues(Request[PublishedValues]):
    """List the values that a job or a run has published: the last one of each name."""

    permission = Permission.PAYLOADS
    requires = Feature.VALUES
    touches = Touches.JOB
    reads_object = True
    call = "jobs.values"
    http = get("jobs/{handle}/values", problems=(Code.JOB_NOT_FOUND,))
    only_reads = True
    handle: Handle
    name: Annotated[Text | None, about("Only the value of this name.")] = None
    after: AfterChange = 0
    wait: ValueWait = 0.0


class ShowValue(Request[PublishedValue]):
    """Show the last value of a name that a job or a run has published."""

    permission = Permission.PAYLOADS
    requires = Feature.VALUES
    touches = Touches.JOB
    reads_object = True
    call = "jobs.value"
    http = get("jobs/{handle}/values/{name}", problems=(Code.JOB_NOT_FOUND, Code.VALUE_NOT_FOUND))
    only_reads = True
    handle: Handle
    name: Annotated[Text, about("The name of the value.")]
    after: AfterChange = 0
    wait: ValueWait = 0.0


class FollowValues(Request[None]):
    """Follow the values that a job or a run publishes until it has ended: at first all, then those that have changed.

    The events are ``values`` with `PublishedValues`.
    """

    permission = Permission.PAYLOADS
    requires = Feature.VALUES
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.follow_values"
    handle: Handle

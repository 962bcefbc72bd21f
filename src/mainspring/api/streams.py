"""Requests about the streams of jobs and runs. A run's are those of its root job, whose handle is that of its first run."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import get
from mainspring.api.jobs import LONGEST_WAIT
from mainspring.api.request import Code, Handle, Request, Touches
from mainspring.features import Feature
from mainspring.sizes import Text, about


class StreamInfo(msgspec.Struct):
    """The length and the size of a stream; docs/reference/protocol.md explains the keys."""

    name: str
    items: int
    """Its items, and the number of the next one."""
    bytes: int
    refused: int
    """Items of a run that did not fit."""
    at: str | None
    """The time of the last item."""


class StreamList(msgspec.Struct):
    """The streams of a job in the order of their names."""

    items: list[StreamInfo]
    ended: bool
    """Whether the job has ended, and nothing more is written."""


class StreamItem(msgspec.Struct):
    """An item of a stream."""

    offset: int
    """Its number; the first is 0."""
    value: msgspec.Raw
    attempt: int
    """The attempt that has written it; the first is 1."""
    part: int
    """The number of the writer: where it grows, the attempt before was given up, and another one begins."""
    at: str | None


class StreamPage(msgspec.Struct):
    """Items of a stream with consecutive numbers."""

    items: list[StreamItem]
    next: int
    """The number from which to read on."""
    ended: bool
    """Whether the job has ended, and no more items follow."""


StreamName = Annotated[Text, about("The name of the stream.")]
Offset = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=2**62)],
    about("The number of the first item to read; the first of a stream is 0."),
]


class ListStreams(Request[StreamList]):
    """List the streams that a job or a run has written."""

    permission = Permission.PAYLOADS
    requires = Feature.STREAMS
    touches = Touches.JOB
    reads_object = True
    call = "jobs.streams"
    http = get("jobs/{handle}/streams", problems=(Code.JOB_NOT_FOUND,))
    only_reads = True
    handle: Handle


class ReadStream(Request[StreamPage]):
    """Read items of a stream of a job or a run, from a number on."""

    permission = Permission.PAYLOADS
    requires = Feature.STREAMS
    touches = Touches.JOB
    reads_object = True
    call = "jobs.stream"
    http = get("jobs/{handle}/streams/{name}", name="jobs_streams_read", problems=(Code.JOB_NOT_FOUND,))
    only_reads = True
    handle: Handle
    name: StreamName
    offset: Offset = 0
    wait: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT)],
        about("Seconds to wait for an item if there is none, and the job has not ended."),
    ] = 0.0


class FollowStream(Request[None]):
    """Follow a stream of a job or a run from a number on, until the job has ended.

    The events are ``items``, each with some items, and the number from which to go on as its id. The last one says that the job
    has ``ended``.
    """

    permission = Permission.PAYLOADS
    requires = Feature.STREAMS
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.follow_stream"
    http = get(
        "jobs/{handle}/streams/{name}/stream",
        name="jobs_streams_stream",
        stream=True,
        resume="after",
        problems=(Code.JOB_NOT_FOUND,),
    )
    handle: Handle
    name: StreamName
    offset: Offset = 0
    after: Annotated[Text | None, about("The id of the last event: go on behind it. `Last-Event-ID` replaces it.")] = (
        None
    )

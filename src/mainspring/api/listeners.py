"""Calls about listeners: functions of Apps that run for events, each event as a job of its own."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, post
from mainspring.api.functions import Reason  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, Page, Request, Touches
from mainspring.api.schedules import Declared
from mainspring.api.submitting import PriorityName  # noqa: TC001 - msgspec reads the annotation
from mainspring.features import Feature
from mainspring.jobs.model import Retry  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import ENTRIES, Seconds, Text, Texts, TextTuple, about, described

MOST_FILTERS: Final = 100
"""Functions, and tags, of one listener."""
Filters = Annotated[tuple[Text, ...], msgspec.Meta(max_length=MOST_FILTERS)]
ListenerName = Annotated[Text, about("The name of a listener, which is that of its function.")]


class ListenerInfo(msgspec.Struct, kw_only=True):
    """A listener."""

    name: str
    function: str
    """The function whose jobs are its deliveries."""
    types: list[str]
    functions: list[str]
    """Names or patterns of the functions whose events it gets; none: all."""
    tags: list[str]
    everywhere: bool
    """Whether it gets events of all namespaces."""
    app: str
    state: str
    """``active`` or ``paused``."""
    paused: str | None
    """Why it is paused."""
    delivered: str
    """The number of the last event up to which each has become a job, or was none for it."""
    behind: int
    """The events for it that are not jobs yet; it counts no more than a thousand."""
    failures: int
    """The deliveries that have failed for good since the last success."""
    missed: str | None
    """The number up to which events were deleted before they could be delivered; None: none were."""


class RemovedListener(msgspec.Struct):
    """A removed listener."""

    name: str
    state: str = "removed"


class ListListeners(Request[Page[ListenerInfo]]):
    """List listeners, by name."""

    permission = Permission.READ
    requires = Feature.EVENTS
    call = "listeners.list"
    http = get("listeners")
    only_reads = True
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ShowListener(Request[ListenerInfo]):
    """Show a listener."""

    permission = Permission.READ
    requires = Feature.EVENTS
    touches = Touches.FUNCTION
    function_field = "name"
    call = "listeners.show"
    http = get("listeners/{name}", problems=(Code.LISTENER_NOT_FOUND,))
    only_reads = True
    name: ListenerName


class PauseListener(Request[ListenerInfo]):
    """Deliver no more events to a listener. Deliveries that are jobs already run; later events wait until it is resumed."""

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.FUNCTION
    function_field = "name"
    call = "listeners.pause"
    http = post(
        "listeners/{name}/pause",
        problems=(Code.LISTENER_NOT_FOUND, Code.CONFLICT),
        example={"reason": "the chat is down"},
    )
    name: ListenerName
    reason: Annotated[Reason, described("Why, for those who see the pause.")] = ""


class ResumeListener(Request[ListenerInfo]):
    """Deliver events to a paused listener again, those of the pause included as far as they are kept."""

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.FUNCTION
    function_field = "name"
    call = "listeners.resume"
    http = post("listeners/{name}/resume", problems=(Code.LISTENER_NOT_FOUND, Code.CONFLICT))
    name: ListenerName


class RemoveListener(Request[RemovedListener]):
    """Remove a listener. Code that runs and has it adds it again, for the events from then on."""

    permission = Permission.DEVELOP
    requires = Feature.EVENTS
    touches = Touches.FUNCTION
    function_field = "name"
    call = "listeners.remove"
    http = delete("listeners/{name}", problems=(Code.LISTENER_NOT_FOUND,))
    name: ListenerName


class DeclaredListener(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, frozen=True):
    """A listener in the code of an App."""

    name: ListenerName
    types: Annotated[Texts, about("The types of its events, or patterns such as job.*.")]
    functions: Annotated[
        Filters, about("Names or patterns of the functions or workflows whose events it gets; none: all.")
    ] = ()
    tags: Annotated[Filters, about("The job, run or schedule of an event has all of these tags.")] = ()
    everywhere: Annotated[bool, about("Events of all namespaces, and those outside, such as about nodes.")] = False
    priority: Annotated[PriorityName, about("The priority of its deliveries.")] = "normal"
    timeout: Annotated[Seconds | None, about("Stop an attempt that runs longer than this.")] = None
    heartbeat: Annotated[Seconds | None, about("End an attempt whose worker reports nothing for this long.")] = None
    retry: Annotated[Retry | None, about("When to try a delivery again. By default as the function says.")] = None
    job_tags: Annotated[TextTuple, about("The tags of its deliveries.")] = ()


class DeclareListeners(Request[Declared]):
    """Make the stored listeners match the code of an App, if that code governs."""

    permission = Permission.DEVELOP
    requires = Feature.EVENTS
    touches = Touches.EACH
    call = "listeners.declare"
    app: Annotated[Text, about("The name of the App.")]
    listeners: Annotated[
        list[DeclaredListener], msgspec.Meta(max_length=ENTRIES.most), about("All listeners that its code declares.")
    ]
    functions: Annotated[Texts, about("All functions that the code defines.")]
    left_out: Annotated[
        TextTuple, about("Functions that the worker does not run: their listeners stay as they are.")
    ] = ()
    is_named: Annotated[bool, about("Whether the code chooses the name of the App.")] = True

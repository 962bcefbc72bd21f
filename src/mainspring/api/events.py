"""Calls about events: list and follow what has happened to jobs, runs, schedules and other objects.

`event_log.types` has the table of the types. An event is recorded only if somebody wants it; so these requests say that their
caller does, unless they list the newest ones alone.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, field_of, get, post, put
from mainspring.api.jobs import LONGEST_WAIT
from mainspring.api.request import Code, Cursor, Limit, Page, Request, Touches
from mainspring.event_log.store import RUNS
from mainspring.event_log.types import TYPES, Fields
from mainspring.features import Feature
from mainspring.sizes import Text, Texts, about, described

END: Final = "end"
"""The place behind all events so far."""


class EventInfo(msgspec.Struct):
    """An event."""

    id: str
    """Its number. Later events have higher numbers."""
    type: str
    """Such as ``job.failed``."""
    time: str | None
    """When its cause happened, by the clock of the store."""
    namespace: str
    function: str | None
    """The function or the workflow that it is about."""
    subject: str | None
    """The schedule, run or other object that it is about; None for a job."""
    job: str | None
    """The handle of the job that it is about."""
    data: dict[str, Any]
    """Fields of its type, those that have a value: `mainspring.EventData`."""


class Form(Enum):
    """The form of a field in answers."""

    PLAIN = auto()
    DURATION = auto()
    """Seconds; microseconds in the log."""
    TIME = auto()
    """RFC 3339; microseconds in the log."""
    RUN = auto()
    """The key of a run; its number in the log."""


_DURATIONS: Final = frozenset({"ran_us"})
_NAMES: Final = {"ran_us": "duration", "until_us": "until"}
_TYPES: Final[dict[Form, Any]] = {Form.DURATION: float, Form.TIME: datetime | None, Form.RUN: str}
_DEFAULTS: Final[dict[Form, Any]] = {Form.DURATION: 0.0, Form.TIME: None, Form.RUN: ""}
_WORDS: Final = (
    (", in microseconds of wall time", ""),
    (", in microseconds", ", in seconds"),
    ("The number of the run", "The key of the run"),
)


def form_of(name: str) -> Form:
    """Return the form of a field of the log in answers."""
    if name in _DURATIONS:
        return Form.DURATION
    if name.endswith("_us"):
        return Form.TIME
    return Form.RUN if name in RUNS else Form.PLAIN


def shown_name(name: str) -> str:
    """Return the name of a field of the log in answers."""
    return _NAMES.get(name) or (name.removesuffix("_us") + "_at" if name.endswith("_us") else name)


class ShownField(NamedTuple):
    """A field of a type of events, as answers have it."""

    type: Any
    default: Any
    about: str


def shown_fields(kind: type[Fields]) -> dict[str, ShownField]:
    """Return the fields of events as answers have them, by name."""
    found: dict[str, ShownField] = {}
    for one in msgspec.structs.fields(kind):
        form, text = form_of(one.name), field_of(kind, one.name).help
        for old, new in _WORDS:
            text = text.replace(old, new)
        bare = get_args(one.type)[0]
        found[shown_name(one.name)] = ShownField(_TYPES.get(form, bare), _DEFAULTS.get(form, one.default), text)
    return found


class EventPage(Page[EventInfo], kw_only=True):
    """A part of the log."""

    last: str | None = None
    """How far the answer goes: the ``after`` of the request for later events. None for a list of the newest ones."""
    oldest: str | None = None
    """Of a list of the newest ones, which has no others: the number up to which earlier events were deleted."""


OfType = Annotated[
    Text | Texts | None,
    described("Only events of this type, or of those that a pattern such as job.* names; may be repeated."),
]
OfEventFunction = Annotated[
    Text | None, described("Only events about this function or workflow, or those that a pattern such as pay* names.")
]
OfEventTag = Annotated[Text | None, described("Only events about jobs, runs and schedules with this tag.")]
OfJob = Annotated[Text | None, described("Only events about the job with this handle.")]
OfSubject = Annotated[Text | None, described("Only events about this object, such as the name of a schedule.")]
Everywhere = Annotated[bool, described("Events of all namespaces, and those outside, such as about nodes.")]
After = Annotated[
    Text | None,
    about(f"The number of an event: list later ones, the oldest first. `{END}`: only those that happen from now on."),
]


class ListEvents(Request[EventPage]):
    """List events.

    By default they are the newest ones of those that were recorded for somebody. With `after`, or in the order `oldest`, the
    events that the filter names are recorded from now on, for ten minutes after the last such request.
    """

    permission = Permission.READ
    requires = Feature.EVENTS
    touches = Touches.EACH
    call = "events.list"
    http = get("events", problems=(Code.EVENTS_GONE,))
    of_page = ("limit", "wait")
    only_reads = True
    type: OfType = None
    function: OfEventFunction = None
    tag: OfEventTag = None
    job: OfJob = None
    subject: OfSubject = None
    everywhere: Everywhere = False
    after: After = None
    order: Annotated[
        Literal["newest", "oldest"] | None,
        about("Which events come first. By default the newest ones do, and with `after` the oldest ones."),
    ] = None
    cursor: Cursor = None
    limit: Limit = 100
    wait: Annotated[
        float,
        msgspec.Meta(ge=0, le=LONGEST_WAIT),
        about("With `after`: seconds to wait for an event if there is none."),
    ] = 0.0


class FollowEvents(Request[None]):
    """Follow events from now on, or behind the number of the last one.

    Each ``event`` has its number as its id. ``place`` has the number up to which there was nothing else: the stream begins with
    it, and repeats it now and then. ``gone`` says that events are missing, up to the number ``oldest``.
    """

    permission = Permission.READ
    requires = Feature.EVENTS
    touches = Touches.EACH
    name_in_audit = "events.follow"
    http = get("events/stream", name="events_stream", stream=True, resume="after")
    type: OfType = None
    function: OfEventFunction = None
    tag: OfEventTag = None
    job: OfJob = None
    subject: OfSubject = None
    everywhere: Everywhere = False
    after: Annotated[Text | None, about("The id of the last event: go on behind it. `Last-Event-ID` replaces it.")] = (
        None
    )


class Place(msgspec.Struct):
    """The event ``place`` of a stream."""

    last: str


class Gone(msgspec.Struct):
    """The event ``gone`` of a stream."""

    oldest: str
    """The number behind which no event is missing."""


class EventTypeInfo(msgspec.Struct):
    """A type of events."""

    type: str
    subject: str
    about: str
    fields: dict[str, str]
    """The fields of ``data``, each with its description."""


class ListEventTypes(Request[Page[EventTypeInfo]]):
    """List the types of events."""

    permission = Permission.SIGNED_IN
    call = "events.types"
    http = get("/event-types")
    cursor: Cursor = None
    limit: Limit = len(TYPES)


CursorName = Annotated[
    Text,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"),
    about("The name of a cursor: up to 100 letters, digits, dots, dashes and underscores."),
]


class CursorInfo(msgspec.Struct):
    """A cursor: the place of a program in the log. Its events are recorded until it is removed."""

    name: str
    place: str
    """The number of the last event that the program has read."""
    last: str
    """The highest number so far."""
    types: list[str]
    function: str | None
    tag: str | None


class SaveCursor(Request[CursorInfo]):
    """Create a cursor, which begins with the events from now on, or give one another filter.

    With another filter, it keeps its place, and has the events of the new filter from now on.
    """

    permission = Permission.DEVELOP
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "events.save_cursor"
    http = put("events/cursors/{name}", problems=(Code.CONFLICT,), example={"type": ["job.failed"]})
    name: CursorName
    type: OfType = None
    function: OfEventFunction = None
    tag: OfEventTag = None


class MoveCursor(Request[CursorInfo]):
    """Move a cursor forward to the last event that was read."""

    permission = Permission.DEVELOP
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "events.move_cursor"
    http = post("events/cursors/{name}/move", problems=(Code.CURSOR_NOT_FOUND,), example={"to": "4711"})
    is_small = True
    name: CursorName
    to: Annotated[Text, about("The number of the event.")]


class ListCursors(Request[Page[CursorInfo]]):
    """List the cursors of programs that read events."""

    permission = Permission.READ
    requires = Feature.EVENTS
    call = "events.cursors"
    http = get("events/cursors")
    cursor: Cursor = None
    limit: Limit = 100


class RemoveCursor(Request[CursorInfo]):
    """Remove a cursor: its events are no longer recorded for it."""

    permission = Permission.DEVELOP
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "events.remove_cursor"
    http = delete("events/cursors/{name}", problems=(Code.CURSOR_NOT_FOUND,))
    name: CursorName

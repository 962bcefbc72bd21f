"""The page of events: what has happened to jobs, runs, schedules and other objects, and the cursors of programs that read it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.access.caller import Permission
from mainspring.api.events import END, CursorInfo, EventInfo, EventPage, Form, RemoveCursor, form_of, shown_name
from mainspring.api.versions import EVENTS, version_of
from mainspring.event_log.store import READER_SECONDS
from mainspring.event_log.types import GROUPS, TYPES, Subject
from mainspring.faces.dashboard.actions import act
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.pages.access import address_of, in_words
from mainspring.faces.dashboard.visit import NAMESPACE, Page
from mainspring.faces.dashboard.words import duration
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

CURSORS: Final = 100
FILTERS: Final = ("function", "tag", "job", "subject")
"""Fields of the form and of the address, beside the types."""
REMOVE_CURSOR: Final = act(
    RemoveCursor,
    label="Remove",
    done="The cursor is removed: no events are recorded for it any more.",
    needs="events",
    of_all_functions=True,
    warning="Its program loses its place, and begins with the events from then on.",
    command="events cursors remove {name}",
)
ACTIONS: Final = (REMOVE_CURSOR,)

_PAGES: Final = {
    Subject.SCHEDULE: "/schedules/{name}",
    Subject.OPERATION: "/operations/{name}",
    Subject.WEBHOOK: "/webhooks/{name}",
    Subject.RESOURCE: "/resources/{name}",
    Subject.NODE: "/nodes",
}
"""The pages of objects by their names."""
_FORMS: Final = {shown_name(field): form_of(field) for one in TYPES.values() for field in one.fields.__struct_fields__}
"""The forms of the fields that events have."""


class Detail(NamedTuple):
    """A field of an event."""

    name: str
    text: str
    """In words, or a time of the API."""
    is_time: bool = False
    address: str = ""
    """That of the page of an object; empty: there is none."""


def details_of(visit: Visit, event: EventInfo) -> list[Detail]:
    """Return the fields of an event that have values."""
    found = []
    for name, value in event.data.items():
        form = _FORMS.get(name, Form.PLAIN)
        if form is Form.TIME:
            detail = Detail(_title(name), value or "", is_time=True)
        elif form is Form.DURATION:
            detail = Detail(_title(name), duration(value) if value else "")
        elif form is Form.RUN:
            detail = Detail(_title(name), value, address=_in_its_namespace(visit, event, "/workflows/{name}", value))
        else:
            detail = Detail(_title(name), in_words(name, value))
        if detail.text:
            found.append(detail)
    return found


def _title(name: str) -> str:
    return name.removesuffix("_at").replace("_", " ")


class About(NamedTuple):
    """The object that an event is about."""

    name: str
    address: str
    """Empty: it has no page."""


def about(visit: Visit, event: EventInfo) -> About:
    """Return what an event is about, with the address of its page."""
    kind = TYPES.get(event.type)
    subject = None if kind is None else kind.subject
    here = partial(_in_its_namespace, visit, event)
    if subject is Subject.OBJECT and event.subject:
        act = str(event.data.get("what", ""))
        return About(event.subject, address_of(visit, act, event.subject, event.namespace))
    if subject is Subject.RUN and (run := event.data.get("run")):
        return About(run, here("/workflows/{name}", run))
    if event.job is not None:
        return About(event.job, here("/jobs/{name}", event.job))
    if subject is Subject.WORKER and event.subject:
        return About(event.subject, visit.url("/workers", {"name": event.subject, NAMESPACE: event.namespace}))
    if event.subject is not None:
        path = _PAGES.get(subject, "") if subject is not None else ""
        return About(event.subject, here(path, event.subject) if path else "")
    if event.function is not None:
        return About(event.function, here("/functions/{name}", event.function))
    return About("", "")


def _in_its_namespace(visit: Visit, event: EventInfo, path: str, name: str) -> str:
    return visit.url(path, {NAMESPACE: event.namespace}, name=name)


async def events(visit: Visit) -> Response:
    """Show the newest events that match the filter in the address, and have those to come recorded, if it says so."""
    types = [one for text in visit.fields("type") for one in text.replace(",", " ").split()]
    query: dict[str, Any] = {"type": types, **{name: visit.field(name) for name in FILTERS}}
    is_everywhere = visit.field("everywhere") == "true"
    query["everywhere"] = is_everywhere
    cursor = visit.field("cursor")
    records = visit.field("record") == "true"
    if records:  # before the list is read: an event that is in neither would be lost
        await visit.calls.get(EventPage, f"{N}/events", query={**query, "after": END})
    listed, cursors = await asyncio.gather(
        visit.calls.get(EventPage, f"{N}/events", query={**query, "cursor": cursor, "limit": EVENTS}),
        visit.optional(visit.calls.get(Items[CursorInfo], f"{N}/events/cursors", query={"limit": CURSORS}), "cursors"),
    )
    is_filtered = bool(types) or is_everywhere or any(query[name] for name in FILTERS)
    return visit.render(
        "events.html",
        listed=listed,
        rows=EVENTS,
        types=" ".join(types),
        all_types=[*GROUPS, *TYPES],
        filters={name: query[name] for name in FILTERS},
        is_filtered=is_filtered,
        is_everywhere=is_everywhere,
        may_everywhere=visit.may_everywhere(Permission.READ),
        records=records,
        record_minutes=int(READER_SECONDS // 60),
        about=partial(about, visit),
        details_of=partial(details_of, visit),
        cursors=[] if isinstance(cursors, Problem) else cursors.items,
        remove_cursor=REMOVE_CURSOR if visit.offers(REMOVE_CURSOR) else None,
        version="" if cursor or is_filtered else version_of(listed.items),
    )


PAGES: Final = (Page(path="/events", handler=events, menu="Events", needs="events"),)

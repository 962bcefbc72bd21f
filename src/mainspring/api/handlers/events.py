"""Calls about events: pages of the log, and streams that follow it.

A reader goes on behind a number. It gets each event of its filter once, in the order of the numbers, or learns that some are
missing: never does it miss one silently.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Permission, Shares
from mainspring.api.events import (
    END,
    CursorInfo,
    EventInfo,
    EventPage,
    EventTypeInfo,
    FollowEvents,
    Form,
    Gone,
    ListCursors,
    ListEvents,
    ListEventTypes,
    MoveCursor,
    Place,
    RemoveCursor,
    SaveCursor,
    form_of,
    shown_fields,
    shown_name,
)
from mainspring.api.handlers.pages import number_of, numbered, rfc3339
from mainspring.api.handlers.run_rows import run_handle
from mainspring.api.request import ApiError, Code, Page
from mainspring.callbacks import Callback, CallInProgress
from mainspring.clock import MICROSECONDS
from mainspring.errors import UsageError
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import CURSOR, ReadLog, StoredInterest
from mainspring.event_log.store import ListEvents as StoredEvents
from mainspring.event_log.types import ACTED, TYPES, Subject, types_of
from mainspring.event_log.types import RUNS as RUN_TYPES
from mainspring.namespaces import ANY
from mainspring.sizes import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.access.caller import Act, Caller, Refusals
    from mainspring.api.handlers.registry import Call, Followers, Handlers
    from mainspring.api.request import Feed
    from mainspring.callbacks import Ask
    from mainspring.clock import Clock
    from mainspring.event_log.service import EventLog
    from mainspring.event_log.store import Event, LogEnds, LogPart
    from mainspring.ids import Handles

RENEW_INTERVAL: Final = 120.0
"""Seconds after which a stream says again that its events are wanted, and where it is."""
ROOM_INTERVAL: Final = 0.5
"""Seconds after which a stream looks again whether its client has read enough."""
STREAM_ROWS: Final = 500
"""Events of one read of a stream."""
MOST_ABOUT: Final = 1000
"""Types and functions for which a stream keeps whether its caller sees their events."""
MOST_CURSORS: Final = 100
"""Cursors of a namespace: events are recorded for each of them."""
MOST_WAITS: Final = 1000
"""Requests of a node that wait for events at the same time, over CALL and HTTP. Streams have places of their own."""


_LEFT_OUT: Final[dict[str, dict[str, Any]]] = {
    name: {one.name: one.default for one in msgspec.structs.fields(kind.fields) if one.default}
    for name, kind in TYPES.items()
}
"""The fields whose default is a value, by type: the log leaves them out, and answers have them."""


def data_of(event: Event, handles: Handles) -> dict[str, Any]:
    """Return the fields of an event as answers have them."""
    found: dict[str, Any] = {}
    if left_out := _LEFT_OUT.get(event.type):
        found |= left_out
    for name, value in event.fields.items():
        form = _form(name)
        if form is Form.PLAIN:
            found[name] = value
        elif form is Form.DURATION:
            found[shown_name(name)] = value / MICROSECONDS
        elif form is Form.TIME:
            found[shown_name(name)] = rfc3339(value)
        else:
            root = event.job if name == "run" and event.type in RUN_TYPES else value
            found[name] = run_handle(handles.of(root).decode(), value)
    return found


_form: Final = cache(form_of)  # the names of fields are few


def info_of(event: Event, handles: Handles) -> EventInfo:
    """Return an event as answers have it."""
    return EventInfo(
        id=str(event.number),
        type=event.type,
        time=rfc3339(event.at_us),
        namespace=event.namespace,
        function=event.function or None,
        subject=event.subject or None,
        job=handles.of(event.job).decode() if event.job else None,
        data=data_of(event, handles),
    )


class _Filter(NamedTuple):
    """The query of a reader, and the interest by which its events are recorded."""

    query: StoredEvents
    interest: Interest


class EventCalls:
    """Answers about the event log. ``log`` is None if the store keeps none; `Api` refuses the calls then."""

    def __init__(
        self,
        log: EventLog | None,
        handles: Handles,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
        record: Callable[[Act], Coroutine[Ask, Any, object]],
        refusals: Refusals | None = None,
    ) -> None:
        """``later`` calls a function after some seconds. ``record`` adds an act to the audit."""
        self._record = record
        self._kept = log
        self._handles = handles
        self._clock = clock
        self._later = later
        self._waits = Shares(MOST_WAITS, "waits", refusals)
        self.handlers: Handlers = {
            ListEvents: self._list,
            ListEventTypes: self._types,
            SaveCursor: self._save,
            MoveCursor: self._move,
            ListCursors: self._cursors,
            RemoveCursor: self._remove,
        }
        self.followers: Followers = {FollowEvents: self._follow}

    @property
    def _log(self) -> EventLog:
        assert self._kept is not None
        return self._kept

    # ---- pages ----

    async def _list(self, request: ListEvents, call: Call) -> EventPage:
        filtered = self._filter(request, call)
        query = replace(filtered.query, limit=request.limit, bytes=PAGE.most)
        if request.after is None and request.order != "oldest":
            return await self._newest(request, query, call)
        if request.order == "newest":
            raise ApiError(Code.INVALID, "after lists later events, the oldest first: leave out order", field="order")
        since = await self._log.want(filtered.interest)
        if request.after == END and request.cursor is None:
            place = (await self._log.ends()).last
            if not request.wait:
                return EventPage([], None, last=str(place))
        else:
            place = await self._place(request)
            if request.after is not None and place < since:
                raise _gone(place, since, "not recorded, because nobody wanted them for a while")
        if not request.wait:
            return await self._behind(query, place, call)
        if why := self._waits.take(call.caller, request.namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        try:
            return await self._awaited(request, query, place, call)
        finally:  # also when its client has gone
            self._waits.free(call.caller, request.namespace)

    async def _place(self, request: ListEvents) -> int:
        """Return the number behind which a page begins."""
        if request.cursor is not None:
            return number_of(request.cursor)
        if request.after is None:  # the oldest that are kept
            return (await self._log.shared_ends()).swept
        return _number(request.after)

    async def _newest(self, request: ListEvents, query: StoredEvents, call: Call) -> EventPage:
        before = None if request.cursor is None else number_of(request.cursor)
        page = await self._log.read(replace(query, backward=True, after=before))
        found = [info_of(event, self._handles) for event in page.items if _may_see(call.caller, event)]
        if page.next is not None:
            return EventPage(found, str(page.next), rfc3339(page.searched_us))
        swept = (await self._log.shared_ends()).swept
        return EventPage(found, None, oldest=str(swept) if swept else None)

    async def _awaited(self, request: ListEvents, query: StoredEvents, place: int, call: Call) -> EventPage:
        until = self._clock.monotonic() + request.wait
        while True:
            seen = self._log.growths
            page = await self._behind(query, place, call)
            if page.items or page.next is not None or self._clock.monotonic() >= until:
                return page
            assert page.last is not None
            place = int(page.last)
            await self._log.grown(seen)

    async def _behind(self, query: StoredEvents, place: int, call: Call) -> EventPage:
        """Return the events behind a place. Raises ApiError if some of them are not kept."""
        read = await self._read(query, place)
        if read is None:
            raise _gone(place, (await self._log.ends()).swept, "deleted")
        found = [info_of(event, self._handles) for event in read.events if _may_see(call.caller, event)]
        return EventPage(found, str(read.place) if read.has_more else None, last=str(read.place))

    async def _read(self, query: StoredEvents, place: int) -> _Read | None:
        """Read behind a place; None if some of the events there were deleted."""
        part: LogPart = await self._log.read(ReadLog(replace(query, after=place)))
        if part.ends.swept > place:
            return None
        page = part.page
        if page.next is not None:
            return _Read(page.items, page.next, has_more=True)
        return _Read(page.items, max(part.ends.last, place), has_more=False)

    # ---- streams ----

    async def _follow(self, request: FollowEvents, call: Call, feed: Feed) -> Callable[[], None]:
        """Send events as they come. A slow client gets those that are still kept when it has read the others."""
        filtered = self._filter(request, call)
        since = await self._log.want(filtered.interest)
        # Raises before the stream begins.
        place = (await self._log.ends()).last if request.after in {None, END} else _number(request.after or "")
        feed.append("place", Place(str(place)), str(place))
        if place < since:  # it was away for too long, and gets those events behind its place that were recorded
            feed.append("gone", Gone(str(since)), str(place))
        under_way = CallInProgress(
            self._send(filtered, place, call, feed), lambda _: feed.end(), lambda _: feed.end(), lambda _: feed.end()
        )
        return under_way.end

    async def _send(self, filtered: _Filter, place: int, call: Call, feed: Feed) -> None:
        log, query = self._log, replace(filtered.query, limit=STREAM_ROWS, bytes=PAGE.most)
        renewed = self._clock.monotonic()
        shown = place
        sees: dict[tuple[str, str, str], bool] = {}
        while True:
            if self._clock.monotonic() - renewed >= RENEW_INTERVAL:
                await log.want(filtered.interest)
                renewed = self._clock.monotonic()
                if shown < place:
                    shown = place
                    feed.append("place", Place(str(place)), str(place))
            seen = log.growths
            read = await self._read(query, place)
            if read is None:
                shown = place = (await log.ends()).swept
                feed.append("gone", Gone(str(place)), str(place))
                continue
            place = read.place
            for event in read.events:
                about = event.type, event.namespace, event.function
                if about not in sees:
                    if len(sees) >= MOST_ABOUT:
                        sees.clear()
                    sees[about] = _may_see(call.caller, event)
                if sees[about]:
                    shown = event.number
                    feed.append("event", info_of(event, self._handles), str(event.number))
            while not feed.has_room:
                await Callback[None](lambda done, _: self._later(ROOM_INTERVAL, lambda: done(None)))
            if not read.has_more:
                await log.grown(seen)

    # ---- filters ----

    def _filter(self, request: ListEvents | FollowEvents | SaveCursor, call: Call) -> _Filter:
        """Return what a request names and its caller may see. Raises ApiError, UsageError and ForbiddenError."""
        caller, namespace = call.caller, request.namespace
        of_job = subject = None
        if not isinstance(request, SaveCursor):
            of_job, subject = request.job, request.subject
            if request.everywhere:
                caller.check_everywhere(Permission.READ)
                namespace = ANY
        given = [request.type] if isinstance(request.type, str) else request.type
        try:
            types = types_of(given or ["*"])
        except UsageError as error:
            raise ApiError(Code.INVALID, str(error), field="type") from None
        if not _may_see_acts(caller, namespace):
            types -= {ACTED}
            if not types:
                caller.check(Permission.ADMIN, namespace or EVERY_NAMESPACE)
                caller.check_all(Permission.ADMIN, namespace or EVERY_NAMESPACE)
        job = None
        if of_job is not None:
            job = self._handles.parse(of_job.encode())
            if job is None:
                raise ApiError(Code.INVALID, f"{of_job!r} is no handle of a job", field="job")
        patterns = None if caller is LOCAL or namespace == ANY else caller.functions(Permission.READ, namespace)
        functions = (request.function,) if request.function is not None else patterns or ()
        query = StoredEvents(
            namespace=namespace,
            types=types,
            function=request.function,
            tag=request.tag,
            job=job,
            subject=subject,
        )
        tags = () if request.tag is None else (request.tag,)
        return _Filter(query, Interest(types, namespace, functions, tags))

    # ---- cursors ----

    async def _save(self, request: SaveCursor, call: Call) -> CursorInfo:
        filtered = self._filter(request, call)
        of_namespace = await self._stored(request.namespace)
        name = _cursor_id(request.namespace, request.name)
        old = of_namespace.get(name)
        if old is None and len(of_namespace) >= MOST_CURSORS:
            raise ApiError(
                Code.CONFLICT, f"the namespace has {MOST_CURSORS} cursors: remove one that no program uses any more"
            )
        if old is None or old.interest != filtered.interest:
            stored = await self._log.save([StoredInterest(name, filtered.interest)])
            await self._record(call.act(of=request.name))
            old = next(one for one in stored.interests if one.id == name)
        return _cursor_info(old, await self._log.ends())

    async def _move(self, request: MoveCursor, _: Call) -> CursorInfo:
        stored = await self._stored(request.namespace)
        name = _cursor_id(request.namespace, request.name)
        ends = await self._log.ends()
        number = min(_number(request.to), ends.last)
        place = await self._log.move(name, number) if name in stored else None
        if place is None:
            raise _no_cursor(request.name)
        return _cursor_info(stored[name]._replace(place=place), ends)

    async def _cursors(self, request: ListCursors, _: Call) -> Page[CursorInfo]:
        stored = await self._stored(request.namespace)
        ends = await self._log.ends()
        return numbered(request, [_cursor_info(one, ends) for one in stored.values()])

    async def _remove(self, request: RemoveCursor, call: Call) -> CursorInfo:
        stored = await self._stored(request.namespace)
        name = _cursor_id(request.namespace, request.name)
        if name not in stored:
            raise _no_cursor(request.name)
        await self._log.save([], [name])
        await self._record(call.act(of=request.name))
        return _cursor_info(stored[name], await self._log.ends())

    async def _stored(self, namespace: str) -> dict[str, StoredInterest]:
        """Return the cursors of a namespace by their ids."""
        stored = await self._log.stored()
        return {one.id: one for one in stored.interests if one.id.startswith(_cursor_id(namespace, ""))}

    # ---- types ----

    async def _types(self, request: ListEventTypes, _: Call) -> Page[EventTypeInfo]:
        rows = [
            EventTypeInfo(
                one.name,
                one.subject.value,
                one.about,
                {name: field.about for name, field in shown_fields(one.fields).items()},
            )
            for one in TYPES.values()
        ]
        return numbered(request, rows)


def _gone(place: int, oldest: int, why: str) -> ApiError:
    """Return the refusal of a reader who has missed events."""
    return ApiError(
        Code.EVENTS_GONE,
        f"some events behind {place} were {why}: go on behind {oldest}, where none is missing",
        oldest=str(oldest),
    )


class _Read(NamedTuple):
    """Events behind a place."""

    events: list[Event]
    place: int
    """Up to which number there are no others."""
    has_more: bool
    """Whether there may be events behind the place already."""


def _cursor_id(namespace: str, name: str) -> str:
    """Return the id of the interest of a cursor. Namespaces have no slash."""
    return f"{CURSOR}{namespace}/{name}"


def _cursor_info(stored: StoredInterest, ends: LogEnds) -> CursorInfo:
    interest = stored.interest
    return CursorInfo(
        stored.id.partition("/")[2],
        str(stored.place),
        str(ends.last),
        sorted(interest.types),
        interest.functions[0] if interest.functions else None,
        interest.tags[0] if interest.tags else None,
    )


def _no_cursor(name: str) -> ApiError:
    return ApiError(
        Code.CURSOR_NOT_FOUND, f"there is no cursor {name!r}: mainspring events cursors list shows those there are"
    )


def _number(after: str) -> int:
    """Return the number that a client gives as its place. Raises ApiError."""
    if not after.isdecimal() or not after.isascii() or len(after) > 18:
        raise ApiError(
            Code.INVALID, f"{after[:100]!r} is no number of an event: give the id of one, or {END}", field="after"
        )
    return int(after)


def _may_see_acts(caller: Caller, namespace: str) -> bool:
    """Return whether a caller may read the audit, whose acts some events are."""
    named = namespace or EVERY_NAMESPACE
    return caller.may(Permission.ADMIN, named) and caller.functions(Permission.ADMIN, named) is None


def _may_see(caller: Caller, event: Event) -> bool:
    """Return whether a caller who may read in the namespaces of its request sees an event."""
    if caller is LOCAL:
        return True
    kind = TYPES.get(event.type)
    if kind is None:
        return False
    if kind.name == ACTED:
        return _may_see_acts(caller, event.namespace)
    if kind.subject is Subject.NODE:
        return not caller.is_port
    if kind.subject is Subject.RESOURCE:  # as in their list
        return (
            caller.may(Permission.READ, event.namespace) and caller.functions(Permission.READ, event.namespace) is None
        )
    if kind.subject is Subject.WORKER:
        return caller.may(Permission.READ, event.namespace)
    return caller.may(Permission.READ, event.namespace or EVERY_NAMESPACE, event.function)

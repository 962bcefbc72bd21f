"""Events for programs: ``app.events``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, Event, EventsMissedError, JobFailed, UsageError
from mainspring.client.events import MOVE_INTERVAL, _Reading
from mainspring.errors import ConnectionLostError, NotFoundError
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.client.events import EventReader

app = App()


@app.task
def charge(order: int) -> None:
    if order < 0:
        raise ValueError("no such order")


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with in_memory(app):
        yield


def begin(events: EventReader) -> None:
    """Create the cursor of a reader, with a loop that ends before its first event."""
    call = app.connections.blocking().call
    call(*next(_Reading(events._filter, events._cursor).steps()))  # type: ignore[misc]  # noqa: SLF001 - one request alone


def failed(*orders: int) -> None:
    for order in orders:
        job = charge.submit(order)
        if order < 0:
            with pytest.raises(JobFailed):
                job.result(timeout=10)
        else:
            job.result(timeout=10)


def test_a_program_gets_typed_events_in_order_and_goes_on_where_it_was() -> None:
    events = app.events("job.failed", cursor="alerts")
    begin(events)
    failed(-1, 5, -2, -3)
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if len(seen) == 2:
            break
    first, second = seen
    assert (first.type, first.function, first.namespace, first.subject) == ("job.failed", "charge", "default", None)
    assert (first.data.error_type, first.data.error, first.data.attempt) == ("ValueError", "no such order", 1)
    assert first.time is not None
    assert first.time > datetime(2020, 1, 1, tzinfo=UTC)
    assert first.job is not None
    # The loop has not asked for the third event, so the second one comes once more.
    repeated = [*islice(events, 2)]
    assert [one.id for one in repeated] == [second.id, str(int(second.id) + 1)]


def test_an_event_whose_loop_body_fails_comes_once_more() -> None:
    events = app.events("job.failed", cursor="strict")
    begin(events)
    failed(-1, -2)
    seen: list[str] = []

    def read() -> None:
        for event in events:
            seen.append(event.id)
            if len(seen) == 2:
                raise RuntimeError("the alert was not sent")

    with pytest.raises(RuntimeError):
        read()
    failed(-3)
    for event in events:
        seen.append(event.id)
        break
    assert seen[1] == seen[2]


def test_events_are_read_with_asyncio() -> None:
    async def read() -> list[Event]:
        events = app.events("job.*", function="char*", cursor="a")
        call = app.connections.aio().call
        await call(*next(_Reading(events._filter, events._cursor).steps()))  # type: ignore[misc]  # noqa: SLF001 - one request alone
        await charge.asubmit(-1)
        await charge.asubmit(1)
        found: list[Event] = []
        async with aclosing(aiter(events)) as each:
            async for event in each:
                found.append(event)
                if len(found) == 2:
                    break
        await app.aclose()
        return found

    assert {event.type for event in asyncio.run(read())} == {"job.failed", "job.succeeded"}


def test_a_type_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no type of event"):
        next(iter(app.events("job.lost")))
    with pytest.raises(UsageError, match="no type of events"):
        app.events(3)  # type: ignore[arg-type]


# ---- the requests of a loop ----


def row(number: int) -> dict[str, Any]:
    return {
        "id": str(number),
        "type": "job.failed",
        "time": "2030-01-31T12:00:00Z",
        "namespace": "default",
        "function": "f",
        "subject": None,
        "job": None,
        "data": {},
    }


def page(*numbers: int) -> dict[str, Any]:
    return {"items": [row(number) for number in numbers], "last": str(numbers[-1] if numbers else 0)}


def test_a_cursor_moves_before_each_wait_and_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("mainspring.client.events.time.monotonic", lambda: now)
    steps = _Reading({}, "c").steps()
    assert next(steps) == ("events.save_cursor", {"name": "c"})
    call = steps.send({"place": "3"})
    assert isinstance(call, tuple)
    assert (call[0], call[1]["after"]) == ("events.list", "3")
    assert isinstance(steps.send(page(4, 5, 6)), Event)
    assert isinstance(steps.send(None), Event)
    now += MOVE_INTERVAL
    assert steps.send(None) == ("events.move_cursor", {"name": "c", "to": "5"})
    assert isinstance(steps.send({}), Event)
    assert steps.send(None) == ("events.move_cursor", {"name": "c", "to": "6"})
    call = steps.send({})
    assert isinstance(call, tuple)
    assert call[1]["after"] == "6"


def test_requests_are_repeated_until_a_server_answers() -> None:
    steps = _Reading({}, None).steps()
    next(steps)
    first = steps.send({"last": "1"})
    pause: Any = steps.throw(ConnectionLostError("gone"))
    assert pause.seconds > 0
    assert steps.send(None) == first


def test_a_reader_that_has_missed_events_goes_on_behind_them() -> None:
    steps = _Reading({}, "c").steps()
    next(steps)
    steps.send({"place": "3"})
    assert steps.throw(NotFoundError("deleted")) == ("events.list", {"order": "oldest", "limit": 1})
    assert steps.send(page(10)) == ("events.move_cursor", {"name": "c", "to": "9"})
    with pytest.raises(EventsMissedError, match="deleted"):
        steps.send({})

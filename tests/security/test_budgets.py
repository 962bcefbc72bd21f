"""Every list has a budget of bytes: its page ends early where rows are large, and its cursor continues there."""

from __future__ import annotations

import asyncio
import json
import typing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import inspect

from mainspring import sizes
from mainspring.access.caller import LOCAL
from mainspring.api import jobs
from mainspring.api.handlers import pages as handlers_pages
from mainspring.api.handlers.pages import names_in_row, numbered
from mainspring.api.handlers.registry import Api, Call
from mainspring.api.request import ApiError, Code, Page, Request, answer_type, is_list
from mainspring.faces.web.exchange import ROOT
from mainspring.storage.engine import FIRST_PART, Budget, Meter, PageQuery, in_parts
from mainspring.storage.engine import Page as StoredPage
from mainspring.wire.gearman_protocol import Type
from tests.security.test_sizes import declared
from tests.unit.faces.gearman.a_face import F, Node
from tests.unit.faces.rest.a_client import serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.sizes import Size
    from tests.unit.faces.rest.a_client import Client

# ---- each list has a budget ----

BOUNDED: dict[str, str] = {
    "StartedBackfill.times": "a sample",
    "CreatedToken.grants": "sizes of the request: 20 grants of 20 patterns",
    "TokenInfo.grants": "likewise",
    "Identity.grants": "likewise, or those of the configuration",
    "Identity.lacks": "a few words",
    "Attempts.attempts": "settlement_records.MOST_RECORDS of a job",
    "JobDetails.tags": "MOST_TAGS",
    "JobDetails.works": "external.store.MOST_SHOWN",
    "ScheduleDetails.tags": "MOST_TAGS",
    "ScheduleDetails.exclude": "sizes.ENTRIES, one schedule",
    "ScheduleDetails.parents": "catalogue.MOST_PARENTS",
    "ScheduleInfo.parents": "likewise",
    "ForkedRun.results": "FORK_CALLS",
    "ForkedRun.repeated": "FORK_CALLS",
    "ForkedRun.given": "CALLS_LIMIT of the request",
    "Declared.changes": "one for each schedule of the request, and the App's own",
    "Previewed.times": "the count of the request",
    "Previewed.clock_changes": "the same",
    "Previewed.conflicts": "the same",
    "Times.times": "the count of the request, up to a page",
    "Times.local": "the same",
    "Registration.functions": "names_in_row",
    "NodeInfo.functions": "names_in_row",
    "NodeInfo.recoveries": "kept for a while by a node's row",
    "NamespaceNode.functions": "names_in_row",
    "NamespaceStatus.troubled": "eight",
    "NamespaceStatus.acknowledged": "functions with failures; their number is a setting",
    "NamespaceStatus.subscriptions": "namespaces.MOST_SUBSCRIPTIONS",
    "NodeStatus.functions": "roster.BUSIEST",
    "NodeStatus.workflows": "status.MOST_VERSIONS",
    "NodeStatus.set_aside": "a few objects of each kind",
    "WorkerDetails.functions": "names_in_row",
    "WorkerDetails.jobs": "MOST_JOBS handles",
    "OperationDetails.failures": "a few",
    "OperationDetails.outcomes": "one number for each outcome",
    "OperationInfo.outcomes": "one number for each outcome",
    "StartedOperation.sample": "operations.SAMPLE",
    "Errors.errors": "series.MOST_TYPES for each half hour of a day",
    "Series.buckets": "an hour or a day",
    "Series.bounds": "the bounds of a histogram",
    "RunDetails.activities": "--workflow-open",
    "RunDetails.children": "--workflow-open",
    "RunDetails.timers": "--workflow-open",
    "RunDetails.steps": "sizes.ABOUT",
    "RunDetails.holds": "hold_calls.MOST_HOLDS",
    "RunDetails.receives": "sizes.ABOUT",
    "RunDetails.unread": "sizes.ABOUT",
    "CursorInfo.types": "the types of events",
    "ListenerInfo.types": "the types of events",
    "ListenerInfo.functions": "listeners.MOST_FILTERS",
    "ListenerInfo.tags": "listeners.MOST_FILTERS",
    "FunctionInfo.uses": "holds.MAX_LINES",
    "ResourceInfo.items": "holds.MAX_ITEMS",
    "ItemInfo.labels": "holds.MAX_LABELS",
    "ResourceDetails.items": "holds.MAX_ITEMS",
    "ResourceDetails.holds": "resources.MOST_SHOWN",
    "ResourceDetails.waits": "resources.MOST_SHOWN",
    "ResourceDetails.instances": "managed.MAX_INSTANCES, and instances.MOST_GONE",
    "WaitInfo.labels": "holds.MAX_LABELS for each line",
    "WaitInfo.lacks": "holds.MAX_LINES",
    "WaitInfo.behind": "holds.SHOWN",
    "WebhookInfo.types": "the types of events",
    "WebhookInfo.functions": "webhooks.MOST_FILTERS",
    "WebhookInfo.tags": "webhooks.MOST_FILTERS",
    "WebhookInfo.headers": "sending.MOST_HEADERS",
    "WebhookSecret.types": "as of WebhookInfo",
    "WebhookSecret.functions": "as of WebhookInfo",
    "WebhookSecret.tags": "as of WebhookInfo",
    "WebhookSecret.headers": "as of WebhookInfo",
    "EventInfo.data": "the fields of its type, and the tags of one job",
    "EventTypeInfo.fields": "those of `event_log.types`",
    "Submissions.items": "one for each job of the request",
}
"""The fields of answers with several values that are no rows of a list, and what bounds them."""


def answer_of(kind: type[Request[Any]]) -> Any:
    bases = getattr(kind, "__orig_bases__", ())
    return next((typing.get_args(base)[0] for base in bases if typing.get_args(base)), None)


def several(kind: inspect.Type) -> bool:
    match kind:
        case inspect.ListType() | inspect.DictType() | inspect.VarTupleType() | inspect.SetType():
            return True
        case inspect.UnionType(types=kinds):
            return any(map(several, kinds))
        case inspect.Metadata(type=inner):
            return several(inner)
    return False


def lists() -> Iterator[type[Request[Any]]]:
    """Yield the requests whose answers have rows."""
    seen: set[type[Any]] = set()
    for kind in declared():
        if issubclass(kind, Request) and is_list(kind) and kind not in seen:
            seen.add(kind)
            yield kind


LISTS = tuple(lists())


def test_each_list_has_a_budget() -> None:
    left: set[str] = set()
    for kind in declared():
        if not issubclass(kind, Request) or not isinstance(answer := answer_of(kind), type):
            continue
        info = inspect.type_info(answer)
        if not isinstance(info, inspect.StructType):
            continue
        for field in info.fields:
            if several(field.type) and field.name != "items" and f"{answer.__name__}.{field.name}" not in BOUNDED:
                left.add(f"{answer.__name__}.{field.name} of {kind.__module__}.{kind.__name__}")
    assert not left, "make it a `Page` with a cursor, or name in BOUNDED what bounds the field"
    assert len(LISTS) == 27


@pytest.mark.parametrize("kind", LISTS, ids=lambda kind: kind.call)
def test_each_list_can_go_on_after_a_page(kind: type[Request[Any]]) -> None:
    answer = answer_type(kind)
    assert issubclass(typing.get_origin(answer) or answer, Page)
    assert {"cursor", "limit"} <= set(kind.__struct_fields__)


class Row(msgspec.Struct):
    name: str
    text: str = "x" * 2**18


class List(Request[Page[Row]]):
    permission = jobs.ListJobs.permission
    call = "rows.list"
    part: str = ""
    cursor: str | None = None
    limit: int = 1000


@pytest.mark.parametrize("has_all", [False, True], ids=["place", "number"])
def test_pages_have_all_rows_once_and_none_is_too_large(has_all: bool) -> None:
    rows = [Row(f"{number:03}") for number in range(100)]
    rows[50].text = "y" * 2 * sizes.PAGE.most
    asked: list[Any] = []

    async def answer(request: List, _: Call) -> Page[Row]:
        asked.append(request)
        if has_all:
            return numbered(request, rows)
        found = [row for row in rows if row.name > (request.cursor or "")]
        part = found[: request.limit]
        return Page(part, part[-1].name if len(part) < len(found) else None)

    api = Api({List: answer})
    seen: list[str] = []
    cursor: str | None = None
    pages = 0
    while pages < 100:
        page = asyncio.run(api.call(List(cursor=cursor), caller=LOCAL))
        assert page.items
        assert len(page.items) == 1 or len(msgspec.json.encode(page)) <= sizes.PAGE.most + 100
        seen += [row.name for row in page.items]
        cursor = page.next
        pages += 1
        if cursor is None:
            break
    assert seen == [row.name for row in rows]
    assert pages == 9
    assert len(asked) <= 2 * pages


def test_a_cursor_belongs_to_its_list_and_its_filter() -> None:
    async def answer(request: List, _: Call) -> Page[Row]:
        return numbered(request, [Row(f"{number}", "") for number in range(5)])

    class Other(List):
        call = "others.list"

    api = Api({List: answer, Other: answer})

    def call(request: List) -> Page[Row]:
        return asyncio.run(api.call(request, caller=LOCAL))

    cursor = call(List(limit=2)).next
    assert cursor is not None
    assert [row.name for row in call(List(cursor=cursor, limit=1)).items] == ["2"], "another limit is the same list"
    for wrong in (
        List(part="x", cursor=cursor),
        List(namespace="default", cursor=cursor + "A"),
        List(cursor=cursor[:-2]),
        List(cursor="2"),
        Other(cursor=cursor),
    ):
        with pytest.raises(ApiError, match="the cursor is invalid") as caught:
            call(wrong)
        assert caught.value.problem.code is Code.INVALID


def test_a_cursor_of_another_list_is_refused() -> None:
    async def check() -> None:
        async with serving() as (client, _):
            for path in ("jobs", "functions"):
                assert (await client.get(f"{ROOT}/namespaces/default/{path}?cursor=eHl6")).status == 422

    asyncio.run(check())


# ---- real lists with the largest rows ----


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> Size:
    """Let a page have 40 KiB."""
    page = sizes.PAGE._replace(most=40 * 2**10)
    monkeypatch.setattr(handlers_pages, "PAGE", page)
    return page


NASTY = "\x01" * 500
"""Each of these characters has six bytes in JSON."""


def all_pages(tool: Any, method: str, most: int, **params: Any) -> list[Any]:
    """Return all rows of a list over CALL; each page has at most so many bytes."""
    found: list[Any] = []
    for _ in range(200):
        page = tool.call(method, **params)
        assert isinstance(page, dict), (page, params)
        assert page["items"]
        assert len(page["items"]) == 1 or len(json.dumps(page["items"], separators=(",", ":"))) <= most
        found += page["items"]
        if page["next"] is None:
            return found
        params = {**params, "cursor": page["next"]}
    raise AssertionError("the list does not end")


def test_failed_jobs_with_the_longest_rows_fill_several_pages(small_pages: Size) -> None:
    node = Node()
    client, worker = node.connect(extended=True), node.stream(F, places=60)
    for number in range(60):
        client.request(Type.SUBMIT, F, b"%d" % number, b"", b"load")
    node.commit()
    for _, assigned in worker.received():
        detail = json.dumps({"error": {"type": "E", "message": NASTY}, "final": True}).encode()
        worker.request(Type.SETTLE, *(text.encode() for text in assigned[:2]), b"failed", detail, b"")
    node.commit()
    client.received()
    tool = node.connect(extended=True)
    found = all_pages(tool, "jobs.list", small_pages.most, limit=1000)
    assert sorted(int(one["unique"]) for one in found) == list(range(60))


async def all_of(client: Client, path: str, most: int, name: str) -> list[str]:
    """Return the names in all rows of a list over HTTP, whose pages have at most so many bytes."""
    found: list[str] = []
    query = ""
    for _ in range(200):
        answer = await client.get(f"{path}?{query}")
        assert answer.status == 200, answer.body
        assert len(answer.body) <= most + 500
        found += [one[name] for one in answer.json["items"]]
        if answer.json["next"] is None:
            assert "link" not in answer.headers
            return found
        assert 'rel="next"' in answer.headers["link"]
        query = f"cursor={answer.json['next']}&limit=1000" if "limit" in query else f"cursor={answer.json['next']}"
    raise AssertionError("the list does not end")


def test_lists_over_http_with_the_longest_rows_fill_several_pages(small_pages: Size) -> None:
    """Functions with reasons of pauses, and schedules with arguments, which are read and not shown."""

    async def check() -> None:
        async with serving() as (client, _):
            paths = f"{ROOT}/namespaces/default/functions"
            names = [f"f{number:02}-{'n' * 500}" for number in range(30)]
            for name in names:
                paused = await client.send("POST", f"{paths}/{name}/pause", {"reason": NASTY})
                assert paused.status == 200, paused.body
            assert sorted(await all_of(client, paths, small_pages.most, "function")) == names
            names = [f"s{number:02}-{'n' * 190}" for number in range(100)]
            listed = "/api/v1/namespaces/default/schedules"
            for name in names:
                body = {"name": name, "function": "f" * 500, "every": 3600, "args": "a" * 20_000}
                assert (await client.send("POST", listed, body)).status == 201
            assert await all_of(client, listed, small_pages.most, "name") == names

    asyncio.run(check())


def test_names_of_functions_in_a_row_have_a_budget() -> None:
    names = [f"{number}-{'n' * 500}" for number in range(1000)]
    shown = names_in_row(names)
    assert shown == names[: len(shown)]
    assert 100 < len(shown) < 150


# ---- what is read ----


class ReadRows(PageQuery[bytes], frozen=True, kw_only=True):
    """Read rows of bytes."""


@pytest.mark.parametrize("size", [10, 2**18, 2 * sizes.PAGE.most])
def test_no_more_is_read_than_a_page_has(size: int) -> None:
    parts: list[int] = []
    row = bytes(size)

    async def read(after: int | None, number: int) -> Sequence[tuple[int, bytes]]:
        parts.append(number)
        first = after or 0
        return [(place, row) for place in range(first + 1, first + number + 1)]

    def page(**fields: Any) -> StoredPage[bytes]:
        parts.clear()
        work = in_parts(ReadRows(limit=1000, **fields), Meter(Budget(seconds=60.0)), read)
        with pytest.raises(StopIteration) as ended:
            work.send(None)
        found: StoredPage[bytes] = ended.value.value
        return found

    assert len(page().items) == 1000
    assert parts == [1000], "rows without a budget are read at once"
    if size == 2 * sizes.PAGE.most:
        del parts[:]
        assert len(page(bytes=sizes.PAGE.most, after=None).items) == FIRST_PART
        return
    found = page(bytes=sizes.PAGE.most)
    assert max(parts) <= FIRST_PART * 4 ** len(parts)
    assert sum(parts) == len(found.items)
    if size == 10:
        assert (len(found.items), found.size) == (1000, sum(12 for _ in range(1000)))
    else:
        assert sizes.PAGE.most <= found.size <= 2 * sizes.PAGE.most
        assert found.next == len(found.items)

"""Everything that a worker or client may store has a limit, and every list a budget of bytes."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import re
import typing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

import mainspring
from mainspring import App, sizes
from mainspring.api.request import Request
from mainspring.api.submitting import NewJob, bytes_of
from mainspring.engines.postgres.transaction import JOBS_SQL as POSTGRES
from mainspring.engines.sqlite.statements import SQL as SQLITE
from mainspring.errors import ConnectionLostError, PayloadError, UsageError
from mainspring.faces.gearman import worker_reports
from mainspring.faces.gearman.worker_reports import LoggedLines
from mainspring.faces.rest.routes import ROUTES
from mainspring.jobs.model import UNREADABLE, JobFailure, brief, decode_failure, encode_failure, line_of
from mainspring.schedules.specification import Specification
from mainspring.wire.gearman_protocol import Type
from mainspring.workflows.messages import DecideMessage, refusal, within_limits
from mainspring.workflows.model import Parked
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution, Decision, ScheduleActivityTask, StepResult
from tests.docs.pages import ROOT
from tests.unit.faces.gearman.a_face import F, Node
from tests.unit.faces.gearman.test_decide_packets import Decider

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 2**20


@pytest.fixture
def node() -> Node:
    return Node()


def options(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def failed_with(node: Node, **error: str) -> str:
    """Return the handle of a job whose worker has reported a failure."""
    client, worker = node.connect(extended=True), node.stream(F)
    handle: str = client.ask(Type.SUBMIT, F, b"", b"", b"load")[1][0]
    ((_, assigned),) = worker.received()
    detail = options(error=error, final=True)
    worker.request(Type.SETTLE, *(text.encode() for text in assigned[:2]), b"failed", detail, b"")
    node.commit()
    return handle


# ---- failures ----


def test_a_long_failure_is_shortened_and_its_job_is_not_lost(node: Node) -> None:
    error = {"type": "T" * LONG, "message": "begin" + "m" * LONG + "end", "traceback": "first" + "t" * LONG + "last"}
    handle = failed_with(node, **error)
    tool = node.connect(extended=True)
    shown: dict[str, Any] = tool.call("jobs.show", handle=handle)
    assert shown["state"] == "failed"
    kind, _, message = shown["error"].partition(": ")
    assert len(kind) <= sizes.FAILURE_TYPE.most
    assert len(message) <= sizes.FAILURE_TEXT.most
    assert len(shown["traceback"]) <= sizes.FAILURE_TEXT.most
    assert (message[:5], message[-3:]) == ("begin", "end")
    assert (shown["traceback"][:5], shown["traceback"][-4:]) == ("first", "last")
    assert " characters …]" in message


def test_lists_show_the_beginning_of_a_failure_and_a_jobs_own_view_shows_all_of_it(node: Node) -> None:
    message = "it failed: " + "x" * 10_000
    handle = failed_with(node, type="E", message=message)
    tool = node.connect(extended=True)
    (row,) = tool.call("jobs.list")["items"]
    assert row["error"].startswith("E: it failed: xx")
    assert sizes.FAILURE_LINE.most - 2 <= len(row["error"]) <= sizes.FAILURE_LINE.most
    assert tool.call("jobs.show", handle=handle)["error"] == f"E: {message}"


def test_another_table_keeps_a_long_failure_in_short() -> None:
    short = encode_failure(JobFailure("E", "m", "t"))
    assert brief(short) is short
    kept = brief(encode_failure(JobFailure("E", "m" * LONG, "t" * LONG)))
    assert len(kept) < 600
    assert line_of(kept).startswith("E: mm")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.builds(JobFailure, TEXTS, TEXTS, TEXTS), st.data())
def test_the_beginning_of_a_stored_failure_can_be_shown(failed: JobFailure, data: st.DataObject) -> None:
    stored = encode_failure(failed)
    cut = data.draw(st.integers(0, len(stored) - 1))
    found = decode_failure(stored[:cut])
    message = stored.index(b'","message":"') + len(b'","message":"')
    if cut >= message + 1:
        assert found.type == failed.type
        assert failed.message.startswith(found.message.removesuffix("…"))
    else:
        assert found.type == UNREADABLE or failed.type.startswith(found.type.removesuffix("…"))
    assert line_of(stored[:cut])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_failure_break_no_list(stored: bytes) -> None:
    assert line_of(stored)
    assert line_of(b'{"type":"' + stored)


@pytest.mark.parametrize("name", ["list", "list_tagged", "list_these"])
def test_lists_on_sqlite_read_the_beginning_of_a_failure(name: str) -> None:
    assert f"substr(error, 1, {sizes.STORED_FAILURE.most})" in SQLITE[name]


@pytest.mark.parametrize("name", ["list_jobs", "list_ended", "list_dead", "list_tagged", "list_these"])
def test_lists_on_postgresql_read_the_beginning_of_a_failure(name: str) -> None:
    cut = f"substr(error, 1, {sizes.STORED_FAILURE.most}) AS error"
    assert POSTGRES[name].count("options, ") == POSTGRES[name].count(cut)


# ---- declarations ----

CHECKED: dict[str, str] = {
    r"[\w.]+\.(args|value)": "checked_levels, and the store's largest payload",
    r"api\.workflows\.RerunRun\.skip\{v\}": "checked_levels, and the store's largest payload",
    r"[\w.]+\.payload": "the store's largest payload",
    r"api\.completions\.\w+\.result": "is_too_deep, and the store's largest payload",
    r"api\.submitting\.(Submit|RunJob)\.(function|unique)": "submission_problem; no request from outside",
    r"jobs\.model\.Retry\.\w+": "check_retry; stored options have it, too",
    r"[\w.]+\.misfire": "catalogue.check",
    r"resources\.managed\.ManagedSpec\.fields\{v\}": "managed_of",
    r"jobs\.model\.JobFailure\.\w+": "model.fitting",
    r"faces\.gearman\.worker_reports\.SettleDetail\.delay": "settle: clamped",
    r"faces\.gearman\.worker_reports\.LoggedLines\.(handle|token)": "only compared",
    r"faces\.gearman\.worker_reports\.PublishedOf\.(handle|token)": "only compared",
    r"faces\.gearman\.worker_reports\.PublishedOf\.values.*": "values.model.refused_values",
    r"faces\.gearman\.calls\.WrittenItems\.items.*": "streams.model.refused_items",
    r"job_logs\.model\.Line\.\w+(\{[kv]\})?": "tidy: shortened and clamped",
}
"""The fields without a limit in their type, and what limits them."""
UNLIMITED = (inspect.AnyType, inspect.RawType, inspect.ExtType)


def unlimited(kind: inspect.Type, path: str, seen: set[type]) -> Iterator[str]:
    """Yield the paths of values that have no limit."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from unlimited(inner, path, seen)
        case inspect.StrType() | inspect.BytesType():
            if kind.max_length is None:
                yield path
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            if kind.max_length is None:
                yield path
            yield from unlimited(item, path, seen)
        case inspect.DictType(key_type=key, value_type=value):
            if kind.max_length is None:
                yield path
            yield from unlimited(key, path + "{k}", seen)
            yield from unlimited(value, path + "{v}", seen)
        case inspect.TupleType(item_types=items) | inspect.UnionType(types=items):
            for item in items:
                yield from unlimited(item, path, seen)
        case inspect.IntType() | inspect.FloatType():
            if kind.le is None and kind.lt is None:
                yield path
        case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
            seen.add(cls)
            owner = f"{cls.__module__.removeprefix('mainspring.')}.{cls.__name__}"
            for field in fields:
                yield from unlimited(field.type, f"{owner}.{field.name}", seen)
        case _ if isinstance(kind, UNLIMITED):
            yield path


def requests_of(kind: type[Request[Any]]) -> Iterator[type[Request[Any]]]:
    for one in kind.__subclasses__():
        if one.__module__.startswith("mainspring."):
            yield one
            yield from requests_of(one)


def declared() -> list[type[Any]]:
    """Return all types that are read from packets and requests, but for those of decisions."""
    for module in pkgutil.walk_packages(mainspring.__path__, "mainspring."):
        if module.name.startswith(("mainspring.api.", "mainspring.faces.")):
            importlib.import_module(module.name)
    packets = [
        one
        for name, one in vars(worker_reports).items()
        if isinstance(one, type) and one.__module__ == worker_reports.__name__
    ]
    return [*requests_of(Request), *packets, LoggedLines, *(route.takes for route in ROUTES)]


def test_each_field_of_a_request_has_a_limit() -> None:
    seen: set[type] = set()
    found = {path for kind in declared() for path in unlimited(inspect.type_info(kind), "", seen)}
    assert len(seen) > 120
    left = {path for path in found if not any(re.fullmatch(pattern, path) for pattern in CHECKED)}
    assert not left, "give each of these fields a type of mainspring.sizes, or name what limits it in CHECKED"


def test_a_long_text_and_a_large_number_in_a_request_are_refused(node: Node) -> None:
    tool = node.connect(extended=True)
    for method, params in (
        ("jobs.show", {"handle": "x" * 5000}),
        ("jobs.list", {"function": "x" * 5000}),
        ("jobs.list", {"limit": 2**64}),
        ("schedules.declare", {"app": "x" * 5000, "schedules": []}),
        ("worker.keeps", {"arguments": {"x" * 5000: 1}}),
    ):
        answer, args = tool.ask(Type.CALL, b"1", method.encode(), json.dumps(params).encode())
        assert (answer, args[1]) == ("FAULT", "usage"), (method, args)


# ---- levels ----

DEEP = b"[" * 5000 + b"]" * 5000
DEEP_PACK = b"\x91" * 5000 + b"\xc0"
"""The same in MessagePack."""


@pytest.mark.parametrize(("levels", "refused"), [(500, False), (501, True)])
def test_arguments_with_too_many_levels_are_refused(levels: int, refused: bool) -> None:
    text = b'{"[[[[":' * 2 + b"[" * (levels - 2) + b'"]\\"]]"' + b"]" * (levels - 2) + b"}" * 2
    assert sizes.is_too_deep(text) is refused
    for read in (
        lambda: bytes_of(NewJob(function="f", args=msgspec.Raw(text))),
        lambda: Specification(name="s", every=60.0, args=msgspec.Raw(text)).schedule(),
    ):
        if refused:
            with pytest.raises(UsageError, match="more than 500 levels"):
                read()
        else:
            read()


def test_a_client_refuses_arguments_with_too_many_levels() -> None:
    app = App("unix:/nowhere.sock")

    @app.task
    def read(value: Any) -> None:
        del value

    deep: Any = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(PayloadError, match="read: the arguments have more than 500 levels"):
        read.submit(deep)
    with pytest.raises(ConnectionLostError):
        read.submit(deep[0][0][0])


def test_wide_arguments_are_not_deep() -> None:
    assert not sizes.is_too_deep(b"[" + b",".join([b'{"a":[1]}'] * 2000) + b"]")


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (Type.SUBMIT, (F, b"", DEEP, b"")),
        (Type.SUBMIT, (F, b"", b'{"retry":' + DEEP + b"}", b"")),
        (Type.REGISTER, (F, b'{"limits":' + DEEP + b"}")),
        (Type.HEARTBEAT, (b'{"jobs":' + DEEP + b"}",)),
        (Type.CALL, (b"1", b"jobs.list", b'{"state":' + DEEP + b"}")),
        (Type.LOG, (b"\x91\x96\xc4\x00\xc4\x00\x01\x90\x00" + DEEP_PACK,)),
    ],
)
def test_a_packet_with_too_many_levels_is_refused(node: Node, kind: int, args: tuple[bytes, ...]) -> None:
    peer = node.connect(extended=True)
    answer, _ = peer.ask(kind, *args)
    assert answer in {"ERROR", "FAULT"}
    assert peer.ask(Type.ECHO_REQ, b"alive") == ("ECHO_RES", ["alive"])


def test_a_failure_with_too_many_levels_ends_its_job(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(F)
    handle: str = client.ask(Type.SUBMIT, F, b"", b"", b"load")[1][0]
    ((_, assigned),) = worker.received()
    detail = b'{"error":{"type":"E","message":"m","more":' + DEEP + b"}}"
    worker.request(Type.SETTLE, *(text.encode() for text in assigned[:2]), b"failed", detail, b"")
    node.commit()
    assert client.call("jobs.show", handle=handle)["state"] == "failed"


# ---- decisions ----


def values_of(kind: inspect.Type) -> Iterator[Any]:
    """Yield values that no report may have, for the type of a field."""
    match kind:
        case inspect.StrType():
            yield "x" * 5000
        case inspect.BytesType():
            yield b"x" * (LARGEST + 1)
        case inspect.IntType():
            yield from (2**62, -(2**62))
        case inspect.FloatType():
            yield from (1e300, -1.0, math.nan, math.inf)
        case inspect.VarTupleType(item_type=item):
            good = 1 if isinstance(item, inspect.IntType) else "x"
            yield (good,) * ((sizes.UNREAD if good == 1 else sizes.TAGS).most + 1)
            yield from ((value,) for value in values_of(item))


LARGEST = 2_000_000
GOOD: dict[type[Any], Any] = {
    ScheduleActivityTask: ScheduleActivityTask(number=1, activity_id="a", function=b"f", version="1"),
    ContinueAsNewWorkflowExecution: ContinueAsNewWorkflowExecution(number=1),
}
HARMLESS = {
    # texts and bytes that only the rules compare
    ("DecideMessage", "handle"),
    ("DecideMessage", "token"),
    ("DecideMessage", "log"),
}


def report(*decisions: Decision, **fields: Any) -> DecideMessage:
    message = DecideMessage(7, b"", b"", 2, 1_000_000, 1, False, (), decisions)
    return msgspec.structs.replace(message, **fields)


@pytest.mark.parametrize("kind", typing.get_args(Decision), ids=lambda kind: kind.__name__)
def test_each_field_of_a_decision_has_a_limit(kind: type[Any]) -> None:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    good = GOOD.get(kind) or kind(*(example(field.type) for field in info.fields if field.required))
    assert not refusal(report(good), LARGEST, lambda _: False)
    for field in info.fields:
        for value in values_of(field.type):
            if (field.name, value) == ("digest", 2**62):
                continue  # a digest has 64 bits
            wrong = msgspec.structs.replace(good, **{field.name: value})
            assert refusal(report(wrong), LARGEST, lambda _: False), (field.name, str(value)[:20])


def test_a_decision_may_use_all_of_several_limits_at_once() -> None:
    long, century = "x" * 1000, 100 * 366 * 86_400.0
    activity = ScheduleActivityTask(
        1, long, b"f", long, b"i" * LARGEST, long, 2, century, century, century, 0, long, key=b"k"
    )
    assert not refusal(report(activity), LARGEST, lambda _: False)
    for wrong in ({"heartbeat": math.nan}, {"heartbeat": -math.inf, "start_to_close": math.inf}, {"heartbeat": -1.0}):
        assert refusal(report(msgspec.structs.replace(activity, **wrong)), LARGEST, lambda _: False)
    follower = ContinueAsNewWorkflowExecution(1, tags=("a",) * sizes.TAGS.most, unread=(1, 2), failure=b"f" * 2**20)
    assert not refusal(report(follower), LARGEST, lambda _: False)
    assert refusal(report(msgspec.structs.replace(follower, task_priority=3)), LARGEST, lambda _: False)


def example(kind: inspect.Type) -> Any:
    return {inspect.StrType: "a", inspect.BytesType: b"a", inspect.IntType: 1, inspect.FloatType: 1.0}[type(kind)]


def test_each_number_and_text_of_a_report_has_a_limit() -> None:
    info = inspect.type_info(DecideMessage)
    assert isinstance(info, inspect.StructType)
    assert not refusal(report(), LARGEST, lambda _: False)
    for field in info.fields:
        if ("DecideMessage", field.name) in HARMLESS or field.name == "about":
            continue
        for value in values_of(field.type) if not isinstance(field.type, inspect.VarTupleType) else ():
            assert refusal(report(**{field.name: value}), LARGEST, lambda _: False), field.name
    for step in (
        StepResult(1, 1, "f", b"", 2**70),
        StepResult(1, 1, "x" * 5000, b"", 0),
        StepResult(1, 1, "f", b"x" * (LARGEST + 1), 0),
    ):
        assert refusal(report(steps=(step,)), LARGEST, lambda _: False)


def test_texts_for_people_are_shortened_and_do_not_end_a_run() -> None:
    parked = Parked("k" * 5000, "m" * LONG, ("r" * 5000,) * 200, ("c" * 5000,) * 200, 2**62)
    message = within_limits(report(about=b"x" * LONG, parked=parked))
    assert message.about == b""
    assert message.parked is not None
    assert len(message.parked.message) <= sizes.PARKED_TEXT.most
    assert {len(message.parked.recorded), len(message.parked.code)} == {sizes.PARKED_LINES.most}
    assert len(msgspec.msgpack.encode(message.parked)) < 600_000
    assert within_limits(same := report(about=b"short")) is same


def test_a_report_about_no_run_reaches_no_store() -> None:
    decider = Decider(Node(workflows=True))
    for run in (0, -1, 2**63, 2**64 - 1):
        answer, _ = decider.ask(report(run=run))
        assert (answer.verdict, answer.why) == ("stale", "it names no run")


# ---- the page ----


def test_the_page_of_limits_has_all_of_the_table() -> None:
    page = (ROOT / "docs/explanation/limits.md").read_text()
    missing = [size for size in sizes.SIZES if f"| {size.what} | {size} | - | {size.then}" not in page]
    assert not missing
    assert len(sizes.SIZES) > 10

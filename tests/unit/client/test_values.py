"""A value arrives as it was given, or is refused with a sentence that names its place."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable  # noqa: TC003 - annotations are resolved at run time
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mainspring.client import inside
from mainspring.client.json_types import encode_json
from mainspring.client.payload import Signature
from mainspring.client.submission import Verbatim
from mainspring.errors import PayloadError
from mainspring.workflow_code.channels import Channel


class Colour(enum.Enum):
    RED = "red"
    ONE = "1"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


@dataclasses.dataclass(frozen=True)
class Line:
    at: datetime | None
    amount: float
    prices: dict[date, Decimal]


class Point(msgspec.Struct, frozen=True):
    x: float
    names: tuple[str, ...] = ()


class Pair(NamedTuple):
    left: int
    right: time


class Row(TypedDict, total=False):
    id: UUID
    kept: timedelta


class Order(BaseModel):
    at: datetime | time | None = None
    counts: dict[int, str] = {}
    weight: float = 0.0
    line: Line | None = None


_OFFSETS = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)) | st.just(timedelta(hours=2)))
_ZONES: Any = st.none() | st.just(UTC) | _OFFSETS
_TEXT = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(
    ["1", "a:b", 'x":', "nan", "01:02:03"]
)
_AWARE = st.datetimes(timezones=_ZONES, min_value=datetime(1800, 1, 1))  # noqa: DTZ001 - naive ones are values, too
_TIMES = st.times(timezones=_ZONES)
_SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats()),
    (str, _TEXT),
    (bool, st.booleans()),
    (datetime, _AWARE),
    (time, _TIMES),
    (date, st.dates()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (bytes, st.binary(max_size=4)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
]
_RICH: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (
        Line,
        st.builds(
            Line,
            st.none() | _AWARE,
            st.floats(),
            st.dictionaries(st.dates(), st.decimals(allow_nan=False), max_size=2),
        ),
    ),
    (Point, st.builds(Point, st.floats(), st.lists(_TEXT, max_size=2).map(tuple))),
    (Pair, st.builds(Pair, st.integers(), _TIMES)),
    (Row, st.fixed_dictionaries({}, optional={"id": st.uuids(), "kept": st.timedeltas()})),
    (
        Order,
        st.builds(
            Order,
            at=st.none() | _AWARE,
            counts=st.dictionaries(st.integers(), _TEXT.filter(lambda text: text.isascii()), max_size=2),
            weight=st.floats(),
        ),
    ),
]


def _typed(depth: int) -> st.SearchStrategy[tuple[Any, Any]]:
    """Types with a value of each."""
    one = st.sampled_from(_SIMPLE + (_RICH if depth else []))
    return one.flatmap(_wrapped) if depth else one.flatmap(_valued)


def _valued(found: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    return found[1].map(lambda value: (found[0], value))


def _wrapped(found: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    kind, values = found
    forms = [
        _valued(found),
        _valued((kind | None, st.none() | values)),
        _valued((list[kind], st.lists(values, max_size=3))),  # type: ignore[valid-type] # a type at run time
        _valued((tuple[kind, int], st.tuples(values, st.integers()))),  # type: ignore[valid-type]
        _valued((dict[str, kind], st.dictionaries(_TEXT, values, max_size=3))),  # type: ignore[valid-type]
        _valued((dict[str, list[kind]], st.dictionaries(_TEXT, st.lists(values, max_size=2), max_size=2))),  # type: ignore[valid-type]
    ]
    if kind not in (Line, Row, Order):  # cannot be hashed, or not always
        forms.append(_valued((frozenset[kind], st.frozensets(values, max_size=3))))  # type: ignore[valid-type]
    if kind in {int, float, datetime, time, date, timedelta, UUID, Decimal, bytes, Level, Colour}:
        forms.append(_valued((dict[kind, str], st.dictionaries(values, st.just("x"), max_size=3))))  # type: ignore[valid-type]
    return st.one_of(forms)


def _function(kind: Any) -> Callable[..., Any]:
    def task(before: int, value: Any) -> Any: ...

    task.__annotations__.update(value=kind, **{"return": kind})
    return task


def _outcome(encode: Callable[[], Any]) -> Any:
    try:
        return encode()
    except PayloadError as error:
        return error


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=200)
@given(_typed(1))
def test_a_value_of_the_declared_type_arrives_equal_or_is_refused_with_its_place(typed: tuple[Any, Any]) -> None:
    kind, value = typed
    if value == b"" and kind is not bytes:
        return  # `test_empty_bytes_are_not_taken_for_none`
    signature = Signature(_function(kind), "task")
    channel: Channel[Any] = Channel("approved", kind)
    encoders: list[tuple[str, Callable[[], bytes], Callable[[bytes], Any]]] = [
        (
            "task: parameter 'value'",
            lambda: signature.encode((1, value), {}),
            lambda data: signature.decode(data)[0][1],
        ),
        (
            "task: parameter 'value'",
            lambda: signature.encode((), {"before": 1, "value": value}),
            lambda data: signature.decode(data)[1]["value"],
        ),
        (
            "task: parameter 'value'",
            lambda: signature.encode_recorded((1, value), {}),
            lambda data: signature.decode(data)[0][1],
        ),
        (
            "task: parameter 'value'",
            lambda: signature.encode_alike((1, value), {}),
            lambda data: signature.decode(data)[0][1],
        ),
        ("the result", lambda: signature.encode_result(value), signature.decode_result),
        ("the value of signal approved", lambda: channel.encode(value), channel.decode),
    ]
    outcomes = [_outcome(encode) for _, encode, _ in encoders]
    for (place, _, decode), outcome in zip(encoders, outcomes, strict=True):
        if isinstance(outcome, PayloadError):
            assert place in str(outcome)
            assert all(isinstance(one, PayloadError) for one in outcomes)
        else:
            read = decode(outcome)
            assert read == value
            assert type(read) is type(value)


_KEYS = st.integers(0, 2) | st.sampled_from(
    ["0", "1", "1.0", "red", "nan", "2020-01-01", True, None, 1.0, math.nan, -math.inf]
)
_KEYS |= st.sampled_from([Colour.RED, Colour.ONE, Level.LOW, date(2020, 1, 1), b"1", Decimal(1), (1, 2), "\ud800"])


@given(st.dictionaries(_KEYS, st.integers() | st.dictionaries(_KEYS, st.none(), max_size=2), max_size=3))
def test_no_key_of_a_dict_gets_lost(value: dict[Any, Any]) -> None:
    """Keys become text. Values that are none, or two that would be one key, are refused."""

    def untyped(value: Any) -> Any: ...

    signature = Signature(untyped, "untyped")
    encoders: list[Callable[[], bytes]] = [
        lambda: signature.encode((value,), {}),
        lambda: signature.encode_recorded((value,), {}),
        lambda: signature.encode_alike((value,), {}),
        lambda: b"[%b]" % signature.encode_result(value),
        lambda: b"[%b]" % Verbatim("untyped").encode((value,), {}),
        lambda: b"[%b]" % Verbatim("untyped").encode_recorded((value,), {}),
    ]
    outcomes = [_outcome(encode) for encode in encoders]
    if any(isinstance(one, PayloadError) for one in outcomes):
        assert all(isinstance(one, PayloadError) for one in outcomes)
        return
    assert not any(isinstance(key, float) and not math.isfinite(key) for key in value)
    for payload in outcomes:
        read = signature.decode(payload)[0][0]
        assert len(read) == len(value)
        inner = [one for one in value.values() if isinstance(one, dict)]
        assert sum(map(len, inner)) == sum(len(one) for one in read.values() if isinstance(one, dict))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"a": [{1: 2, "1": 3}]},
            r"parameter 'value' at \.a\[0\] has the keys 1 and '1', which are one key in JSON, '1'",
        ),
        ([{True: 1}], r"at \[0\] has the key True of type bool, which JSON cannot represent: its keys are text"),
        ({None: 1}, r"parameter 'value' has the key None of type NoneType, which"),
        ({"a": {math.nan: 1}}, r"at \.a has the key nan, which JSON cannot represent: pass text"),
        ({"a": ["\ud800"]}, r"at \.a\[0\] cannot be written as JSON: its text has '\\ud800', which is no character"),
        ({"a": [object()]}, r"at \.a\[0\] cannot be written as JSON: Encoding objects of type object is unsupported"),
        (
            [time(1, tzinfo=timezone(timedelta(seconds=5)))],
            r"at \[0\] is the time 01:00:00\+00:00:05, whose offset .* minutes",
        ),
        (
            time(1, tzinfo=ZoneInfo("Europe/Berlin")),
            r"is the time 01:00:00 in the zone Europe/Berlin, .* without a date",
        ),
        ({time(1, tzinfo=timezone(timedelta(seconds=5))): 1}, r"has a key that is the time 01:00:00\+00:00:05"),
        (Line(None, math.inf, {}), r"at \.amount is inf"),
        (
            Order(at=datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))),
            r"at \.at is the time 1900-01-01",
        ),
        (
            Order(at=time(1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))),
            r"at \.at is the time 01:00:00\+00:53:28",
        ),
        ([10**5000], r"parameter 'value' at \[0\] cannot be written as JSON: Exceeds the limit"),
    ],
)
def test_the_place_of_a_value_that_json_cannot_hold_is_named(value: Any, message: str) -> None:
    def untyped(value: Any) -> Any: ...

    with pytest.raises(PayloadError, match=message):
        Signature(untyped, "untyped").encode((value,), {})


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    with pytest.raises(PayloadError, match=r"^the result cannot be written as JSON: .*recursion") as caught:
        encode_json(endless, "the result")
    assert len(str(caught.value)) < 200


def test_the_offset_of_a_time_in_a_model_is_kept() -> None:
    value = Order(at=datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))), weight=1.5)
    signature = Signature(_function(Order), "task")
    assert signature.decode(signature.encode((1, value), {})) == ((1, value), {})


def channel_of(kind: Any) -> Channel[Any]:
    return Channel("approved", kind)


def test_empty_bytes_are_not_taken_for_none() -> None:
    signature = Signature(_function(bytes | None), "task")
    with pytest.raises(PayloadError, match="task: its result is empty bytes, which callers could not tell from None"):
        signature.encode_result(b"")
    assert signature.decode_result(signature.encode_result(b"x")) == b"x"
    assert signature.decode_result(signature.encode_result(None)) is None
    with pytest.raises(PayloadError, match="the value of signal approved is empty bytes"):
        channel_of(bytes | None).encode(b"")
    assert channel_of(bytes).decode(channel_of(bytes).encode(b"")) == b""


def test_the_default_of_the_only_bytes_is_sent() -> None:
    def raw(data: bytes = b"default") -> None: ...

    signature = Signature(raw, "raw")
    assert signature.decode(signature.encode((), {})) == ((b"default",), {})
    assert signature.decode(signature.encode((b"",), {})) == ((b"",), {})


def test_runs_that_began_before_keep_the_values_of_their_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of recorded arguments gives the recorded ones, which have lost a key or the seconds of an offset."""

    def untyped(value: Any) -> Any: ...

    class Loop:
        semantics = 1

    monkeypatch.setattr(inside, "running_loop", Loop)
    signature = Signature(untyped, "untyped")
    assert signature.encode_recorded(({1: 1, "1": 2},), {}) == b'[{"1":2}]'
    rounded = time(1, tzinfo=timezone(timedelta(seconds=5)))
    assert signature.encode_recorded((rounded,), {}) == b'["01:00:00Z"]'
    with pytest.raises(PayloadError, match="is nan"):
        signature.encode_recorded((math.nan,), {})
    Loop.semantics = 2
    with pytest.raises(PayloadError, match="one key in JSON"):
        signature.encode_recorded(({1: 1, "1": 2},), {})

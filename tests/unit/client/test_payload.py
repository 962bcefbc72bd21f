from __future__ import annotations

import dataclasses
import enum
import math
import socket  # noqa: TC003 - annotations are resolved at run time
import uuid
from collections.abc import Hashable, Iterator, Sequence  # noqa: TC003 - as above
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn

import msgspec
import pytest

from mainspring.client.payload import Signature, encode_result
from mainspring.errors import PayloadError


@dataclasses.dataclass
class Size:
    width: int
    unit: str = "px"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.Enum):
    UNKNOWN = math.nan


@dataclasses.dataclass
class Reading:
    number: int
    values: list[float]


class Point(msgspec.Struct):
    x: int
    y: int


def plain(path: str, width: int = 3, *, when: datetime | None = None) -> str:
    return path


def untyped(a, b=2):  # type: ignore[no-untyped-def] # tests missing annotations
    return a


def rich(size: Size, colour: Colour, key: uuid.UUID, cost: Decimal, points: list[Point]) -> Size:
    return size


def raw(data: bytes) -> bytes:
    return data


def nothing() -> None: ...


def two(a: int, b: int) -> None: ...


def by_keyword(*, a: int = 0) -> None: ...


def many(*numbers: int) -> None: ...


def by_position(a: int, b: int = 0, /) -> None: ...


def variadic(a: int, /, size: Size, *rest: int, **named: float) -> None: ...


def late(value: Later) -> Later:
    return value


Later = int


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        (("x",), {}, b'["x"]'),
        (("x", 4), {}, b'["x",4]'),
        ((), {"path": "x"}, b'{"path":"x"}'),
        (("x",), {"width": 4}, b'{"path":"x","width":4}'),
        (("x",), {"when": datetime(2020, 1, 1, tzinfo=UTC)}, b'{"path":"x","when":"2020-01-01T00:00:00Z"}'),
    ],
)
def test_decoded_arguments_equal_the_encoded_ones(
    args: tuple[Any, ...], kwargs: dict[str, Any], payload: bytes
) -> None:
    signature = Signature(plain, "plain")
    assert signature.encode(args, kwargs) == payload
    read_args, read_kwargs = signature.decode(payload)
    names = ["path", "width"]
    assert dict(zip(names, read_args, strict=False)) | read_kwargs == dict(zip(names, args, strict=False)) | kwargs


def test_annotated_types_are_decoded() -> None:
    signature = Signature(rich, "rich")
    key = uuid.uuid4()
    args = (Size(3), Colour.RED, key, Decimal("1.10"), [Point(1, 2)])
    assert signature.decode(signature.encode(args, {})) == (args, {})
    assert signature.decode_result(encode_result(Size(3, "mm"))) == Size(3, "mm")


@pytest.mark.parametrize(
    ("function", "payload", "message"),
    [
        (plain, b'["x","y"]', "plain: parameter 'width': Expected `int`, got `str`"),
        (plain, b"[1]", "plain: parameter 'path': Expected `str`, got `int`"),
        (plain, b'["a",1,2]', "plain: too many positional arguments"),
        (plain, b"{}", "plain: missing a required argument: 'path'"),
        (plain, b"", "plain: missing a required argument: 'path'"),
        (plain, b'{"path":1}', "plain: parameter 'path': Expected `str`, got `int`"),
        (plain, b'{"path":"x","zz":1}', "plain: got an unexpected keyword argument 'zz'"),
        (plain, b'{"path":"x","when":"noon"}', "plain: parameter 'when': Invalid RFC3339 encoded datetime"),
        (plain, b"5", "plain: parameter 'path': Expected `str`, got `int`"),
        (plain, b"null", "plain: parameter 'path': Expected `str`, got `null`"),
        (plain, b"text", "a payload is a JSON array"),
        (plain, b'"text', "begins with b'\"text'"),
        (plain, b'"a","b"', "a payload is a JSON array"),
        (plain, b'"a"],[1', "a payload is a JSON array"),
        (untyped, b"1,2", "begins with b'1,2'"),
        (untyped, b"1 2", "begins with b'1 2'"),
        (untyped, b"NaN", "begins with b'NaN'"),
        (untyped, b"'a'", "a payload is a JSON array"),
        (untyped, b'"\xff"', "a payload is a JSON array"),
        (two, b"3", "two: missing a required argument: 'b'"),
        (by_keyword, b"3", "by_keyword: too many positional arguments"),
        (nothing, b"null", "nothing: too many positional arguments"),
        (plain, b"[", "plain: the payload cannot be read as JSON"),
        (plain, b'["\xff"]', "plain: the payload cannot be read as JSON"),
        (plain, b'{"path":"\xff"}', "plain: the payload cannot be read as JSON"),
        (untyped, b"[" * 100_000, "untyped: the payload cannot be read as JSON: maximum recursion depth"),
        (untyped, b'{"a":' + b"[" * 100_000, "untyped: the payload cannot be read as JSON: maximum recursion depth"),
        (variadic, b'[1,"\xff"]', "variadic: the payload cannot be read as JSON"),
        (plain, b"\xff\xfe", "a payload is a JSON array"),
        (rich, b'[{"width":"1"}]', "rich: "),
        (variadic, b'[1,{"width":"1"}]', "variadic: parameter 'size': Expected `int`"),
        (variadic, b'{"size":{"width":1}}', "variadic: missing a required"),
        (by_position, b'{"a":1}', "by_position"),
        (nothing, b"[1]", "nothing: too many positional arguments"),
    ],
)
def test_errors_name_the_parameter_that_does_not_fit(function: Any, payload: bytes, message: str) -> None:
    with pytest.raises(PayloadError) as error:
        Signature(function, function.__name__).decode(payload)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("function", "payload", "args"),
    [
        (untyped, b"3", (3,)),
        (untyped, b" -2.5\n", (-2.5,)),
        (untyped, b'"abc"', ("abc",)),
        (untyped, b'"1,2"', ("1,2",)),
        (untyped, b"true", (True,)),
        (untyped, b"false", (False,)),
        (untyped, b"null", (None,)),
        (plain, b'"cat.png"', ("cat.png",)),
        (by_position, b"7", (7,)),
        (many, b"7", (7,)),
        (raw, b"3", (b"3",)),
        (raw, b"null", (b"null",)),
    ],
)
def test_a_scalar_is_a_single_argument(function: Any, payload: bytes, args: tuple[Any, ...]) -> None:
    assert Signature(function, "f").decode(payload) == (args, {})


def test_defaults_and_missing_annotations() -> None:
    signature = Signature(untyped, "untyped")
    assert signature.decode(b"[1]") == ((1,), {})
    assert signature.decode(b' {"a": {"z": [1]}} ') == ((), {"a": {"z": [1]}})
    assert signature.decode(b'{"a":1,"b":null}') == ((), {"a": 1, "b": None})


def test_a_single_bytes_parameter_is_the_payload() -> None:
    signature = Signature(raw, "raw")
    assert signature.encode((b"\0[",), {}) == b"\0["
    assert signature.encode((), {"data": b"x"}) == b"x"
    assert signature.decode(b"\xff\0") == ((b"\xff\0",), {})
    assert signature.decode(b"") == ((b"",), {})
    assert signature.decode_result(b"\xff") == b"\xff"
    with pytest.raises(PayloadError, match="takes bytes, not str"):
        signature.encode(("x",), {})


def test_a_call_without_arguments_has_an_empty_payload() -> None:
    signature = Signature(nothing, "nothing")
    assert signature.encode((), {}) == b""
    assert signature.decode(b"") == ((), {})
    assert signature.decode(b"{}") == ((), {})
    assert signature.decode_result(b"") is None


def test_positional_only_and_variadic() -> None:
    assert Signature(by_position, "f").decode(b"[1]") == ((1,), {})
    signature = Signature(variadic, "f")
    assert signature.decode(signature.encode((1, Size(2), 3, 4), {})) == ((1, Size(2), 3, 4), {})
    with pytest.raises(PayloadError, match="not both"):
        signature.encode((1, Size(2)), {"z": 2.0})


def test_a_wrong_call_raises_the_error_of_the_function() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'path'"):
        Signature(plain, "plain").encode((), {})
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        Signature(plain, "plain").encode((), {"path": "x", "nope": 1})
    with pytest.raises(TypeError, match="too many"):
        Signature(plain, "plain").encode(("x", 1, 2), {})


def test_values_without_json_form_are_refused_at_encoding() -> None:
    with pytest.raises(PayloadError, match="plain: parameter 'path' cannot be written as JSON"):
        Signature(plain, "plain").encode((object(),), {})
    with pytest.raises(PayloadError, match="the result cannot be written"):
        encode_result(object())


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((math.nan,), {}, "untyped: parameter 'a' is nan, which JSON cannot represent: pass None or text instead"),
        ((1, -math.inf), {}, "untyped: parameter 'b' is -inf"),
        ((), {"b": 1, "a": math.inf}, "untyped: parameter 'a' is inf"),
        ((1,), {"b": [None, {"x": (0.5, math.nan)}]}, "untyped: parameter 'b' at [1].x[1] is nan"),
        ((Reading(1, [0.5, math.nan, math.inf]),), {}, "untyped: parameter 'a' at .values[1] is nan"),
        ((Level.UNKNOWN,), {}, "untyped: parameter 'a' is nan"),
        (([msgspec.Raw(b"null"), math.nan],), {}, "untyped: parameter 'a' at [1] is nan"),
    ],
)
def test_arguments_are_finite_numbers(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(PayloadError) as error:
        Signature(untyped, "untyped").encode(args, kwargs)
    assert message in str(error.value)


def test_further_arguments_are_finite_numbers() -> None:
    signature = Signature(variadic, "variadic")
    with pytest.raises(PayloadError, match=r"variadic: parameter 'rest\[1\]' is nan"):
        signature.encode((1, Size(2), 3, math.nan), {})
    with pytest.raises(PayloadError, match="variadic: parameter 'z' is nan"):
        Signature(lambda **named: None, "variadic").encode((), {"z": math.nan})


def test_times_with_seconds_in_their_offset_are_refused_because_json_rounds_them() -> None:
    """Such are the local times of most zones before about 1920."""
    rounded = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    signature = Signature(untyped, "untyped")
    message = r"is the time 1900-01-01 00:00:00\+00:53:28, whose offset from UTC has seconds, .*: convert it to UTC"
    for encode in (signature.encode, signature.encode_alike):
        with pytest.raises(PayloadError, match=f"untyped: parameter .* {message}"):
            encode((1, {"x": [(rounded,)]}), {})
    with pytest.raises(PayloadError, match=rf"the result at \.at {message}"):
        encode_result({"at": rounded})
    exact = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=53)))
    assert msgspec.json.decode(signature.encode((exact,), {}), type=list[datetime]) == [exact]


def test_all_ways_to_write_a_call_are_encoded_alike() -> None:
    signature = Signature(plain, "plain")
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("x", 4), {}),
        (("x",), {"width": 4}),
        ((), {"width": 4, "path": "x"}),
        ((), {"path": "x", "width": 4}),
    ]
    assert {signature.encode_alike(args, kwargs) for args, kwargs in ways} == {b'["x",4]'}
    assert len({signature.encode_alike((), {"path": way, "width": 4}) for way in "ab"}) == 2
    variadic_names = Signature(lambda **named: None, "named")
    assert variadic_names.encode_alike((), {"b": {2, 1}, "a": 0}) == variadic_names.encode_alike(
        (), {"a": 0, "b": {1, 2}}
    )
    assert Signature(raw, "raw").encode_alike((), {"data": b"x"}) == b"x"
    with pytest.raises(TypeError, match="plain: missing a required argument: 'path'"):
        signature.encode_alike((), {})


def test_results_are_finite_numbers() -> None:
    with pytest.raises(PayloadError, match=r"^the result is nan, which JSON cannot represent"):
        encode_result(math.nan)
    with pytest.raises(PayloadError, match=r"^the result at \[0\]\.values\[2\] is inf"):
        encode_result([Reading(1, [1.0, 2.0, math.inf])])


def test_none_and_the_text_null_are_accepted() -> None:
    values = [None, "null", {"null": None, "nullable": True}, Reading(1, [])]
    assert Signature(untyped, "untyped").encode((values,), {}) == (
        b'[[null,"null",{"null":null,"nullable":true},{"number":1,"values":[]}]]'
    )
    deep: list[Any] = []
    for _ in range(400):
        deep = [None, deep]
    assert encode_result(deep).startswith(b"[null,[null,")


def test_annotations_may_name_later_definitions() -> None:
    signature = Signature(late, "late")
    assert signature.decode(b"[1]") == ((1,), {})
    assert signature.decode_result(b"1") == 1


def test_an_unknown_annotation_is_named() -> None:
    def lost(value: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
        ...

    with pytest.raises(PayloadError, match="Nowhere"):
        Signature(lost, "lost").decode(b"[1]")


def test_results() -> None:
    assert encode_result(None) == b""
    assert encode_result(b"\0") == b"\0"
    assert encode_result({"a": 1}) == b'{"a":1}'

    def maybe() -> bytes | None: ...

    assert Signature(maybe, "maybe").decode_result(b"") is None
    assert Signature(maybe, "maybe").decode_result(b"x") == b"x"
    for result in (b'"x"', b'"\xff"', b"[" * 100_000):
        with pytest.raises(PayloadError, match="its result cannot be read as int"):
            Signature(late, "late").decode_result(result)
    with pytest.raises(PayloadError, match=r"untyped: its result cannot be read as .*Any: maximum recursion depth"):
        Signature(untyped, "untyped").decode_result(b"[" * 100_000)


# ---- results and their declared types ----


def returning(kind: Any) -> Signature:
    def function() -> Any: ...

    function.__annotations__["return"] = kind
    return Signature(function, "f")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 3),
        (float, 3),
        (list[int], (1, 2)),
        (tuple[int, ...], [1, 2]),
        (set[str], ["a"]),
        (Size, {"width": 3}),
        (datetime, "2030-01-01T00:00:00Z"),
        (dict[int, Decimal], {1: Decimal("1.5")}),
        (Colour, "red"),
        (int | None, None),
        (Any, None),
        (object, 3),
        (bytes | None, None),
        (bytes, bytearray(b"\xff")),
        (None, 5),
        (NoReturn, None),
    ],
)
def test_a_result_that_can_be_read_as_the_declared_type_is_encoded(kind: Any, value: Any) -> None:
    assert returning(kind).encode_result(value) == encode_result(value)
    assert Signature(untyped, "untyped").encode_result(value) == encode_result(value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            int,
            "3",
            "f: its result cannot be read as int: Expected `int`, got `str`; it begins with b'\"3\"': return a value",
        ),
        (int, True, "got `bool`"),
        (
            int,
            None,
            "f: its result is None, and not int: return a value of the declared type, or correct the annotation",
        ),
        (Size, None, "is None, and not Size"),
        (list[int], [1, "2"], "f: its result cannot be read as list[int]: Expected `int`, got `str` - at `$[1]`"),
        (Point, Point("a", 2), "Expected `int`, got `str` - at `$.x`"),  # type: ignore[arg-type]
        (str, b"abc", "cannot be read as str"),
        (bytes, "abc", "f: its result is of the type str, and not bytes"),
        (dict, [], "Expected `object`, got `array`"),
        (Colour, "blue", "Invalid enum value 'blue'"),
    ],
)
def test_a_result_of_another_type_is_refused(kind: Any, value: Any, message: str) -> None:
    signature = returning(kind)
    for _ in range(2):
        with pytest.raises(PayloadError) as error:
            signature.encode_result(value)
        assert message in str(error.value)


def needs_a_socket(name: str, peer: socket.socket) -> None: ...
def may_have_a_socket(name: str, peer: socket.socket | None = None, other: object = 1) -> None: ...
def has_them_inside(peers: dict[str, list[Peers]]) -> None: ...
def gives_a_socket() -> list[socket.socket]:
    raise NotImplementedError


def gives_numbers() -> Iterator[int]:
    raise NotImplementedError


def is_lost(a: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def has_two_arrays(a: list[int] | set[int]) -> None: ...
def takes_anything(a: object, b: Hashable, c: Sequence[int], *rest: socket.socket) -> object: ...


@dataclasses.dataclass
class Peers:
    name: str
    peer: socket.socket
    inner: Peers | None = None


@pytest.mark.parametrize("function", [plain, untyped, rich, raw, variadic, late, may_have_a_socket, takes_anything])
def test_annotations_that_json_has_values_for_are_no_problem(function: Any) -> None:
    assert Signature(function, "f").problem() == ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            needs_a_socket,
            "f: parameter 'peer': JSON has no values of type socket; use a dataclass, or give the class a form",
        ),
        (has_them_inside, "f: parameter 'peers': JSON has no values of type socket"),
        (gives_a_socket, "f: its result: JSON has no values of type socket"),
        (gives_numbers, "f: its result: JSON has no values of type Iterator"),
        (is_lost, "f: an annotation cannot be resolved (name 'Nowhere' is not defined)"),
        (
            has_two_arrays,
            "f: parameter 'a': Type unions may not contain more than one array",
        ),
    ],
)
def test_annotations_that_json_has_no_values_for_are_problems(function: Any, message: str) -> None:
    assert message in Signature(function, "f").problem()


def test_ignored_results_may_have_any_annotation() -> None:
    assert Signature(gives_numbers, "f").problem(results=False) == ""

"""Types that msgspec does not know, as arguments and results: models of Pydantic, and registered types."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

from mainspring import register_type
from mainspring.client import json_types
from mainspring.client.payload import Signature, encode_result
from mainspring.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Line(BaseModel):
    sku: str
    price: Decimal = Decimal(1)


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    lines: list[Line] = []
    tags: set[str] = set()
    note: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return Decimal(sum(line.price for line in self.lines))

    @field_validator("note")
    @classmethod
    def short(cls, note: str | None) -> str | None:
        if note is not None and len(note) > 10:
            raise ValueError("the note is too long")
        return note


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    amount: Decimal


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Numbers(RootModel[list[int]]): ...


class Measure(BaseModel):
    value: float


class Login(BaseModel):
    password: SecretStr


class Shown(Login):
    @field_serializer("password")
    def show(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Wrapped(msgspec.Struct):
    order: Order
    count: int = 1


def even(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def place(order: Order, *, second: Order | None = None) -> Order:
    raise NotImplementedError


def strict(value: Strict) -> Strict:
    raise NotImplementedError


def pets(pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]) -> dict[str, Cat | Dog]:
    raise NotImplementedError


def wrapped(value: Wrapped) -> list[Wrapped]:
    raise NotImplementedError


def bounded(n: Annotated[int, Field(gt=0)], m: Annotated[int, AfterValidator(even)] = 2) -> HttpUrl:
    raise NotImplementedError


def root(numbers: Numbers) -> Numbers | None:
    raise NotImplementedError


def variadic(first: Order, *rest: Cat | Dog, **named: Order) -> None: ...
def untyped(value): ...  # type: ignore[no-untyped-def]
def measure(value: Measure) -> Measure:
    raise NotImplementedError


def login(value: Login) -> None: ...


ORDER = Order(orderNumber=1, lines=[Line(sku="a", price=Decimal("0.10"))], tags={"x", "y"})
CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (place, (ORDER,), {"second": Order(orderNumber=2)}),
    (place, (ORDER,), {"second": None}),
    (strict, (Strict(amount=Decimal("1.50")),), {}),
    (pets, ([Cat(lives=3), Dog()],), {}),
    (wrapped, (Wrapped(ORDER),), {}),
    (root, (Numbers([1, 2]),), {}),
    (variadic, (ORDER, Cat(), Dog()), {}),
    (variadic, (), {"first": ORDER, "other": Order(orderNumber=3)}),
]


def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return Signature(function, function.__name__).bound(args, kwargs)


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS)
def test_models_arrive_as_they_were_submitted(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    signature = Signature(function, "f")
    for payload in (signature.encode(args, kwargs), signature.encode_recorded(args, kwargs)):
        assert called(function, *signature.decode(payload)) == called(function, args, kwargs)


def test_results_are_models() -> None:
    assert Signature(place, "f").decode_result(encode_result(ORDER)) == ORDER
    assert Signature(pets, "f").decode_result(encode_result({"a": Dog()})) == {"a": Dog()}
    assert Signature(wrapped, "f").decode_result(encode_result([Wrapped(ORDER)])) == [Wrapped(ORDER)]
    url = HttpUrl("https://example.org/x")
    assert Signature(bounded, "f").decode_result(encode_result(url)) == url
    assert Signature(root, "f").decode_result(b"") is None


def test_a_model_is_read_by_alias_and_by_name() -> None:
    for payload in (b'[{"orderNumber":1}]', b'[{"number":1}]', b'{"order":{"number":"1"}}'):
        args, kwargs = Signature(place, "place").decode(payload)
        assert [*args, *kwargs.values()] == [Order(orderNumber=1)]


@pytest.mark.parametrize(
    ("function", "payload", "message"),
    [
        (place, b'[{"number":"x"}]', "f: parameter 'order' at .number: Input should be a valid integer"),
        (
            place,
            b'[{"number":1,"lines":[{}, 1]}]',
            "f: parameter 'order' at .lines[0].sku: Field required (and 1 more)",
        ),
        (place, b'{"order":{"number":1},"second":7}', "f: parameter 'second': Input should be an object"),
        (
            place,
            b'[{"number":1,"note":"far too long for it"}]',
            "parameter 'order' at .note: Value error, the note is too",
        ),
        (strict, b'[{"amount":"1","b":2}]', "parameter 'value' at .b: Extra inputs are not permitted"),
        (wrapped, b'[{"order":{"number":"x"}}]', "parameter 'value' at .order: Order.number: Input should be a valid"),
        (bounded, b"[0]", "f: parameter 'n': Input should be greater than 0"),
        (bounded, b"[1,3]", "f: parameter 'm': Value error, 3 is odd"),
        (variadic, b'[{"number":1},{"kind":"cow"}]', "f: parameter 'rest' at [0].Cat.kind: Input should be 'cat'"),
        (place, b"[]", "f: missing a required argument: 'order'"),
    ],
)
def test_errors_name_the_field_and_no_value(function: Callable[..., Any], payload: bytes, message: str) -> None:
    with pytest.raises(PayloadError) as error:
        Signature(function, "f").decode(payload)
    assert message in str(error.value)
    assert "far too long" not in str(error.value)


def test_a_dict_that_does_not_fit_is_refused_where_it_is_submitted() -> None:
    signature = Signature(place, "place")
    assert signature.encode(({"number": 1},), {}) == b'[{"number":1}]'
    for wrong in ({"number": "x"}, {"orderNumber": 1, "lines": [{}]}):
        with pytest.raises(PayloadError, match=r"place: parameter 'order' at .(number|lines\[0\].sku)"):
            signature.encode((wrong,), {})
    with pytest.raises(PayloadError, match="parameter 'pets'"):
        Signature(pets, "pets").encode(([{"kind": "cow"}],), {})
    # A history is not compared with today's models.
    assert signature.encode_recorded(({},), {}) == b"[{}]"


def test_a_model_that_was_changed_to_a_wrong_type_is_refused() -> None:
    order = Order(orderNumber=1)
    order.number = "x"  # type: ignore[assignment]
    with pytest.raises(
        PayloadError, match=r"place: parameter 'order' cannot be written as JSON: Order: .*Expected `int`"
    ):
        Signature(place, "place").encode((order,), {})


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"f: parameter 'value' at .value is nan"):
        Signature(measure, "f").encode((Measure(value=float("nan")),), {})
    with pytest.raises(PayloadError, match=r"f: parameter 'value' at .value is inf"):
        Signature(measure, "f").encode_recorded((Measure(value=float("inf")),), {})

    class Constants(Measure):
        model_config = ConfigDict(ser_json_inf_nan="constants")

    class Texts(Measure):
        model_config = ConfigDict(ser_json_inf_nan="strings")

    with pytest.raises(PayloadError, match="Constants has a number that is NaN or infinite"):
        encode_result([Constants(value=float("nan"))])
    assert encode_result([Texts(value=float("inf")), None]) == b'[{"value":"Infinity"},null]'
    with pytest.raises(PayloadError, match="Login has a secret, which Pydantic writes as asterisks"):
        Signature(login, "f").encode((Login(password=SecretStr("pw")),), {})
    assert encode_result(Shown(password=SecretStr("*" * 10))) == b'{"password":"**********"}'


def test_recorded_arguments_do_not_depend_on_the_process() -> None:
    """Sets of text have another order in each process."""
    code = (
        "from tests.unit.client.test_json_types import *\n"
        "order = Order(orderNumber=1, tags={'a', 'b', 'c', 'd', 'e'})\n"
        "print(Signature(place, 'f').encode_recorded((order,), {'second': order}).decode())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(written) == 1
    assert '"tags":["a","b","c","d","e"]' in written.pop()


# ---- registered types ----


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


class Euro(Money): ...


@dataclass
class Bill:
    money: Money
    extra: list[Money | None]


def pay(money: Money, bills: dict[str, Bill]) -> Money | None:
    raise NotImplementedError


@pytest.fixture
def registered() -> Iterator[None]:
    def parse(text: str) -> Money:
        euros, cents = text.split(".")
        return Money(int(euros) * 100 + int(cents))

    register_type(Money, encode=lambda money: f"{money.cents // 100}.{money.cents % 100:02}", decode=parse)
    yield
    json_types._forms.clear()  # noqa: SLF001 - a registration lasts as long as the process


@pytest.mark.usefixtures("registered")
def test_a_registered_type_has_the_form_of_its_functions() -> None:
    signature = Signature(pay, "pay")
    args = (Money(150), {"a": Bill(Money(2), [None, Money(3)])})
    payload = signature.encode(args, {})
    assert payload == b'["1.50",{"a":{"money":"0.02","extra":[null,"0.03"]}}]'
    assert signature.decode(payload) == (args, {})
    assert signature.decode(signature.encode_recorded(args, {})) == (args, {})
    assert signature.decode_result(encode_result(Euro(5))) == Money(5)
    with pytest.raises(PayloadError, match=r"pay: parameter 'money': Money: not enough values to unpack"):
        signature.decode(b'["1",{}]')
    with pytest.raises(PayloadError, match=r"pay: parameter 'bills' at .*: decode of Money raised AttributeError"):
        signature.decode(b'["1.50",{"a":{"money":3,"extra":[]}}]')


def test_a_form_that_cannot_be_written_is_explained() -> None:
    register_type(Money, encode=lambda money: money.euros, decode=Money)  # type: ignore[attr-defined]
    try:
        with pytest.raises(
            PayloadError, match=r"untyped: parameter 'value' cannot be written as JSON: encode of Money raised"
        ):
            Signature(untyped, "untyped").encode((Money(1),), {})
    finally:
        json_types._forms.clear()  # noqa: SLF001 - as above
    with pytest.raises(
        PayloadError, match=r"objects of type Money is unsupported: register_type\(Money, …\) gives it a form"
    ):
        Signature(untyped, "untyped").encode((Money(1),), {})


@pytest.mark.parametrize("kind", [int, Decimal, Bill, Wrapped, Order, "Money"])
def test_a_type_that_has_a_form_is_not_registered(kind: Any) -> None:
    with pytest.raises(UsageError):
        register_type(kind, encode=str, decode=kind)
    with pytest.raises(UsageError, match="decode must be a function"):
        register_type(Money, encode=str, decode=3)  # type: ignore[arg-type]

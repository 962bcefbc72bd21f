"""Provided parameters: how they are found, that they are no arguments, and which ones are refused."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast
from unittest.mock import Mock

import pytest

from mainspring import App, Provide
from mainspring.client.payload import Signature
from mainspring.client.providers import Provided
from mainspring.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from somewhere_else import Unknown  # type: ignore[import-not-found]


def engine() -> str:
    return "engine"


def session(of: Annotated[str, Provide(engine)]) -> Iterator[str]:
    yield of


Session = Annotated[str, Provide(session)]


def marked(number: int, db: str = Provide(session), flag: bool = False) -> None: ...


def annotated(number: int, *, db: Annotated[str, "other", Provide(session)], flag: bool = False) -> None: ...


def by_alias(number: int, *, db: Session, flag: bool = False) -> None: ...


def of_a_hidden_type(number: int, *, flag: bool = False, db: Unknown = Provide(session)) -> None: ...


@functools.wraps(annotated)
def wrapped(*args: Any, **kwargs: Any) -> None: ...


def signature(call: Callable[..., Any]) -> Signature:
    return Signature(call, "f")


@pytest.mark.parametrize("call", [annotated, by_alias, of_a_hidden_type, wrapped, functools.partial(annotated)])
def test_a_provided_parameter_is_no_argument(call: Callable[..., Any]) -> None:
    found = signature(call)
    assert {name: mark.provider for name, mark in found.provided.items()} == {"db": session}
    assert found.encode((5,), {}) == b"[5]"
    assert found.decode(found.encode((5,), {"flag": True})) == ((), {"number": 5, "flag": True})
    assert found.problem() == ""
    for keywords in ({"number": 5, "db": "x"}, {"db": "x"}):
        with pytest.raises(TypeError, match="workers provide 'db', which is no argument of the job"):
            found.encode((), keywords)
    with pytest.raises(TypeError):
        found.encode((5, "x"), {})
    for payload in (b'[5,"x"]', b'{"number":5,"db":"x"}', b'[5,true,"x"]'):
        with pytest.raises(PayloadError):
            found.decode(payload)


def test_provided_parameters_stand_where_they_change_no_position() -> None:
    with pytest.raises(UsageError, match=r"'db' stands before 'flag', which callers may give by position"):
        signature(marked)

    def before_the_rest(db: str = Provide(session), *rest: int) -> None: ...

    def by_position(db: str = Provide(session), /) -> None: ...

    def rest(*db: Session) -> None: ...

    for call in (before_the_rest, by_position, rest):
        with pytest.raises(UsageError, match="'db'"):
            signature(call)


def test_bytes_are_still_the_only_argument() -> None:
    def raw(data: bytes, db: str = Provide(session)) -> bytes:
        return data

    assert signature(raw).raw
    assert signature(raw).decode(b"\x00") == ((b"\x00",), {})


def test_what_needs_what_is_checked_where_a_task_is_defined() -> None:
    def lacking(db: str) -> str:
        return db

    def shares_that_of_a_job(of: str = Provide(session)) -> str:
        return of

    def circular(of: Annotated[str, Provide(around_it)]) -> str:
        return of

    def around_it(of: str = Provide(circular)) -> str:
        return of

    circular.__annotations__["of"] = Annotated[str, Provide(around_it)]

    def first(x: str = Provide(lacking)) -> None: ...

    def second(x: str = Provide(shares_that_of_a_job, per="worker")) -> None: ...

    def third(x: str = Provide(circular)) -> None: ...

    for call, message in [
        (first, "the provider .*lacking has a parameter 'db' that nothing provides"),
        (second, "provided per worker, and its parameter 'of' per job"),
        (third, "its providers need each other: .*circular → .*around_it → .*circular"),
    ]:
        with pytest.raises(UsageError, match=message):
            App().task(call)


@pytest.mark.parametrize("given", [5, "session", Mock(), object(), None])
def test_other_values_are_no_providers(given: Any) -> None:
    with pytest.raises(UsageError, match="lambda: value"):
        Provide(given)


def test_per_is_checked() -> None:
    with pytest.raises(UsageError, match="per must be 'job' or 'worker'"):
        Provide(engine, per="process")  # type: ignore[call-overload]


def test_providers_of_all_kinds_are_taken() -> None:
    async def later() -> AsyncIterator[int]:
        yield 1

    @contextmanager
    def managed() -> Iterator[int]:
        yield 1

    providers: list[Callable[..., Any]] = [engine, session, later, managed, dict, Mock, lambda: 1, [5].copy]
    for provider in [*providers, cast("Callable[..., Any]", functools.partial(engine))]:
        mark: Any = Provide(provider)
        assert isinstance(mark, Provided)
        assert mark.key == (provider, "job")


def test_a_workflow_has_no_provided_parameters() -> None:
    app = App()

    async def order(number: int, db: str = Provide(session)) -> None: ...

    with pytest.raises(
        UsageError, match=r"'db' is provided, and a workflow has no such parameters: its code is replayed"
    ):
        app.workflow(order)


def test_a_plain_call_gives_the_values_itself() -> None:
    app = App()

    @app.task
    def report(number: int, db: str = Provide(session)) -> str:
        return f"{number} {db}"

    assert report(5, db="fake") == report(5, "fake") == "5 fake"
    with pytest.raises(
        TypeError, match=r"report: 'db' is provided by workers, and a plain call runs without one: give it, "
    ):
        report(5)

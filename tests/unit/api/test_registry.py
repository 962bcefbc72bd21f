"""Calls by name, and awaited from asyncio."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring import api
from mainspring.access.caller import LOCAL, Caller, Grant, Permission, Role
from mainspring.api import functions, jobs, nodes, schedules, submitting
from mainspring.api.handlers.registry import Api, Call
from mainspring.api.request import ApiError, Code, Problem, Request, Touches, read, write
from mainspring.callbacks import Callback
from mainspring.errors import ConflictError, Kind, NotFoundError, StoreFullError, UsageError
from mainspring.features import Feature

from .a_node import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.api.request import Feed
    from mainspring.errors import MainspringError


class Double(Request[int]):
    permission = Permission.READ
    call = "double"
    number: int = 1


class Anything(Request[int]):
    permission = Permission.READ
    call = "anything"
    value: dict[str, Any] | list[Any] = {}  # noqa: RUF012 - msgspec copies it


class Named(Request[int]):
    permission = Permission.READ
    call = "named"
    name: str


class Wait(Request[None]):
    """A request without a name."""

    permission = Permission.READ


async def double(request: Double, _: Call) -> int:
    if request.number < 0:
        raise ApiError(Code.INVALID, "too small")
    return 2 * request.number


def test_a_request_is_read_by_its_name() -> None:
    api = Api({Double: double})
    assert read(api.requests, "double", b'{"number": 4}') == Double(4)
    assert read(api.requests, "double", b"") == Double()
    assert write(Double(4)) == b'{"number":4}'
    assert write(Double()) == b"{}", "the server sets the defaults"


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("triple", b"", Code.UNKNOWN_CALL),
        ("", b"", Code.UNKNOWN_CALL),
        ("double", b"{", Code.UNREADABLE),
        ("double", b"[]", Code.UNREADABLE),
        ("double", b'{"number": "x"}', Code.UNREADABLE),
        ("double", b'{"more": 1}', Code.UNREADABLE),
        ("named", b'{"name": "\xff"}', Code.UNREADABLE),
        ("anything", b'{"value": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", Code.UNREADABLE),
    ],
)
def test_the_error_of_an_unreadable_request_gives_the_reason(name: str, params: bytes, code: Code) -> None:
    api = Api({Double: double, Named: double, Anything: double, Wait: double})
    with pytest.raises(ApiError) as caught:
        read(api.requests, name, params)
    assert caught.value.problem.code is code
    assert caught.value.problem.code.kind is Kind.USAGE


def test_calls_are_awaited() -> None:
    async def test() -> None:
        api = Api({Double: double})
        assert await api.call(Double(4)) == 8
        with pytest.raises(ApiError, match="too small"):
            await api.call(Double(-1))

    run(test())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("why"), Code.INVALID),
        (ConflictError("why"), Code.CONFLICT),
        (StoreFullError("why"), Code.UNAVAILABLE),
        (ApiError(Code.NODE_LIVES, "why"), Code.NODE_LIVES),
    ],
)
def test_errors_of_the_services_are_problems(error: MainspringError, code: Code) -> None:
    async def refuse(_: Wait, __: Call) -> None:
        raise error

    answers: list[None] = []
    problems: list[Problem] = []
    Api({Wait: refuse}).start(Wait(), answers.append, problems.append)
    assert (answers, problems) == ([], [Problem(code, "why")])


def test_a_request_is_refused_to_callers_without_its_permission() -> None:
    async def who(_: Named, call: Call) -> int:
        return len(call.caller.name)

    async def test() -> None:
        api = Api({Named: who})
        viewer = Caller("v", (Grant(Role.VIEWER),))
        assert await api.call(Named("x"), caller=viewer) == 1
        assert await api.call(Named("x")) == len(LOCAL.name)
        with pytest.raises(ApiError, match="namespace 'other'") as caught:
            await api.call(Named("x", namespace="other"), caller=viewer)
        assert caught.value.problem.code is Code.FORBIDDEN
        with pytest.raises(ApiError, match="lacks the permission 'read'"):
            await api.call(Named("x"), caller=Caller("nobody", ()))

    run(test())


class Change(Request[str]):
    permission = Permission.OPERATE
    touches = Touches.JOB
    requires = Feature.JOB_CHANGES
    call = "change"
    handle: str


async def change(request: Change, call: Call) -> str:
    if request.handle == "none":
        raise NotFoundError("gone")
    act = call.act("why", after=1)
    return f"{act.who} {act.what} {act.object} {act.namespace} {act.reason} {act.after}"


def test_a_handler_gets_the_act_of_its_request_and_answers_its_404() -> None:
    async def test() -> None:
        api = Api({Change: change})
        assert await api.call(Change("H:n:1", namespace="shop")) == "local change H:n:1 shop why 1"
        with pytest.raises(ApiError, match="handle none") as caught:
            await api.call(Change("none"))
        assert caught.value.problem.code is Code.JOB_NOT_FOUND

    run(test())


@pytest.mark.parametrize("feature", Feature)
def test_what_a_store_lacks_is_refused_with_its_reason_after_the_permission(feature: Feature) -> None:
    async def test() -> None:
        api = Api({Change: change}, lacks=frozenset({feature}))
        viewer = Caller("v", (Grant(Role.VIEWER),))
        with pytest.raises(ApiError, match="lacks the permission"):
            await api.call(Change("x"), caller=viewer)
        if feature is not Feature.JOB_CHANGES:
            assert (await api.call(Change("x"))).startswith("local change")
            return
        with pytest.raises(ApiError) as caught:
            await api.call(Change("x"))
        assert (caught.value.problem.code, str(caught.value)) == (Code.UNSUPPORTED, feature.refusal)

    run(test())


def test_a_list_shows_what_its_caller_may_see() -> None:
    call = Call(Named("x"), Caller("v", (Grant(Role.VIEWER, functions=("pay*",)),)))
    assert call.shown(["pay", "mail", "payer"], str) == ["pay", "payer"]
    assert Call(Named("x"), LOCAL).shown(["pay", "mail"], str) == ["pay", "mail"]


def test_a_stream_is_refused_to_callers_without_its_permission() -> None:
    def end() -> None: ...

    async def follow(_request: Named, _call: Call, _feed: Feed) -> Callable[[], None]:
        return end

    async def test() -> None:
        api, feed = Api(), cast("Feed", object())
        api.add_streams({Named: follow})
        assert await api.follow(Named("x"), feed, caller=Caller("v", (Grant(Role.VIEWER),))) is end
        with pytest.raises(ApiError, match="lacks the permission 'read'"):
            await api.follow(Named("x", namespace="other"), feed, caller=Caller("v", (Grant(Role.VIEWER),)))

    run(test())


def test_some_requests_need_a_permission_in_any_namespace() -> None:
    class Anywhere(Request[int]):
        permission = Permission.ADMIN
        touches = Touches.EACH
        in_any_namespace = True
        call = "anywhere.do"

    async def answer(_: Anywhere, __: Call) -> int:
        return 1

    async def test() -> None:
        api = Api({Anywhere: answer})
        assert await api.call(Anywhere(), caller=Caller("a", (Grant(Role.ADMIN, "team"),))) == 1
        with pytest.raises(ApiError, match="lacks the permission"):
            await api.call(Anywhere(), caller=Caller("d", (Grant(Role.DEVELOPER, "team"),)))

    run(test())


def test_a_request_without_a_permission_is_not_registered() -> None:
    class Open(Request[int]):
        call = "open"

    with pytest.raises(AttributeError):
        Api({Open: double})


def test_a_defect_is_raised_only_to_the_caller() -> None:
    async def test() -> None:
        answers: list[Any] = []

        async def wait(_: Wait, __: Call) -> None:
            await Callback[None](lambda done, _: answers.append(done))
            raise ZeroDivisionError

        task = asyncio.create_task(Api({Wait: wait}).call(Wait()))
        await asyncio.sleep(0)
        answers[0](None)
        with pytest.raises(ZeroDivisionError):
            await task

    run(test())


@pytest.mark.parametrize("late", [False, True], ids=["no value", "a value in the same turn"])
def test_a_call_ends_with_the_task_that_awaits_it(late: bool) -> None:
    async def test() -> None:
        waits = asyncio.Event()
        answers: list[Any] = []
        ended: list[str] = []

        async def wait(_: Wait, __: Call) -> None:
            waits.set()
            try:
                await Callback[None](lambda done, _: answers.append(done))
            finally:
                ended.append("ended")

        task = asyncio.create_task(Api({Wait: wait}).call(Wait()))
        await waits.wait()
        task.cancel()
        if late:
            answers[0](None)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["ended"]

    run(test())


def requests() -> list[type[Request[Any]]]:
    modules = (functions, jobs, nodes, schedules, submitting)
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, Request) and kind is not Request]


def test_names_of_calls_are_unique_and_contain_their_subject() -> None:
    named = [kind for kind in requests() if kind.call]
    names = [kind.call for kind in named]
    assert len(set(names)) == len(names) > 25
    subjects = {"mainspring.api.nodes": {"node", "nodes", "workers"}}
    for kind in named:
        assert kind.call.split(".")[0] in subjects.get(kind.__module__, {kind.__module__.rpartition(".")[2]})


def test_the_codes_in_the_docstring_of_a_request_exist() -> None:
    codes = {code.value for code in Code}
    for kind in requests():
        _, _, documented = (kind.__doc__ or "").partition("Codes: ")
        named = set(documented.split("``")[1::2])
        assert named <= codes, kind


def test_every_request_has_a_name_for_the_audit() -> None:
    for module in iter_modules(api.__path__):
        import_module(f"{api.__name__}.{module.name}")
    kinds = [
        kind for kind in _kinds(Request) if hasattr(kind, "permission") and kind.__module__.startswith("mainspring.")
    ]
    assert len(kinds) > 80
    assert [kind for kind in kinds if not (kind.call or kind.name_in_audit)] == []


def _kinds(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)

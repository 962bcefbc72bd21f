"""Several versions of a workflow in one App: ``@order.version("2")`` and ``order.options(version=…)``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, UsageError
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Callable

Anything: Any = App  # a caller without a type checker


def define(app: App) -> Any:
    @app.workflow(timeout="1h", park_on=(ZeroDivisionError,), id="one")
    async def order(number: int, items: list[str], *, note: str = "") -> int:
        raise NotImplementedError

    return order


def test_versions_stand_side_by_side_and_share_the_options_of_the_first() -> None:
    app = App()
    order = define(app)

    async def second(number: int, items: list[str], gift: bool = False, *, note: str = "", **more: int) -> int:
        raise NotImplementedError

    async def third(number: int, items: list[str], gift: bool = False, *, note: str = "", **more: int) -> int:
        raise NotImplementedError

    newer = order.version("2")(second)
    newer.version("3", timeout="2h", park_on=(KeyError,))(third)
    codes = app.registry.workflows
    assert list(codes) == [("order", "1"), ("order", "2"), ("order", "3")]
    assert [(one.timeout, one.code.park_on) for one in codes.values()] == [
        (3600.0, (ZeroDivisionError,)),
        (3600.0, (ZeroDivisionError,)),
        (7200.0, (KeyError,)),
    ]
    assert [repr(one) for one in (order, newer)] == [
        "Workflow('order', version='1')",
        "Workflow('order', version='2')",
    ]
    assert (newer.name, newer.unique_of((1, []), {})) == ("order", "one")


def test_a_submit_states_the_version() -> None:
    with ExtensionServer() as server:
        app = App(str(server.address))
        order = define(app)
        newer = order.version("2")(lambda_like(order))
        sent: list[Any] = []

        def note(_: object, args: list[bytes]) -> bool:
            sent.append(json.loads(args[2] or b"{}"))
            return False

        server.before[Type.SUBMIT] = note
        try:
            order.submit(1, [])
            newer.submit(1, [])
            order.options(version="1", priority="high").submit(1, [])
            order.options(version="1").version("3")(lambda_like(order)).submit(1, [])
        finally:
            app.close()
    newest = {"version": ""}  # a node without workflows refuses any version
    assert sent == [newest, newest, {"version": "1", "priority": "high"}, newest]


def lambda_like(order: Any) -> Callable[..., Any]:
    async def other(number: int, items: list[str], *, note: str = "") -> int:
        raise NotImplementedError

    other.__qualname__ = order.name
    return other


def test_wrong_versions_are_refused() -> None:
    app = App()
    order = define(app)
    order.version("2")(lambda_like(order))
    with pytest.raises(UsageError, match=r"two workflows are named 'order' in version '2'.*@order\.version"):
        order.version("2")(lambda_like(order))
    with pytest.raises(UsageError, match="'' is not a version of a workflow"):
        order.version("")(lambda_like(order))
    for version in ("", "a@b", 2):
        with pytest.raises(UsageError, match=r"version"):
            order.options(version=version)
    with pytest.raises(UsageError, match="no coroutine function"):
        order.version("3")(lambda number, items: 1)
    with pytest.raises(UsageError, match=r"schedule 'order': a schedule starts runs of the newest version"):
        app.scheduled("@daily", args=(1, []))(order.options(version="1"))


async def one(number: int, /, items: list[str], *rest: str, note: str, size: int = 1, **more: int) -> None: ...
async def only_rest(*args: Any, **kwargs: Any) -> None: ...
async def other_name(count: int, /, items: list[str], *rest: str, note: str, size: int = 1, **more: int) -> None: ...
async def renamed(number: int, /, things: list[str], *rest: str, note: str, size: int = 1, **more: int) -> None: ...
async def no_rest(number: int, /, items: list[str], *, note: str, size: int = 1, **more: int) -> None: ...
async def no_names(number: int, /, items: list[str], *rest: str, note: str, size: int = 1) -> None: ...
async def needs_size(number: int, /, items: list[str], *rest: str, note: str, size: int, **more: int) -> None: ...
async def needs_more(number: int, /, items: list[str], x: int, *rest: str, note: str, **more: int) -> None: ...
async def plain(number: int, items: list[str]) -> None: ...
async def positional(number: int, items: list[str], /) -> None: ...
async def fewer(number: int) -> None: ...
async def more_needed(number: int, items: list[str], note: str) -> None: ...
async def optional(number: int, items: list[str] = ()) -> None: ...  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (one, one, ""),
        (one, only_rest, ""),
        (one, other_name, ""),
        (one, renamed, "its parameter 2 is named 'things', not 'items'"),
        (one, no_rest, r"it lacks \*rest"),
        (one, no_names, r"it lacks \*\*more"),
        (one, needs_size, "its parameter 'size' needs a default"),
        (one, needs_more, "its parameter 'x' needs a default"),
        (plain, fewer, "it lacks the parameter 'items'"),
        (plain, positional, "it lacks the parameter 'number', or takes it by position only"),
        (plain, more_needed, "its parameter 'note' needs a default, because other versions can be called without it"),
        (plain, optional, ""),
        (optional, plain, "its parameter 'items' needs a default"),
    ],
)
def test_a_version_takes_all_calls_of_the_others(
    old: Callable[..., Any], new: Callable[..., Any], problem: str
) -> None:
    define = Anything().workflow(name="order")(old).version("2")
    if not problem:
        define(new)
        return
    with pytest.raises(UsageError, match=f"{new.__name__} cannot be version '2' of the workflow order: {problem}"):
        define(new)

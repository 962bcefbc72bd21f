"""Calls about resources, without a face."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.faces.rest.a_server import whole_node

from mainspring.api.handlers import resources as handlers
from mainspring.api.request import ApiError, Code, Request
from mainspring.api.resources import (
    DrainResource,
    FreeResource,
    HoldResource,
    ListResources,
    SetResource,
    ShowResource,
    TakeResource,
)
from mainspring.callbacks import awaited
from mainspring.clock import to_us
from mainspring.resources import holds as rules
from mainspring.resources.hold_store import AskHolds
from mainspring.resources.holds import Holder, HolderKind, Line

from .a_node import run

if TYPE_CHECKING:
    from collections.abc import Callable


async def refused(api: object, request: Request[Any]) -> Code:
    """Return the code of the refusal of a request."""
    with pytest.raises(ApiError) as raised:
        await api.call(request)  # type: ignore[attr-defined]
    return raised.value.problem.code


async def until(api: Any, condition: Callable[[Any], object]) -> Any:
    """Show the resource until a condition holds, and return it."""
    while not condition(shown := await api.call(ShowResource("licence"))):
        pass
    return shown


def test_operators_change_and_hold_resources() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            limited = await api.call(SetResource("licence", total=2))
            assert (limited.total, limited.slots, limited.source) == (2, 2, "command")
            held = await api.call(HoldResource("licence", duration=60.0, units=2))
            assert (held.kind, held.units, held.number) == ("person", 2, "1")
            assert await refused(api, HoldResource("licence", duration=60.0)) is Code.CONFLICT
            shown = await api.call(ShowResource("licence"))
            assert ([one.holder for one in shown.holds], shown.waits, shown.held) == ([held.holder], [], 2)
            assert (await api.call(FreeResource("licence", held.holder))).state == "free"
            assert await refused(api, FreeResource("licence", held.holder)) is Code.CONFLICT
            another = await api.call(HoldResource("licence", duration=60.0))
            assert await refused(api, TakeResource("licence", another.holder)) is Code.CONFLICT
            await api.call(FreeResource("licence", another.holder))
            drained = await api.call(DrainResource("licence", reason="audit"))
            assert (drained.slots, drained.items[0].state) == (0, "draining")
            assert await refused(api, HoldResource("licence", duration=60.0)) is Code.CONFLICT
            assert (await api.call(DrainResource("licence", undo=True))).slots == 2

    run(test())


def test_a_resource_shows_the_first_of_many_holders_and_of_those_that_wait_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "MOST_SHOWN", 2)

    async def test() -> None:
        async with whole_node() as (_, built):
            await built.api.call(SetResource("licence", total=3))
            now_us, later_us = to_us(built.node.clock.wall()), to_us(built.node.clock.wall() + 60)
            asked = [
                rules.Request(Holder(HolderKind.PERSON, at, 0), 1, (Line("licence"),), 1, now_us + at, b"f", later_us)
                for at in range(1, 7)
            ]
            await awaited(built.node.service.commits.committed(AskHolds(asked, now_us)))
            shown = await built.api.call(ShowResource("licence"))
            assert (shown.held, [one.holder for one in shown.holds]) == (3, ["1", "2"])
            assert (shown.waiting, [one.holder for one in shown.waits]) == (3, ["4", "5"])
            assert [(one.lacks, one.behind) for one in shown.waits] == [(["licence"], []), (["licence"], ["4"])]

    run(test())


def test_a_person_waits_for_slots_until_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "ASKED_AGAIN", 0.01)

    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            await api.call(SetResource("licence", total=1))
            first = await api.call(HoldResource("licence", duration=60.0))
            assert await refused(api, HoldResource("licence", duration=60.0, wait=0.05)) is Code.CONFLICT
            assert (await api.call(ShowResource("licence"))).waits == []
            waiting = asyncio.ensure_future(api.call(HoldResource("licence", duration=60.0, wait=600.0)))
            shown = await until(api, lambda shown: shown.waits)
            assert (shown.waits[0].kind, shown.waits[0].priority) == ("person", "high")
            assert await refused(api, HoldResource("licence", duration=60.0)) is Code.CONFLICT
            await api.call(FreeResource("licence", first.holder))
            held = await waiting
            assert held.holder == shown.waits[0].holder
            assert [one.holder for one in (await api.call(ShowResource("licence"))).holds] == [held.holder]

    run(test())


def test_a_person_who_goes_waits_no_more() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            await api.call(SetResource("licence", total=1))
            first = await api.call(HoldResource("licence", duration=60.0))
            waiting = asyncio.ensure_future(api.call(HoldResource("licence", duration=60.0, wait=600.0)))
            await until(api, lambda shown: shown.waits)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until(api, lambda shown: not shown.waits)
            await api.call(FreeResource("licence", first.holder))
            assert (await api.call(ShowResource("licence"))).held == 0

    run(test())


def test_each_namespace_lists_its_own_resources_in_pages() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            names = ["a", "b", "z"]
            for name in names:
                await api.call(SetResource(name, total=1))
                await api.call(SetResource(name, total=2, namespace="other"))
            for namespace, total in (("default", 1), ("other", 2)):
                found, cursor = [], None
                while True:
                    page = await api.call(ListResources(cursor=cursor, limit=2, namespace=namespace))
                    found += page.items
                    cursor = page.next
                    if cursor is None:
                        break
                assert [(one.name, one.total) for one in found] == [(name, total) for name in names]

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ShowResource("none"), Code.RESOURCE_NOT_FOUND),
        (DrainResource("none"), Code.RESOURCE_NOT_FOUND),
        (HoldResource("none", duration=1.0), Code.RESOURCE_NOT_FOUND),
        (SetResource("none", declared=True), Code.RESOURCE_NOT_FOUND),
        (SetResource("l"), Code.INVALID),
        (SetResource("l", total=1, items={"a": []}), Code.INVALID),
        (SetResource("l", total=-1), Code.INVALID),
        (SetResource("l", items={}), Code.INVALID),
        (SetResource("\0", total=1), Code.INVALID),
        (DrainResource("licence", item="p9"), Code.INVALID),
        (HoldResource("licence", duration=0.0), Code.INVALID),
        (HoldResource("licence", duration=1.0, wait=3601.0), Code.INVALID),
        (HoldResource("licence", duration=1.0, wait=-1.0), Code.INVALID),
        (HoldResource("licence", duration=31 * 86_400.0), Code.INVALID),
        (HoldResource("licence", duration=1.0, units=0), Code.INVALID),
        (HoldResource("licence", duration=1.0, units=9), Code.CONFLICT),
        (TakeResource("none", "H:n:1"), Code.RESOURCE_NOT_FOUND),
        (TakeResource("licence", "H:n:1"), Code.CONFLICT),
    ],
)
def test_invalid_requests_are_refused(request_: Request[Any], code: Code) -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            await built.api.call(SetResource("licence", total=2))
            assert await refused(built.api, request_) is code

    run(test())

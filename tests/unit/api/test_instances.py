"""Calls about the instances of managed resources, without a face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from tests.unit.faces.rest.a_server import whole_node

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.request import Code
from mainspring.api.resources import DrainResource, ListResources, SetResource, ShowResource
from mainspring.callbacks import awaited
from mainspring.clock import to_us
from mainspring.resources.hold_store import AskHolds
from mainspring.resources.holds import Holder, HolderKind, Line, Request, Resource
from mainspring.resources.instance_store import Tend
from mainspring.resources.instances import Done, Report
from mainspring.resources.managed import Managed

from .a_node import run
from .test_resources import refused

if TYPE_CHECKING:
    import pytest

    from mainspring.resources.instance_store import Tended

SPARK = Managed(3, labels=("size=4",), fields='{"size":4}', idle_us=480_000_000)


async def tend(built: Any, *reports: Report) -> Tended:
    """Look at the instances of the resource; nobody runs the jobs of the steps."""
    service = built.node.service
    ids = [service.table.next_id() for _ in range(4)]
    operation = AskHolds([], to_us(built.node.clock.wall()), tend=Tend("spark", "n", service.term, ids, reports))
    asked = await awaited(service.commits.committed(operation))
    tended: Tended = asked.tended
    return tended


async def with_an_instance(built: Any) -> str:
    """Define a managed resource with one instance that a person holds; return its name."""
    service = built.node.service
    await awaited(service.resources.change("spark", lambda stored, _: stored.__class__("spark", commanded=None)))
    service.resources.declare("spark", Resource(managed=SPARK))
    now_us = to_us(built.node.clock.wall())
    asked = Request(Holder(HolderKind.PERSON, 1, 0), 1, (Line("spark"),), 1, now_us, until_us=now_us + 60_000_000)
    await awaited(service.commits.committed(AskHolds([asked], now_us)))
    (one,) = (await tend(built)).begun
    await tend(built, Report(one.name, one.job, Done(b'{"id": "j-1"}')))
    await awaited(service.commits.committed(AskHolds([asked], now_us)))
    return one.name


async def most(api: Any) -> int | None:
    """Return the most instances that there may be."""
    shown = await api.call(ShowResource("spark"))
    return None if shown.managed is None else int(shown.managed.max)


def test_instances_are_shown_with_state_and_meta() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            name = await with_an_instance(built)
            shown = await built.api.call(ShowResource("spark"))
            (one,) = shown.instances
            assert (one.name, one.state, one.held, one.fields, one.meta) == (
                name,
                "busy",
                1,
                {"size": 4},
                {"id": "j-1"},
            )
            assert one.key.startswith("mainspring-")
            assert shown.managed is not None
            assert (shown.managed.max, shown.managed.idle, shown.slots, shown.held) == (3, 480.0, 1, 1)
            (listed,) = (await built.api.call(ListResources())).items
            assert [(item.name, item.state, item.labels) for item in listed.items] == [(name, "busy", ["size=4"])]
            viewer = Caller("viewer", (Grant(Role.VIEWER, "default"),))
            seen = await built.api.call(ShowResource("spark"), caller=viewer)
            assert seen.instances[0].meta is UNSET, "it is a payload"

    run(test())


def test_a_step_for_which_there_is_no_worker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            await with_an_instance(built)
            await built.api.call(SetResource("spark", min=2))
            (begun,) = (await tend(built)).begun
            monkeypatch.setattr(built.node.service.registered, "_settled", 0.0)
            shown = await built.api.call(ShowResource("spark"))
            (one,) = [one for one in shown.instances if one.name == begun.name]
            assert (one.state, one.step) == ("starting", "create")
            assert one.job == built.node.service.handles.of(begun.job).decode()
            assert "no worker runs spark.create" in one.why

    run(test())


def test_operators_change_the_numbers_of_instances_and_drain_one() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            name = await with_an_instance(built)
            assert (await built.api.call(SetResource("spark", max=7, min=2))).source == "command"
            shown = await built.api.call(ShowResource("spark"))
            assert shown.managed is not None
            assert (shown.managed.max, shown.managed.min) == (7, 2)
            await built.api.call(SetResource("spark", max=1))
            shown = await built.api.call(ShowResource("spark"))
            assert shown.managed is not None
            assert (shown.managed.max, shown.managed.min) == (1, 1), "not more than the most"
            assert (await built.api.call(SetResource("spark", declared=True))).source == "workers"
            assert await most(built.api) == 3
            assert await refused(built.api, SetResource("spark", total=5)) is Code.INVALID
            assert await refused(built.api, SetResource("spark", max=2, min=3)) is Code.INVALID
            assert await refused(built.api, SetResource("spark", max=101)) is Code.INVALID
            await built.api.call(SetResource("licence", total=1))
            assert await refused(built.api, SetResource("licence", max=2)) is Code.INVALID
            assert await refused(built.api, DrainResource("spark", item="99")) is Code.INVALID
            drained = await built.api.call(DrainResource("spark", item=name))
            assert (drained.slots, [item.state for item in drained.items]) == (0, ["draining"])
            assert (await built.api.call(DrainResource("spark", item=name, undo=True))).slots == 1
            await built.api.call(DrainResource("spark"))
            assert await most(built.api) == 0
            await built.api.call(DrainResource("spark", undo=True))
            assert await most(built.api) == 3

    run(test())

"""Calls about nodes, without a face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from tests.unit.nodes.rows import row

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import nodes
from mainspring.api.handlers.nodes import NodeCalls, SingleNodeCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.request import ApiError, Code
from mainspring.errors import StoreUnavailableError
from mainspring.nodes.model import Recovery

from .a_node import run

if TYPE_CHECKING:
    from mainspring.nodes.lease_manager import LeaseManager
    from mainspring.nodes.model import MembershipPort, NodeRow


class Members:
    """Three nodes, two of one name; the last one is dead."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.by_term = {term: row(term, name=name) for term, name in ((1, "a"), (2, "b"), (3, "b"))}
        self.recovered: list[int] = []
        self.api = Api(
            NodeCalls(cast("LeaseManager", self), cast("MembershipPort", self), self.recovered.extend).handlers
        )

    def dead(self) -> list[NodeRow]:
        return [self.by_term[3]] if 3 in self.by_term else []

    def left(self) -> dict[int, float]:
        return {1: 14.26, 3: 0.0}

    async def rows(self) -> list[NodeRow]:
        if self.error is not None:
            raise self.error
        return list(self.by_term.values())

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        self.by_term[term] = replace(self.by_term[term], draining=draining)
        return True

    async def end(self, term: int) -> bool:
        return self.by_term.pop(term, None) is not None

    async def code(self, request: Any) -> Code:
        with pytest.raises(ApiError) as caught:
            await self.api.call(request)
        return caught.value.problem.code


def test_nodes_are_listed_drained_and_removed() -> None:
    async def test() -> None:
        members = Members()
        call = members.api.call
        listed = (await call(nodes.ListNodes())).items
        assert [(node.name, node.state) for node in listed] == [("a", "live"), ("b", "live"), ("b", "dead")]
        assert [node.lease_left for node in listed] == [14.3, None, 0.0]
        assert await call(nodes.ShowNode("1")) == await call(nodes.ShowNode("a")) == listed[0]
        assert (await call(nodes.DrainNode("a"))).state == "draining"
        assert (await call(nodes.ShowNode("a"))).state == "draining"
        assert (await call(nodes.UndrainNode("a"))).state == "live"
        assert (await call(nodes.RemoveNode("3"))).state == "removed"
        assert (await call(nodes.RemoveNode("a", force=True))).state == "removed"
        assert members.recovered == [3, 1]

    run(test())


def test_problems_have_codes() -> None:
    async def test() -> None:
        members = Members()
        assert await members.code(nodes.ShowNode("none")) is Code.NODE_NOT_FOUND
        assert await members.code(nodes.DrainNode("b")) is Code.AMBIGUOUS_NODE
        assert await members.code(nodes.RemoveNode("a")) is Code.NODE_LIVES
        assert members.recovered == []
        members.error = StoreUnavailableError("away")
        assert await members.code(nodes.ListNodes()) is Code.UNAVAILABLE

    run(test())


def test_a_defect_of_the_store_ends_the_call() -> None:
    async def test() -> None:
        members = Members()
        members.error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            await members.api.call(nodes.ListNodes())

    run(test())


def test_the_only_node_of_a_store_is_neither_drained_nor_removed() -> None:
    async def test() -> None:
        members = Members()
        members.api = Api(SingleNodeCalls(lambda: members.by_term[1]).handlers)
        assert [node.name for node in (await members.api.call(nodes.ListNodes())).items] == ["a"]
        assert (await members.api.call(nodes.ShowNode("1"))).state == "live"
        assert await members.code(nodes.ShowNode("b")) is Code.NODE_NOT_FOUND
        assert await members.code(nodes.DrainNode("a")) is Code.ONLY_NODE
        assert await members.code(nodes.RemoveNode("a", force=True)) is Code.ONLY_NODE

    run(test())


def test_the_functions_of_a_node_are_those_of_the_namespace_and_the_caller() -> None:
    async def test() -> None:
        members = Members()
        members.by_term = {1: replace(row(1, name="a"), functions=(b"pay", b"mail", b"shop\x1fcart"))}
        single = Api(SingleNodeCalls(lambda: members.by_term[1]).handlers)
        pay = Caller("pay", (Grant(Role.VIEWER, functions=("pay*",)),))
        for api in (members.api, single):
            (node,) = (await api.call(nodes.ListNodes())).items
            assert node.functions == ["pay", "mail"]
            assert (await api.call(nodes.ShowNode("a"), caller=pay)).functions == ["pay"]

    run(test())


def test_who_sees_everything_sees_which_jobs_moved() -> None:
    async def test() -> None:
        members = Members()
        members.by_term = {1: replace(row(1, name="a"), recoveries=(Recovery((3,), ("b",), 12, 1_000_000),))}
        moved = nodes.RecoveryInfo([3], ["b"], 12, "1970-01-01T00:00:01.000000Z")
        assert (await members.api.call(nodes.ShowNode("a"))).recoveries == [moved]
        one_namespace = Caller("c", (Grant(Role.ADMIN),))
        assert (await members.api.call(nodes.ShowNode("a"), caller=one_namespace)).recoveries == []

    run(test())


@pytest.mark.parametrize("grant", [Grant(Role.ADMIN), Grant(Role.ADMIN, "*", ("pay*",)), Grant(Role.OPERATOR, "*")])
def test_nodes_are_changed_by_administrators_of_everything_alone(grant: Grant) -> None:
    async def test() -> None:
        members = Members()
        for request in (nodes.DrainNode("a"), nodes.RemoveNode("3")):
            with pytest.raises(ApiError) as caught:
                await members.api.call(request, caller=Caller("c", (grant,)))
            assert caught.value.problem.code is Code.FORBIDDEN
        assert members.recovered == []
        everything = Caller("c", (Grant(Role.ADMIN, "*"),))
        assert (await members.api.call(nodes.DrainNode("a"), caller=everything)).state == "draining"

    run(test())

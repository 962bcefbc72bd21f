"""Calls about tokens, rights, the audit and marks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Caller, Grant, Role
from mainspring.access.service import AccessService
from mainspring.api import access
from mainspring.api.access import GrantSpec
from mainspring.api.handlers.access import AccessCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.request import ApiError, Code, Page
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.features import Feature
from mainspring.ids import NodeId
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.api.request import Request

ADMIN = Caller("root", (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),), token="r", address="10.0.0.1", request="q")
SHOP_ADMIN = Caller("ann", (Grant(Role.ADMIN, "default"),), token="a")
PAY_ADMIN = Caller("pia", (Grant(Role.ADMIN, "default", ("pay*",)),), token="p")
VIEWER = Caller("vic", (Grant(Role.VIEWER, "default"),), token="v")
OPERATOR = Caller("opa", (Grant(Role.OPERATOR, "default"),), token="o")


class Node:
    def __init__(self, engine: MemoryEngine, lacks: frozenset[Feature]) -> None:
        loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        commits = CommitQueue(engine, loop.call_soon, loop.call_later)
        self.access = AccessService(commits, Reads(engine, loop.call_soon), self.clock, shared=False)
        self.api = Api(
            AccessCalls(self.access, self.clock.wall, lambda: ["default", "other"], lacks=lacks).handlers, lacks=lacks
        )

    async def call(self, request: Request[Any], caller: Caller = ADMIN) -> Any:
        return await self.api.call(request, caller=caller)

    async def code(self, request: Request[Any], caller: Caller = ADMIN) -> Code:
        with pytest.raises(ApiError) as caught:
            await self.call(request, caller)
        return caught.value.problem.code

    async def create(self, name: str = "ci", *grants: GrantSpec, caller: Caller = ADMIN) -> access.CreatedToken:
        created: access.CreatedToken = await self.call(
            access.CreateToken(name, list(grants) or [GrantSpec("viewer")]), caller
        )
        return created

    async def acts(self) -> list[access.ActInfo]:
        listed: Page[access.ActInfo] = await self.call(access.ListActs(everywhere=True))
        return listed.items


@asynccontextmanager
async def opened(*lacks: Feature) -> AsyncIterator[Node]:
    engine = MemoryEngine()
    node = Node(engine, frozenset(lacks))
    await engine.open(NodeId("n"), lambda function: function())
    yield node


def test_a_created_token_is_shown_once_and_has_its_rights() -> None:
    async def test() -> None:
        async with opened() as node:
            ends = datetime.fromtimestamp(node.clock.wall() + 60, UTC)
            grants = [GrantSpec("operator", "shop", ["pay*"]), GrantSpec("viewer", payloads=True)]
            created: access.CreatedToken = await node.call(access.CreateToken("ci", grants, expires_at=ends))
            caller = await node.access.caller_of_token(created.token)
            assert caller is not None
            assert caller.grants == (
                Grant(Role.OPERATOR, "shop", ("pay*",)),
                Grant(Role.VIEWER, "default", payloads=True),
            )
            listed: Page[access.TokenInfo] = await node.call(access.ListTokens())
            (shown,) = listed.items
            assert (shown.id, shown.name, shown.grants, shown.created_by) == (created.id, "ci", grants, "root")
            assert not shown.expired
            assert created.token not in repr(listed)
            assert created.token not in repr(await node.acts())
            node.clock.advance(60)
            assert (await node.call(access.ShowToken(created.id))).expired

    asyncio.run(test())


def test_nobody_grants_more_than_he_has() -> None:
    async def test() -> None:
        async with opened() as node:
            for caller, grant in (
                (SHOP_ADMIN, GrantSpec("viewer", "other")),
                (SHOP_ADMIN, GrantSpec("viewer", "*")),
                (SHOP_ADMIN, GrantSpec("viewer", payloads=True)),
                (PAY_ADMIN, GrantSpec("viewer")),
                (PAY_ADMIN, GrantSpec("viewer", functions=["pay*", "mail"])),
                (OPERATOR, GrantSpec("viewer")),
                (VIEWER, GrantSpec("viewer")),
            ):
                request = access.CreateToken("more", [GrantSpec("viewer", functions=["pay"]), grant])
                assert await node.code(request, caller) is Code.FORBIDDEN
            await node.create("own", GrantSpec("admin", functions=["payments", "pay.*"]), caller=PAY_ADMIN)
            assert [act.what for act in await node.acts()] == ["tokens.create"]

    asyncio.run(test())


@pytest.mark.parametrize(
    "grant", [GrantSpec("viewer", "No!"), GrantSpec("viewer", functions=["a*b"]), GrantSpec("viewer", functions=[""])]
)
def test_invalid_grants_are_refused(grant: GrantSpec) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(access.CreateToken("x", [grant])) is Code.INVALID
            past = datetime.fromtimestamp(node.clock.wall(), UTC)
            assert await node.code(access.CreateToken("x", [GrantSpec("viewer")], expires_at=past)) is Code.INVALID

    asyncio.run(test())


def test_tokens_of_others_are_not_found() -> None:
    async def test() -> None:
        async with opened() as node:
            mine = await node.create("mine")
            other = await node.create("other", GrantSpec("viewer", "other"))
            both = await node.create("both", GrantSpec("viewer", "other"), GrantSpec("viewer"))
            assert [one.id for one in (await node.call(access.ListTokens(), SHOP_ADMIN)).items] == [mine.id]
            for token in (other, both):
                for request in (
                    access.ShowToken(token.id),
                    access.RevokeToken(token.id),
                    access.RotateToken(token.name),
                ):
                    assert await node.code(request, SHOP_ADMIN) is Code.TOKEN_NOT_FOUND
                assert await node.access.caller_of_token(token.token) is not None
            assert await node.code(access.RevokeToken(mine.id), OPERATOR) is Code.FORBIDDEN

    asyncio.run(test())


def test_a_token_that_permits_more_than_the_caller_is_revoked_but_not_rotated() -> None:
    async def test() -> None:
        async with opened() as node:
            token = await node.create("secret", GrantSpec("viewer", payloads=True))
            assert await node.code(access.RotateToken(token.id), SHOP_ADMIN) is Code.FORBIDDEN
            await node.call(access.RevokeToken(token.id), SHOP_ADMIN)
            assert await node.access.caller_of_token(token.token) is None

    asyncio.run(test())


def test_a_token_is_named_by_its_id_or_its_unique_name() -> None:
    async def test() -> None:
        async with opened() as node:
            one, _, third = await node.create("a"), await node.create("a"), await node.create("b")
            assert await node.code(access.ShowToken("a")) is Code.CONFLICT
            assert (await node.call(access.ShowToken("b"))).id == third.id
            assert (await node.call(access.RevokeToken(one.id, reason="left"))).id == one.id
            assert await node.code(access.RevokeToken(one.id)) is Code.TOKEN_NOT_FOUND
            rotated = await node.call(access.RotateToken("b"))
            assert await node.access.caller_of_token(third.token) is None
            assert await node.access.caller_of_token(rotated.token) is not None

    asyncio.run(test())


def test_each_change_leaves_one_act() -> None:
    async def test() -> None:
        async with opened() as node:
            token = await node.create("ci", GrantSpec("operator", "shop"))
            await node.call(access.RotateToken(token.id))
            await node.call(access.RevokeToken(token.id, reason="left"))
            await node.call(access.AddMark("v2"))
            mark, revoked, rotated, created = await node.acts()
            assert [one.what for one in (created, rotated, revoked, mark)] == [
                "tokens.create",
                "tokens.rotate",
                "tokens.revoke",
                "marks.add",
            ]
            for one in (created, rotated, revoked):
                assert (one.who, one.token, one.address, one.request) == ("root", "r", "10.0.0.1", "q")
                assert (one.object, one.namespace) == (token.id, "shop")
            assert created.after["name"] == revoked.before["name"] == "ci"
            assert created.after["grants"][0]["role"] == "operator"
            assert revoked.reason == "left"

    asyncio.run(test())


def test_the_audit_is_for_administrators_of_the_whole_namespace() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.create("here")
            await node.create("there", GrantSpec("viewer", "other"))
            await node.create("all", GrantSpec("viewer", "*"))
            assert [one.namespace for one in (await node.call(access.ListActs(), SHOP_ADMIN)).items] == ["default"]
            assert len((await node.call(access.ListActs(everywhere=True), ADMIN)).items) == 3
            assert await node.code(access.ListActs(everywhere=True), SHOP_ADMIN) is Code.FORBIDDEN
            for caller in (PAY_ADMIN, OPERATOR, VIEWER):
                assert await node.code(access.ListActs(), caller) is Code.FORBIDDEN

    asyncio.run(test())


def test_acts_continue_at_a_place() -> None:
    async def test() -> None:
        async with opened() as node:
            for number in range(5):
                await node.call(access.AddMark(str(number)), OPERATOR)
            await node.create()
            (one,) = (await node.call(access.ListActs(what="marks.add", object="1"))).items
            assert (one.object, one.who) == ("1", "opa")
            first = await node.call(access.ListActs(what="marks.add", who="opa", limit=2))
            second = await node.call(access.ListActs(what="marks.add", who="opa", limit=2, cursor=first.next))
            assert [one.object for one in (*first.items, *second.items)] == ["4", "3", "2", "1"]
            assert first.searched_to == first.items[-1].at
            assert [one.label for one in (await node.call(access.ListMarks(), VIEWER)).items] == [
                "4",
                "3",
                "2",
                "1",
                "0",
            ]
            assert await node.code(access.AddMark("no"), VIEWER) is Code.FORBIDDEN

    asyncio.run(test())


def test_everyone_may_ask_for_the_own_rights() -> None:
    async def test() -> None:
        async with opened() as node:
            own = await node.call(access.WhoAmI(), PAY_ADMIN)
            assert (own.name, own.token) == ("pia", "p")
            assert own.grants == [GrantSpec("admin", "default", ["pay*"])]
            assert (await node.call(access.WhoAmI(), LOCAL)).token is None
            assert (await node.call(access.ListNamespaces(), VIEWER)).items == ["default"]
            assert (await node.call(access.ListNamespaces(), ADMIN)).items == ["default", "other"]
            assert [one.role for one in (await node.call(access.ListRoles(), VIEWER)).items] == [
                "viewer",
                "operator",
                "developer",
                "admin",
            ]

    asyncio.run(test())


def test_a_store_without_credentials_says_so() -> None:
    async def test() -> None:
        async with opened(Feature.ACCESS) as node:
            for request in (
                access.CreateToken("x", [GrantSpec("viewer")]),
                access.ListTokens(),
                access.ListActs(),
                access.ListMarks(),
            ):
                assert await node.code(request) is Code.UNSUPPORTED
            identity = await node.call(access.WhoAmI(), VIEWER)
            assert (identity.name, identity.lacks) == ("vic", ["access"])

    asyncio.run(test())

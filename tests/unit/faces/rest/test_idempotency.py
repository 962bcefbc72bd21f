"""Requests with a key of their client are done once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.api.a_node import Node, run

from mainspring.access.caller import LOCAL, Caller, Grant, Permission, Role
from mainspring.access.idempotency import KeptReply, ReplyService, RequestKey, Reservation
from mainspring.api.request import ApiError, Code, Request
from mainspring.errors import StoreUnavailableError
from mainspring.faces.rest.registry import Context, Route
from mainspring.faces.rest.replies import LOST_AFTER, REPLAYED, Reply, answer_once
from mainspring.faces.web.exchange import N

from .a_client import Answer, Client, serving

if TYPE_CHECKING:
    from mainspring.access.idempotency import IdempotencyKey
    from mainspring.faces.rest.replies import Encoded


class Make(Request[dict[str, int]]):
    """An invented request."""

    permission = Permission.OPERATE
    call = "thing.make"
    what: str = ""


class Maker:
    """Counts what it makes."""

    def __init__(self) -> None:
        self.number = 0
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()

    async def make(self, context: Context) -> Any:
        if context.inputs.what == "refused":
            raise ApiError(Code.REFUSED, "full")
        if context.inputs.what == "slow":
            self.entered.set()
            await self.leave.wait()
        self.number += 1
        if context.inputs.what == "broken":
            raise RuntimeError
        return Reply({"number": self.number}, 201, {"Location": f"/{self.number}"})


def with_maker(test: Any) -> None:
    async def prepared() -> None:
        maker = Maker()
        routes = tuple(
            Route(
                method="POST",
                path=f"{N}/{name}",
                request=Make,
                answer=dict[str, int],
                summary="Make one",
                handler=maker.make,
                name=name,
            )
            for name in ("things", "others")
        )
        async with serving(routes) as (client, node):
            await test(client, maker, node)

    run(prepared())


async def post(
    client: Client, key: str | None = "k", what: str = "", name: str = "things", token: str = "admin"
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    path = f"/api/v1/namespaces/default/{name}"
    return await client.send("POST", path, {"what": what}, token=token, headers=headers)


def test_a_repeated_request_gets_the_first_answer() -> None:
    async def test(client: Client, maker: Maker, _: Node) -> None:
        first, second = await post(client), await post(client)
        assert (first.status, first.json, first.headers["location"]) == (201, {"number": 1}, "/1")
        assert (second.status, second.json, second.headers["location"]) == (201, {"number": 1}, "/1")
        assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
        assert maker.number == 1
        assert (await post(client, '"k"')).json == {"number": 1}, "the draft writes keys in quotes"
        changes: list[dict[str, Any]] = [{"key": "other"}, {"name": "others"}, {"token": "operator"}, {"key": None}]
        for number, changed in enumerate(changes, start=2):
            assert (await post(client, **changed)).json == {"number": number}, changed

    with_maker(test)


def test_keys_of_sessions_with_the_same_name_are_apart() -> None:
    async def test(client: Client, maker: Maker, _: Node) -> None:
        for session in ("a", "b", ""):
            client.access.callers[f"console-{session}"] = Caller("console", (Grant(Role.ADMIN, "*"),), session=session)
        for number, session in enumerate(("a", "b", ""), start=1):
            first, second = [await post(client, token=f"console-{session}") for _ in range(2)]
            assert first.json == second.json == {"number": number}
        assert maker.number == 3

    with_maker(test)


def test_a_key_is_for_one_request() -> None:
    async def test(client: Client, maker: Maker, _: Node) -> None:
        await post(client)
        reused = await post(client, what="other")
        assert (reused.status, reused.problem, maker.number) == (422, "key-reused", 1)

    with_maker(test)


def test_a_request_under_way_is_not_done_a_second_time() -> None:
    async def test(client: Client, maker: Maker, node: Node) -> None:
        first = asyncio.ensure_future(post(client, what="slow"))
        await maker.entered.wait()
        second = await post(client, what="slow")
        assert (second.status, second.problem) == (409, "in-progress")
        node.clock.advance(LOST_AFTER + 1)
        lost = await post(client, what="slow")
        assert (lost.status, lost.problem, "retry-after" in lost.headers) == (503, "outcome-unknown", True)
        maker.leave.set()
        assert (await first).json == (await post(client, what="slow")).json == {"number": 1}

    with_maker(test)


def test_a_refused_request_may_be_sent_again() -> None:
    async def test(client: Client, maker: Maker, node: Node) -> None:
        for _ in range(2):
            assert (await post(client, what="refused")).status == 429
        assert (await post(client, token="viewer")).status == 403
        assert (await post(client, "k", what=7)).status == 422  # type: ignore[arg-type]
        assert (await post(client)).status == 201
        node.store.error = StoreUnavailableError("away")
        assert (await post(client, "l")).status == 503
        node.store.error = None
        assert (await post(client, "l")).json == {"number": 2}
        assert maker.number == 2

    with_maker(test)


def test_a_defect_is_not_repeated() -> None:
    async def test(client: Client, maker: Maker, _: Node) -> None:
        assert (await post(client, what="broken")).status == 500
        assert (await post(client, what="broken")).status == 409
        assert maker.number == 1

    with_maker(test)


class Late(ReplyService):
    """A store in which an answer appears after some look-ups."""

    left = 1

    async def find_reply(self, key: RequestKey) -> Reservation | None:
        self.left -= 1
        return None if self.left >= 0 else Reservation(key.request, key.at_us, KeptReply(200, {}, b"first"))


def test_a_refusal_by_the_act_of_a_concurrent_request_is_its_answer() -> None:
    async def refused(once: IdempotencyKey | None = None) -> Encoded:
        assert once is not None
        raise ApiError(Code.CONFLICT, "it waits already")

    async def test(_: Client, __: Maker, node: Node) -> None:
        replies = Late(node.commits, node.clock)
        request = partial(answer_once, replies, b"k", LOCAL, "/x", b"", refused, lambda _: (200, {}, b""))
        assert await request() == (200, {REPLAYED: b"true"}, b"first")
        replies.left = 2
        with pytest.raises(ApiError):
            await request()

    with_maker(test)


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a b", '"'])
def test_a_key_is_visible_text(key: str) -> None:
    async def test(client: Client, maker: Maker, _: Node) -> None:
        refused = await post(client, key)
        assert (refused.status, refused.problem, maker.number) == (400, "malformed", 0)

    with_maker(test)


def test_answers_are_kept_for_a_day() -> None:
    async def test(client: Client, _: Maker, node: Node) -> None:
        await post(client)
        node.clock.advance(86_000)
        assert (await post(client)).json == {"number": 1}
        node.clock.advance(500)
        assert (await post(client)).json == {"number": 2}

    with_maker(test)

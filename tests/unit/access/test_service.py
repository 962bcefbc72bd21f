"""A node's credentials, on a store in memory, with a clock that the test controls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.audit import ListActs
from mainspring.access.caller import EVERY_NAMESPACE, Act, Caller, Grant, Kind, Role, secret_of
from mainspring.access.service import (
    LINK_LIFE,
    MOST_UNKNOWN,
    SESSION_LIFE,
    STALE_AFTER,
    SWEEP_INTERVAL,
    TOUCH_INTERVAL,
    UNKNOWN_FOR,
    AccessService,
)
from mainspring.access.store import CountRevocations, Credential, FindCredential
from mainspring.callbacks import awaited
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.errors import StoreUnavailableError
from mainspring.ids import NodeId
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.storage.engine import Query

GRANTS = (Grant(Role.OPERATOR, "shop", ("pay*",)),)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.error = 0.0
        """By how much the wall clock is ahead."""

    def wall(self) -> float:
        return self.now + self.error

    def monotonic(self) -> float:
        return self.now


class Engine(MemoryEngine):
    """Counts the queries and the operations, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[Query[Any]] = []
        self.groups = 0
        self.is_away = False
        self.delayed: list[Callable[[], None]] | None = None
        """The answers that the test delivers itself, if it does."""

    def read(self, query: Any, budget: Any, answered: Any) -> None:
        self.queries.append(query)
        if self.is_away:
            answered(StoreUnavailableError("away"))
        elif (delayed := self.delayed) is not None:
            super().read(query, budget, lambda outcome: delayed.append(lambda: answered(outcome)))
        else:
            super().read(query, budget, answered)

    def commit(self, group: Any, committed: Any, answer: Any) -> None:
        self.groups += 1
        super().commit(group, committed, answer)


class Fleet:
    """Two nodes on one store."""

    def __init__(self, *, shared: bool = True) -> None:
        self.clock = Clock()
        self.engine = Engine()
        self.a = self.node(shared=shared)
        self.b = self.node(shared=shared)

    def node(self, *, shared: bool, **options: Any) -> AccessService:
        def soon(function: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_soon(function)

        commits = CommitQueue(self.engine, soon, lambda _, function: soon(function))
        return AccessService(commits, Reads(self.engine, soon), self.clock, shared=shared, **options)

    @property
    def credential_reads(self) -> int:
        """The number of reads that looked for a credential."""
        return sum(isinstance(query, FindCredential) for query in self.engine.queries)

    async def token(self, name: str = "ci", *, life: float = 0.0) -> tuple[str, str]:
        """Return a new token's secret and its id."""
        expires_us = round((self.clock.now + life) * 1_000_000) if life else 0
        template = Credential(b"", Kind.TOKEN, name, GRANTS, token=self.a.new_id(), expires_us=expires_us)
        secret, stored = await awaited(self.a.new_token(template))
        return secret, stored.token

    async def revoke(self, token: str, act: Act | None = None) -> bool:
        return await awaited(self.a.revoke(token, act))

    async def pass_time(self, seconds: float) -> None:
        """Let the time pass, with a tick of both nodes each second."""
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            self.a.tick(self.clock.now)
            self.b.tick(self.clock.now)
            for _ in range(10):
                await asyncio.sleep(0)


def run(test: Callable[[Fleet], Coroutine[Any, Any, None]], *, shared: bool = True) -> None:
    async def main() -> None:
        fleet = Fleet(shared=shared)
        await fleet.engine.open(NodeId("n"), lambda function: function())
        await test(fleet)

    asyncio.run(main())


def test_a_token_has_a_caller_on_each_node() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_token(secret, "10.0.0.9") == Caller("ci", GRANTS, token, "10.0.0.9")
            assert await node.caller_of_session(secret) is None
            assert await node.caller_of_token(secret_of(Kind.TOKEN, bytes(32))) is None

    run(test)


def test_a_forged_token_costs_no_read() -> None:
    async def test(fleet: Fleet) -> None:
        secret, _ = await fleet.token()
        assert await fleet.a.caller_of_token(secret[:-1] + ("A" if secret[-1] != "A" else "B")) is None
        assert fleet.engine.queries == []

    run(test)


def test_requests_with_a_token_cost_neither_reads_nor_writes() -> None:
    async def test(fleet: Fleet) -> None:
        secret, _ = await fleet.token()
        await fleet.a.caller_of_token(secret)
        groups = fleet.engine.groups
        for _ in range(50):
            await fleet.pass_time(1)
            await fleet.a.caller_of_token(secret)
        assert {type(query) for query in fleet.engine.queries} == {FindCredential, CountRevocations}
        assert fleet.credential_reads <= 2
        assert fleet.engine.groups == groups

    run(test)


def unknown(number: int) -> str:
    """Return one of many secrets that no store has."""
    return secret_of(Kind.TOKEN, number.to_bytes(32, "big"))


@pytest.mark.parametrize("kind", ["unknown", "revoked", "expired"])
def test_a_token_that_is_not_valid_costs_one_read_a_second(kind: str) -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token(life=5.0)
        if kind == "unknown":
            secret = unknown(1)
        elif kind == "revoked":
            await fleet.revoke(token)
        else:
            await fleet.pass_time(5)
        for reads in (1, 2):
            for _ in range(50):
                assert await fleet.a.caller_of_token(secret) is None
                fleet.clock.now += UNKNOWN_FOR / 100
            assert fleet.credential_reads == reads
            fleet.clock.now += UNKNOWN_FOR / 2

    run(test)


def test_a_bounded_number_of_unknown_tokens_is_kept() -> None:
    async def test(fleet: Fleet) -> None:
        for number in range(3 * MOST_UNKNOWN):
            assert await fleet.a.caller_of_token(unknown(number)) is None
        assert fleet.credential_reads == 3 * MOST_UNKNOWN
        for number in range(2 * MOST_UNKNOWN, 3 * MOST_UNKNOWN):
            assert await fleet.a.caller_of_token(unknown(number)) is None
        assert fleet.credential_reads == 3 * MOST_UNKNOWN, "the newest are kept"
        assert await fleet.a.caller_of_token(unknown(0)) is None
        assert await fleet.a.caller_of_token(unknown(2 * MOST_UNKNOWN)) is None
        assert fleet.credential_reads == 3 * MOST_UNKNOWN + 2, "the oldest is not, whenever a new one comes"

    run(test)


@pytest.mark.parametrize("way", ["token", "rotate", "sign-in", "link"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_new_secret_is_valid_at_once_at_its_node_and_soon_at_others(way: str, *, is_late: bool) -> None:
    """Also if somebody presents the secret before it exists, and if that read ends after the secret was stored."""

    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        link = await fleet.a.new_link()
        node = fleet.node(shared=True, random=bytes)  # zeros
        new = secret_of(Kind.SESSION if way in {"sign-in", "link"} else Kind.TOKEN, bytes(32))

        async def caller(at: AccessService) -> Caller | None:
            return await (at.caller_of_token(new) if new.startswith(Kind.TOKEN) else at.caller_of_session(new))

        async def make() -> object:
            if way == "token":
                template = Credential(b"", Kind.TOKEN, "ci", GRANTS, token=node.new_id())
                return await awaited(node.new_token(template))
            if way == "rotate":
                return await awaited(node.rotate(token))
            return await (node.sign_in(secret) if way == "sign-in" else node.sign_in_by_link(link))

        assert await node.caller_of_token(secret) is not None
        if is_late:
            fleet.engine.delayed = []
            asked = asyncio.ensure_future(caller(node))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (answer,) = fleet.engine.delayed
            fleet.engine.delayed = None
            assert await make() is not None
            answer()
            assert await asked is None
        else:
            assert await caller(node) is None
            assert await caller(fleet.b) is None
            assert await make() is not None
        assert await caller(node) is not None
        fleet.clock.now += UNKNOWN_FOR
        assert await caller(fleet.b) is not None

    run(test)


def test_a_revocation_is_seen_on_this_node_at_once_and_on_others_within_three_seconds() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_token(secret) is not None
        await fleet.pass_time(5)
        assert await fleet.revoke(token)
        assert not await fleet.revoke(token)
        assert await fleet.a.caller_of_token(secret) is None
        await fleet.pass_time(2)
        assert await fleet.b.caller_of_token(secret) is None

    run(test)


def test_a_node_that_cannot_ask_for_revocations_does_not_trust_its_memory() -> None:
    async def test(fleet: Fleet) -> None:
        secret, _ = await fleet.token()
        assert await fleet.b.caller_of_token(secret) is not None
        fleet.engine.is_away = True
        await fleet.pass_time(STALE_AFTER)
        with pytest.raises(StoreUnavailableError):
            await fleet.b.caller_of_token(secret)

    run(test)


def test_a_read_from_before_a_revocation_does_not_bring_the_token_back() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        fleet.engine.delayed = []
        asked = asyncio.ensure_future(fleet.a.caller_of_token(secret))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (answer,) = fleet.engine.delayed
        fleet.engine.delayed = None
        await fleet.revoke(token)
        answer()
        assert await asked is not None, "it was valid when the request came"
        assert await fleet.a.caller_of_token(secret) is None

    run(test, shared=False)


def test_an_expired_token_is_not_valid() -> None:
    async def test(fleet: Fleet) -> None:
        secret, _ = await fleet.token(life=30.0)
        assert await fleet.a.caller_of_token(secret) is not None
        await fleet.pass_time(29)
        assert await fleet.a.caller_of_token(secret) is not None
        await fleet.pass_time(1)
        assert await fleet.a.caller_of_token(secret) is None
        assert await fleet.a.sign_in(secret) is None

    run(test)


def test_a_session_is_valid_on_all_nodes_until_its_end() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        session = await fleet.a.sign_in(secret)
        assert session is not None
        assert await fleet.b.caller_of_session(session) == Caller("ci", GRANTS, token)
        assert await fleet.b.caller_of_token(session) is None
        assert SESSION_LIFE == 12 * 3600
        fleet.clock.now += SESSION_LIFE - 1
        assert await fleet.b.caller_of_session(session) is not None
        fleet.clock.now += 1
        assert await fleet.b.caller_of_session(session) is None

    run(test)


@pytest.mark.parametrize("swept", [False, True])
def test_after_a_wrong_clock_tokens_are_valid_again_and_sessions_unless_they_were_deleted(*, swept: bool) -> None:
    """While the clock is ahead, what will have expired then is refused."""

    async def test(fleet: Fleet) -> None:
        lasting, _ = await fleet.token("lasting")
        secret, token = await fleet.token(life=86_400.0)
        session, link = await fleet.a.sign_in(secret), await fleet.a.new_link("ann")
        assert session is not None
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_session(session) is not None
        fleet.clock.error = 10 * 366 * 86_400.0
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_token(secret) is None
            assert await node.caller_of_session(session) is None
            assert await node.caller_of_token(lasting) is not None
        assert await fleet.a.sign_in(secret) is None
        if swept:
            await fleet.pass_time(SWEEP_INTERVAL)
        fleet.clock.error = 0.0
        await fleet.pass_time(UNKNOWN_FOR)
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_token(secret) == Caller("ci", GRANTS, token)
            assert (await node.caller_of_session(session) is None) == swept
            assert await node.caller_of_token(lasting) is not None
        assert await fleet.b.sign_in(secret) is not None
        assert (await fleet.b.sign_in_by_link(link) is None) == swept

    run(test)


@pytest.mark.parametrize("end", ["logout", "revoke", "rotate", "expiry"])
def test_a_session_ends_with_logout_and_with_its_token(end: str) -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token(life=3.0)
        session = await fleet.a.sign_in(secret)
        assert session is not None
        assert await fleet.b.caller_of_session(session) is not None
        if end == "logout":
            assert await fleet.a.caller_of_session(session) is not None
            await fleet.a.sign_out(session)
            assert await fleet.a.caller_of_session(session) is None, "at once where it was done"
        elif end == "revoke":
            await fleet.revoke(token)
        elif end == "rotate":
            await awaited(fleet.a.rotate(token))
        await fleet.pass_time(3)
        for node in (fleet.a, fleet.b):
            assert await node.caller_of_session(session) is None

    run(test)


def test_a_rotated_token_has_a_new_secret_and_the_same_rights() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        before = await fleet.a.caller_of_token(secret)
        rotated = await awaited(fleet.a.rotate(token))
        assert rotated is not None
        following = rotated[0]
        assert await fleet.a.caller_of_token(secret) is None
        assert await fleet.a.caller_of_token(following) == before

    run(test)


def test_a_link_signs_in_once_as_an_administrator() -> None:
    async def test(fleet: Fleet) -> None:
        link = await fleet.a.new_link()
        session = await fleet.b.sign_in_by_link(link)
        assert session is not None
        caller = await fleet.a.caller_of_session(session)
        assert caller is not None
        everything = (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),)
        assert caller == Caller("console", everything, session=caller.session)
        other = await fleet.b.sign_in_by_link(await fleet.a.new_link())
        assert other is not None
        another = await fleet.a.caller_of_session(other)
        assert another is not None
        assert "" not in (caller.session, another.session)
        assert caller.session != another.session
        assert await fleet.a.sign_in_by_link(link) is None
        late = await fleet.a.new_link()
        assert LINK_LIFE == 600
        fleet.clock.now += LINK_LIFE
        assert await fleet.a.sign_in_by_link(late) is None

    run(test)


@pytest.mark.parametrize("end", ["revoke", "expiry", "away"])
def test_a_watch_calls_once_when_its_secret_has_ended(end: str) -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token(life=10.0)
        ended: list[str] = []
        fleet.b.watch(secret, lambda: ended.append("first"))
        fleet.b.watch(secret, lambda: ended.append("second"))()
        await fleet.pass_time(2)
        assert ended == []
        if end == "expiry":
            await fleet.pass_time(10)
        else:
            fleet.engine.is_away = end == "away"
            await fleet.revoke(token)
            await fleet.pass_time(2)
        if end == "away":
            assert ended == [], "nobody knows"
            fleet.engine.is_away = False
            await fleet.pass_time(2)
        assert ended == ["first"]
        await fleet.pass_time(3)
        assert ended == ["first"]

    run(test)


def test_all_watches_of_a_secret_are_called_also_if_each_call_ends_its_watch() -> None:
    """A connection that ends ends its watch, at once or later."""

    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        ended: list[int] = []
        ends: dict[int, Callable[[], None]] = {}

        def end(number: int) -> None:
            ended.append(number)
            ends[number]()

        for number in range(4):
            ends[number] = fleet.a.watch(secret, partial(end, number))
        await fleet.revoke(token)
        await fleet.pass_time(2)
        assert sorted(ended) == [0, 1, 2, 3]

    run(test)


def test_the_use_of_a_token_is_written_once_a_minute() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        await fleet.a.caller_of_token(secret)
        shown = await awaited(fleet.a.find_token(token))
        assert shown is not None
        assert shown.used_us == round(fleet.clock.now * 1_000_000)
        groups = fleet.engine.groups
        await fleet.pass_time(TOUCH_INTERVAL + 2)
        assert fleet.engine.groups == groups + 1
        other = await awaited(fleet.b.find_token(token))
        assert other == shown
        await fleet.pass_time(TOUCH_INTERVAL + 2)
        assert fleet.engine.groups == groups + 1, "it was not used since"

    run(test)


def test_work_that_outlives_its_request_looks_at_the_token_again() -> None:
    async def test(fleet: Fleet) -> None:
        secret, token = await fleet.token()
        caller = await fleet.b.caller_of_token(secret)
        assert caller is not None
        assert await awaited(fleet.b.current(caller)) == caller
        await fleet.revoke(token)
        assert await awaited(fleet.b.current(caller)) is None

    run(test)


def test_refusals_are_recorded_up_to_a_number_in_a_minute() -> None:
    async def test(fleet: Fleet) -> None:
        act = Act("jobs.cancel", "ann", refused="no role")
        for _ in range(500):
            fleet.a.refused(act)
        await fleet.pass_time(61)
        recorded = await awaited(fleet.a.list_acts(ListActs(limit=1000)))
        assert [one.act for one in recorded.items] == [act] * 60
        fleet.a.refused(act)
        await fleet.pass_time(1)
        recorded = await awaited(fleet.a.list_acts(ListActs(limit=1000)))
        assert len(recorded.items) == 61

    run(test)


def test_a_store_never_sees_a_secret() -> None:
    async def test(fleet: Fleet) -> None:
        secret, _ = await fleet.token()
        session = await fleet.a.sign_in(secret)
        link = await fleet.a.new_link()
        content = repr(fleet.engine.tables.credentials)
        assert session is not None
        for one in (secret, session, link):
            assert one not in content
            assert one.partition("_")[2] not in content

    run(test)

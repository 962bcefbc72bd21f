"""The model of an ensemble: its nodes, and the failures that tests inject."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.zookeeper.tree import (
    Check,
    Create,
    Delete,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import StoreError, StoreUnavailableError
from tests.zookeeper.memory import Fate, MemoryContent, MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.engines.zookeeper.tree import Change


def run(test: Callable[[MemoryTree, MemoryTree], Coroutine[Any, Any, None]]) -> None:
    """Run a test on two sessions of one content, whose clock stands at 5.000 s."""

    async def whole() -> None:
        content = MemoryContent(now_us=lambda: 5_000_999)
        trees = MemoryTree(content), MemoryTree(content)
        for tree in trees:
            await tree.open()
        await asyncio.wait_for(test(*trees), 20)

    asyncio.run(whole())


def test_a_commit_is_all_or_nothing() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        done = await tree.commit(
            [Create("/a", b"1"), Create("/a/b", ephemeral=True), Write("/a", b"2"), Check("/a", 1)]
        )
        assert done == Done(["/a", "/a/b", "/a", "/a"])
        assert await other.get("/a") == Node(b"2", 1, 5_000_000, 0, 1)
        assert await other.get_many(["/a/b", "/x"]) == [Node(b"", 0, 5_000_000, tree.session, 0), None]
        before = tree.content.paths()
        cases: list[tuple[list[Change], Refused]] = [
            ([Create("/c"), Create("/a")], Refused(1, Refusal.EXISTS)),
            ([Delete("/a/b"), Delete("/a"), Check("/a")], Refused(2, Refusal.NO_NODE)),
            ([Write("/a", b"3"), Delete("/a", 1)], Refused(1, Refusal.VERSION)),
            ([Delete("/a")], Refused(0, Refusal.NOT_EMPTY)),
            ([Create("/x/y")], Refused(0, Refusal.NO_NODE)),
        ]
        for changes, refused in cases:
            assert await tree.commit(changes) == refused
        assert tree.content.paths() == before
        assert tree.content.read("/a") == Node(b"2", 1, 5_000_000, 0, 1)
        with pytest.raises(StoreError, match="ephemeral"):
            await tree.commit([Create("/a/b/c")])
        with pytest.raises(ValueError, match="no path"):
            await tree.commit([Create("/a//b")])

    run(test)


def test_sequences_count_every_child_that_ever_was() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        done = await tree.commit(
            [Create("/s"), Create("/s/m-", sequence=True), Create("/s/x"), Delete("/s/x"), Create("/s/", sequence=True)]
        )
        assert isinstance(done, Done)
        assert done.paths[1] == "/s/m-0000000000"
        assert done.paths[4] == "/s/0000000002"
        assert isinstance(await tree.commit([Create("/s/y"), Check("/x")]), Refused)
        assert await other.commit([Create("/s/m-", sequence=True)]) == Done(["/s/m-0000000003"])
        names = await other.children("/s")
        assert names is not None
        assert sorted(names) == ["0000000002", "m-0000000000", "m-0000000003"]

    run(test)


def test_a_watch_is_called_once_before_the_change_can_be_read() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        called: list[str] = []
        for path in ("/a", "/b"):
            assert await other.get(path, lambda path=path: called.append(f"data {path}")) is None  # type: ignore[misc]
        await other.children("/", lambda: called.append("children"))
        assert await other.children("/a", lambda: called.append("never")) is None
        await tree.commit([Create("/a"), Check("/b")])
        await asyncio.sleep(0)
        assert called == []
        await tree.commit([Create("/a"), Write("/a", b"1")])
        assert called == ["data /a", "children"]
        await other.get("/a", lambda: called.append("deleted"))
        await other.children("/a", lambda: called.append("no parent"))
        await tree.commit([Delete("/a")])
        assert called[2:] == ["deleted", "no parent"]

    run(test)


def test_an_expired_session_deletes_its_ephemeral_nodes() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        called: list[object] = []
        tree.on_session(lambda: called.append(tree.session))
        await tree.commit([Create("/e", ephemeral=True)])
        await other.get("/e", lambda: called.append("gone"))
        await tree.get("/", lambda: called.append("own watch"))
        first = tree.session
        tree.expire()
        with pytest.raises(SessionEndedError):
            await tree.commit([Create("/x")])
        assert await other.get("/e") is None
        assert tree.session not in {0, first}
        assert called == ["gone", "own watch", 0, tree.session]
        assert isinstance(await tree.commit([Create("/x")]), Done)

    run(test)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_the_outcome_of_a_commit_is_unknown_if_its_session_ends_before_the_answer(hangs_up: bool) -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        tree.hangs_up = lambda: hangs_up
        tree.after = lambda *_: tree.expire()
        with pytest.raises(UnknownOutcomeError):
            await tree.commit([Create("/a")])
        assert await other.get("/a") is not None
        tree.after = None

    run(test)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_request_after_the_sessions_end_fails_with_it_or_gets_no_answer(hangs_up: bool) -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        tree.hangs_up = lambda: hangs_up
        tree.expire()
        with pytest.raises(UnknownOutcomeError if hangs_up else SessionEndedError):
            await tree.commit([Create("/a")])
        await other.sync()  # the next session starts
        tree.expire()
        with pytest.raises(StoreUnavailableError if hangs_up else SessionEndedError):
            await tree.get("/a")
        await other.sync()
        tree.before = lambda _: tree.expire()
        with pytest.raises(UnknownOutcomeError if hangs_up else SessionEndedError):
            await tree.commit([Create("/a")])
        assert await other.get("/a") is None

    run(test)


def test_a_request_that_is_not_sent_always_fails_with_the_sessions_end() -> None:
    async def test(tree: MemoryTree, _: MemoryTree) -> None:
        tree.hangs_up = lambda: True
        await tree.close()
        with pytest.raises(SessionEndedError):
            await tree.commit([Create("/a")])
        with pytest.raises(SessionEndedError):
            await tree.get("/a")

    run(test)


def test_a_cut_off_client_is_notified_of_its_sessions_end_only_after_healing() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        called: list[object] = []
        await tree.commit([Create("/e", ephemeral=True)])
        await tree.get("/e", lambda: called.append("watch"))
        tree.on_session(lambda: called.append(tree.session))
        first = tree.session
        tree.cut()
        with pytest.raises(StoreUnavailableError):
            await tree.get("/e")
        with pytest.raises(StoreUnavailableError) as caught:
            await tree.commit([Create("/x")])
        assert not isinstance(caught.value, UnknownOutcomeError)
        assert called == ["watch", first]
        tree.expire()
        assert await other.get("/e") is None
        assert tree.session == first
        tree.heal()
        await other.sync()
        await other.sync()
        assert called[2:] == [0, tree.session]
        assert tree.session not in {0, first}

    run(test)


@pytest.mark.parametrize("fate", Fate)
def test_a_lost_answer_is_an_unknown_outcome(fate: Fate) -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        lost: list[int] = []
        await tree.get("/a", lambda: lost.append(1))
        tree.before = lambda changes: fate if Create("/a") in changes else None
        with pytest.raises(UnknownOutcomeError):
            await tree.commit([Create("/a")])
        assert lost
        assert (await other.get("/a") is not None) == (fate is Fate.ANSWER_LOST)
        await tree.sync()
        assert (await other.get("/a") is not None) == (fate is not Fate.REQUEST_LOST)

    run(test)


def test_a_connection_that_is_lost_around_a_commit() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        tree.after = lambda *_: tree.cut()
        with pytest.raises(UnknownOutcomeError):
            await tree.commit([Create("/a")])
        assert await other.get("/a") is not None
        tree.heal()
        tree.after = None
        sent = asyncio.create_task(tree.commit([Create("/b")]))
        await asyncio.sleep(0)
        tree.blink()
        with pytest.raises(UnknownOutcomeError):
            await sent
        assert await other.get("/b") is None

    run(test)


def test_a_killed_client_sends_nothing_more() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        await tree.commit([Create("/e", ephemeral=True)])
        tree.after = lambda *_: tree.kill()
        commit = asyncio.create_task(tree.commit([Create("/a")]))
        for _ in range(5):
            await other.sync()
        assert not commit.done()
        assert sorted(other.content.paths()) == ["/", "/a", "/e"]
        tree.expire()
        assert other.content.paths() == ["/", "/a"]
        commit.cancel()

    run(test)


def test_requests_of_one_session_stay_in_order_at_any_interleaving() -> None:
    async def whole() -> None:
        steps = iter([3, 0, 2, 0, 0, 1] * 100)

        async def step() -> None:
            for _ in range(next(steps)):
                await asyncio.sleep(0)

        tree = MemoryTree(MemoryContent(step=step))
        await tree.open()
        for number in range(20):
            done, seen = await asyncio.gather(tree.commit([Create(f"/{number}")]), tree.get(f"/{number}"))
            assert done == Done([f"/{number}"])
            assert seen is not None

    asyncio.run(whole())


def test_closing_ends_the_session_once() -> None:
    async def test(tree: MemoryTree, other: MemoryTree) -> None:
        await tree.commit([Create("/e", ephemeral=True)])
        await tree.close()
        await tree.close()
        assert tree.session == 0
        assert await other.get("/e") is None
        with pytest.raises(SessionEndedError):
            await tree.commit([Create("/x")])
        other.cut()
        left = other.session
        await other.close()
        assert [*other.content.sessions] == [left]

    run(test)

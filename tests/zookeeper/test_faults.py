"""The client of an ensemble when connections, sessions and members fail: its errors, and its calls of watches."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.protocol.states import KazooState

from mainspring.engines.zookeeper import committer, paths
from mainspring.engines.zookeeper.ensemble_client import KazooTree
from mainspring.engines.zookeeper.tree import Create, Done, SessionEndedError, UnknownOutcomeError
from mainspring.errors import StoreError, StoreUnavailableError
from mainspring.stores import parse_zookeeper
from tests.postgres.proxy import Direction, Proxy

from .server import Ensemble
from .test_model import end_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from mainspring.engines.zookeeper.tree import Change, Refused

TIMEOUT = 90.0
LEASE = 1.2


@pytest.fixture
def way(zookeeper: str) -> Iterator[Proxy]:
    """Return a proxy to the shared server, for one node."""
    with Proxy(int(zookeeper.rpartition(":")[2])) as proxy:
        yield proxy


class Watched:
    """Counts calls, and can wait for them."""

    def __init__(self) -> None:
        self.calls = 0
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.calls += 1
        self._called.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not is_so():
                self._called.clear()
                await self._called.wait()


@contextlib.asynccontextmanager
async def session(url: str, lease: float = LEASE, **more: Any) -> AsyncIterator[KazooTree]:
    tree = KazooTree(parse_zookeeper(url), lease, **more)
    await tree.open()
    try:
        yield tree
    finally:
        await tree.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, TIMEOUT))


async def do(proxy_call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(proxy_call, *arguments)


async def insist(tree: KazooTree, changes: list[Change]) -> Done | Refused:
    """Commit as soon as the ensemble is back; an unknown outcome is retried, which another test covers."""
    while True:
        try:
            return await tree.commit(changes)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("happens", [False, True])
def test_a_connection_that_is_lost_during_a_multi(zookeeper: str, chroot: str, way: Proxy, happens: bool) -> None:
    async def test() -> None:
        async with (
            session(f"zookeeper://127.0.0.1:{way.port}{chroot}", 4.0) as tree,
            session(f"zookeeper://{zookeeper}{chroot}") as other,
        ):
            watch, changed = Watched(), Watched()
            first = tree.session
            await tree.get("/nothing", watch)
            tree.on_session(changed)
            if happens:
                await do(way.lose_answer, b"/marked", b"")
            else:
                await do(way.lose_request, b"/marked")
            with pytest.raises(UnknownOutcomeError):
                await tree.commit([Create("/marked")])
            await watch.until(lambda: watch.calls == 1)
            await tree.sync()
            assert changed.calls == 2  # lost, and restored
            assert tree.session == first
            await other.sync()
            assert (await other.get("/marked") is not None) == happens
            assert isinstance(await tree.commit([Create("/again")]), Done)

    run(test())


def test_a_session_that_ends_while_its_client_is_cut_off(zookeeper: str, chroot: str, way: Proxy) -> None:
    async def test() -> None:
        async with (
            session(f"zookeeper://127.0.0.1:{way.port}{chroot}", request_timeout=0.5) as tree,
            session(f"zookeeper://{zookeeper}{chroot}", 4.0) as other,
        ):
            assert tree.session_timeout == LEASE
            await tree.commit([Create("/alive", ephemeral=True)])
            own, gone, changed = Watched(), Watched(), Watched()
            first = tree.session
            await tree.get("/alive", own)
            tree.on_session(changed)
            await other.sync()
            assert await other.get("/alive", gone) is not None
            await do(way.freeze)
            with pytest.raises(StoreUnavailableError):
                await tree.get("/alive")
            await gone.until(lambda: gone.calls == 1)
            assert await other.get("/alive") is None
            # The client has noticed the loss of the connection, but not the end of its session.
            await own.until(lambda: own.calls == 1)
            assert changed.calls == 1
            assert tree.session == first
            with pytest.raises(StoreUnavailableError) as caught:
                await tree.commit([Create("/late")])
            assert not isinstance(caught.value, UnknownOutcomeError)
            waiting = asyncio.create_task(tree.commit([Create("/late")]))
            await asyncio.sleep(0)
            await do(way.heal)
            with pytest.raises((SessionEndedError, StoreUnavailableError)):
                await waiting
            await changed.until(lambda: tree.session not in {0, first})
            assert isinstance(await tree.commit([Create("/new", ephemeral=True)]), Done)
            assert await tree.get("/late") is None

    run(test())


def test_a_request_that_waits_for_a_connection_is_sent_in_its_own_session_only(chroot: str, way: Proxy) -> None:
    async def test() -> None:
        async with session(f"zookeeper://127.0.0.1:{way.port}{chroot}", request_timeout=10.0) as tree:
            changed = Watched()
            tree.on_session(changed)
            first = tree.session
            await do(way.refuse)
            await changed.until(lambda: changed.calls == 1)
            waiting = asyncio.create_task(tree.commit([Create("/waited")]))
            await asyncio.sleep(0)
            assert not waiting.done()
            await do(way.heal)
            assert await waiting == Done(["/waited"])
            assert tree.session == first
            # The second time for longer than the session time-out.
            await do(way.refuse)
            await changed.until(lambda: changed.calls == 3)
            too_late = asyncio.create_task(tree.commit([Create("/too_late")]))
            reading = asyncio.create_task(tree.get("/waited"))
            await asyncio.sleep(LEASE * 2)
            await do(way.heal)
            with pytest.raises(SessionEndedError):
                await too_late
            with pytest.raises(SessionEndedError):
                await reading
            await changed.until(lambda: tree.session not in {0, first})
            assert await tree.get("/too_late") is None

    run(test())


def test_a_commit_just_after_the_loss_of_the_connection_fails_in_time(chroot: str, way: Proxy) -> None:
    """The loop has not noticed the loss, so kazoo gets the multi, and keeps it for the next connection."""

    async def test() -> None:
        async with session(f"zookeeper://127.0.0.1:{way.port}{chroot}", 20.0, request_timeout=0.5) as tree:
            first = tree.session
            way.refuse()
            while tree._client.state != KazooState.SUSPENDED:
                time.sleep(0.01)  # noqa: ASYNC251 - the loop must notice nothing
            with pytest.raises(StoreUnavailableError) as caught:
                async with asyncio.timeout(10):
                    await tree.commit([Create("/late")])
            assert not isinstance(caught.value, UnknownOutcomeError)
            await do(way.heal)
            assert await insist(tree, [Create("/after")]) == Done(["/after"])
            assert await tree.get("/late") is None
            assert tree.session == first

    run(test())


def test_a_session_outlives_the_restart_of_its_server(zookeeper_program: str, chroot: str, tmp_path: Path) -> None:
    with Ensemble(parent=tmp_path) as server:

        async def test() -> None:
            async with session(server.url(chroot), 6.0) as tree:
                await tree.commit([Create("/alive", ephemeral=True)])
                watch = Watched()
                first = tree.session
                await tree.get("/alive", watch)
                await do(server.restart)
                await watch.until(lambda: watch.calls == 1)
                node = await tree.get("/alive")
                assert node is not None
                assert node.owner == tree.session == first

        run(test())


def test_a_server_that_accepts_and_never_answers_does_not_use_up_the_session(
    zookeeper: str, chroot: str, way: Proxy
) -> None:
    """A server that has just started behaves so."""

    async def test() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            silent.settimeout(TIMEOUT)
            async with session(f"zookeeper://127.0.0.1:{way.port}{chroot}", 4.0) as tree:
                first = tree.session
                await do(way.retarget, silent.getsockname()[1])
                await do(way.cut)
                forgotten, _ = await asyncio.to_thread(silent.accept)
                with forgotten:
                    await do(way.retarget, int(zookeeper.rpartition(":")[2]))
                    assert await tree.get("/") is not None
                assert tree.session == first

    run(test())


def test_a_held_member_is_left_in_time_although_requests_go_on(zookeeper: str, chroot: str, way: Proxy) -> None:
    """kazoo sends no pings then: it would stay until the session has ended."""

    async def test() -> None:
        with Proxy(int(zookeeper.rpartition(":")[2])) as another:
            another.refuse()
            async with session(f"zookeeper://127.0.0.1:{way.port},127.0.0.1:{another.port}{chroot}", 9.0) as tree:
                first = tree.session
                await do(another.heal)
                await do(way.freeze)
                reads: list[asyncio.Task[Any]] = []
                while not any(read.done() and read.exception() is None for read in reads):
                    reads.append(asyncio.create_task(tree.get("/")))
                    await asyncio.sleep(0.1)
                assert tree.session == first
                await asyncio.gather(*reads, return_exceptions=True)

    run(test())


def test_a_read_fails_after_its_timeout(way: Proxy, chroot: str) -> None:
    async def test() -> None:
        # kazoo itself would notice a silent server only after two thirds of the session time-out.
        async with session(f"zookeeper://127.0.0.1:{way.port}{chroot}", 30.0, request_timeout=0.5) as tree:
            await do(way.freeze)
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                await tree.get("/")
            assert time.monotonic() - began < 15

    run(test())


def test_a_multi_too_large_for_a_server_is_refused_by_the_client(zookeeper: str, chroot: str) -> None:
    async def test() -> None:
        async with session(f"zookeeper://{zookeeper}{chroot}") as tree:
            first = tree.session
            with pytest.raises(StoreError, match="1,048,575") as caught:
                await tree.commit([Create("/large", bytes(1_100_000))])
            assert not isinstance(caught.value, StoreUnavailableError)
            assert isinstance(await tree.commit([Create("/large", bytes(1_000_000))]), Done)
            assert tree.session == first

    run(test())


@pytest.mark.parametrize("state", ["connected", "frozen", "refused", "forgotten", "ended", "opening"])
def test_closing_takes_two_seconds_at_most(zookeeper: str, chroot: str, way: Proxy, state: str) -> None:
    async def test() -> None:
        tree = KazooTree(parse_zookeeper(f"zookeeper://127.0.0.1:{way.port}{chroot}"), 8.0)
        opening = None
        if state == "opening":
            await do(way.freeze)
            opening = asyncio.create_task(tree.open())
            await asyncio.sleep(0.1)
        else:
            await tree.open()
            watch = Watched()
            await tree.get("/", watch)
            faults: dict[str, Callable[[], object]] = {
                "frozen": way.freeze, "refused": way.refuse, "forgotten": way.forget,
            }  # fmt: skip
            if state in faults:
                await do(faults[state])
            if state == "ended":
                await do(end_session, zookeeper, tree._client.client_id)
            if state == "refused":
                await watch.until(lambda: watch.calls == 1)
        reading = asyncio.create_task(tree.get("/x"))
        await asyncio.sleep(0.01)
        began = time.monotonic()
        await tree.close()
        assert time.monotonic() - began < 2.0
        assert tree.session == 0
        if opening is not None:
            with pytest.raises((StoreUnavailableError, SessionEndedError)):
                await opening
        with contextlib.suppress(StoreUnavailableError, SessionEndedError):
            await reading
        with pytest.raises(SessionEndedError):
            await tree.get("/x")
        await tree.close()

    run(test())


def test_each_entry_is_written_once_over_a_failing_connection(zookeeper: str, chroot: str, way: Proxy) -> None:
    """An entry that was written twice would show as a conflict, a lost one as a missing node."""

    async def test() -> None:
        rng = random.Random(7)
        async with (
            session(f"zookeeper://127.0.0.1:{way.port}{chroot}", 20.0, request_timeout=1.0) as tree,
            session(f"zookeeper://{zookeeper}{chroot}") as other,
        ):
            who = "n1-1"
            created = await tree.commit(
                [*map(Create, (paths.WORKERS, paths.JOURNALS, "/made")), Create(paths.worker(who), ephemeral=True)]
            )
            assert isinstance(created, Done)
            assert isinstance(await tree.commit(committer.begin(who)), Done)
            writer = committer.Committer(tree, who)
            faults = [
                way.cut,
                lambda: way.lose_answer(b"/made/", b""),
                lambda: way.lose_request(b"/made/"),
                lambda: way.cut_after(rng.randrange(2_000), Direction.TO_SERVER),
                lambda: way.cut_after(rng.randrange(300), Direction.TO_CLIENT),
            ]
            sent = 0
            for _ in range(25):
                writing = []
                for _ in range(rng.randrange(1, 4)):
                    entries = [committer.Entry([Create(f"/made/{sent + at}", bytes(50))]) for at in range(20)]
                    sent += len(entries)
                    writing.append(asyncio.create_task(writer.commit(entries)))
                    await asyncio.sleep(rng.random() * 0.01)
                await do(rng.choice(faults))
                for verdicts in await asyncio.gather(*writing):
                    assert verdicts == [None] * 20
            await do(way.heal)
            await other.sync()
            assert len(await other.children("/made") or ()) == sent
            await writer.close()

    run(test())

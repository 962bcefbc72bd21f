"""The port ``Tree`` on a real ensemble: its promises on one undisturbed server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from tests.zookeeper.server import Ensemble

from mainspring.engines.zookeeper.engine import prepare_tree
from mainspring.engines.zookeeper.ensemble_client import KazooTree, check_versions
from mainspring.engines.zookeeper.ensemble_wiring import Answer, make_client
from mainspring.engines.zookeeper.tree import (
    Check,
    Create,
    Delete,
    Done,
    Refusal,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError
from mainspring.ids import NodeId
from mainspring.server.engines import build_engine
from mainspring.server.settings import parse_store
from mainspring.stores import parse_zookeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from mainspring.engines.zookeeper.tree import Change

TIMEOUT = 30.0


@pytest.fixture
def run(zookeeper: str, chroot: str) -> Callable[[Callable[[KazooTree, KazooTree], Coroutine[Any, Any, None]]], None]:
    """Return a function that runs a test on two sessions of one chroot, below another node."""

    def run(test: Callable[[KazooTree, KazooTree], Coroutine[Any, Any, None]]) -> None:
        async def run_with_trees() -> None:
            trees = [KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}/below"), 4.0) for _ in range(2)]
            try:
                for tree in trees:
                    await tree.open()
                await asyncio.wait_for(test(*trees), TIMEOUT)
            finally:
                for tree in trees:
                    await tree.close()

        asyncio.run(run_with_trees())

    return run


async def insist(tree: KazooTree) -> None:
    """Commit something as soon as there is a connection again."""
    while True:
        try:
            done = await tree.commit([Check("/")])
        except StoreUnavailableError:
            await asyncio.sleep(0.01)  # the loss of the connection has not been processed yet
        else:
            assert done == Done(["/"])
            return


def test_a_commit_is_all_or_nothing(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        before_us = time.time_ns() // 1000 - 2000
        result = await tree.commit(
            [Create("/a", b"1"), Create("/a/b", ephemeral=True), Write("/a", b"2"), Check("/a", 1)]
        )
        assert result == Done(["/a", "/a/b", "/a", "/a"])
        await other.sync()
        node = await other.get("/a")
        assert node is not None
        assert (node.data, node.version, node.owner, node.children) == (b"2", 1, 0, 1)
        assert before_us <= node.mtime_us <= time.time_ns() // 1000
        child, none = await other.get_many(["/a/b", "/x"])
        assert none is None
        assert child is not None
        assert child.owner == tree.session
        assert tree.session != other.session
        cases: list[tuple[list[Change], Refused]] = [
            ([Create("/c"), Create("/a")], Refused(1, Refusal.EXISTS)),
            ([Delete("/a/b"), Delete("/a"), Check("/a")], Refused(2, Refusal.NO_NODE)),
            ([Write("/a", b"3"), Delete("/a", 1)], Refused(1, Refusal.VERSION)),
            ([Delete("/a")], Refused(0, Refusal.NOT_EMPTY)),
            ([Create("/x/y"), Create("/d")], Refused(0, Refusal.NO_NODE)),
        ]
        for changes, refused in cases:
            assert await tree.commit(changes) == refused
        assert await tree.children("/") == ["a"]
        assert await tree.children("/a/b") == []
        assert await tree.children("/x") is None
        with pytest.raises(StoreError):
            await tree.commit([Create("/a/b/c")])
        assert await tree.commit([]) == Done([])
        result = await tree.commit([Create("/a/m-", sequence=True), Create("/a/", b"", sequence=True)])
        assert result == Done(["/a/m-0000000001", "/a/0000000002"])

    run(test)


def test_watches_are_called_once(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        called: list[str] = []
        happened = asyncio.Event()

        def note(what: str) -> Callable[[], None]:
            def watch() -> None:
                called.append(what)
                happened.set()

            return watch

        async def next_one() -> None:
            await asyncio.wait_for(happened.wait(), TIMEOUT)
            happened.clear()

        assert await other.get("/a", note("created")) is None
        await tree.commit([Create("/a")])
        await next_one()
        assert called == ["created"]
        assert await other.get("/a", note("written")) is not None
        assert await other.children("/a", note("child")) == []
        await tree.commit([Write("/a", b"1")])
        await next_one()
        await tree.commit([Create("/a/b")])
        await next_one()
        assert called == ["created", "written", "child"]
        await tree.commit([Write("/a", b"2"), Delete("/a/b")])
        assert await other.get("/a", note("deleted")) is not None
        assert await other.children("/a", note("and its children")) == []
        await tree.commit([Delete("/a")])
        await next_one()
        await other.sync()
        assert sorted(called[3:]) == ["and its children", "deleted"]

    run(test)


def test_a_watch_is_called_if_its_event_arrives_before_its_reply_is_read(run: Any, zookeeper: str, chroot: str) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/a")])
        stranger = KazooClient(hosts=zookeeper)
        await asyncio.to_thread(stranger.start)

        def block_loop() -> None:
            """Block the loop until both the replies and the events have arrived."""
            time.sleep(0.1)
            stranger.set(f"{chroot}/below/a", b"x")
            stranger.create(f"{chroot}/below/a/b")
            time.sleep(0.1)

        try:
            written, child = asyncio.Event(), asyncio.Event()
            reading = [
                asyncio.create_task(one) for one in (tree.get("/a", written.set), tree.children("/a", child.set))
            ]
            await asyncio.sleep(0)
            assert tree._requests._in_flight == 2  # noqa: SLF001 - the number of requests in flight shows nowhere else
            block_loop()
            await asyncio.gather(*reading)
            for called in (written, child):
                await asyncio.wait_for(called.wait(), 5)
        finally:
            await asyncio.to_thread(stranger.stop)
            stranger.close()

    run(test)


@pytest.mark.parametrize("what", ["event", "loss of the connection"])
def test_a_watch_is_called_if_all_happens_before_its_request_returns(
    run: Any, zookeeper: str, chroot: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The loop's thread does not run from the moment in which kazoo has the request; kazoo's thread does."""

    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/a"), Create("/b")])
        stranger = KazooClient(hosts=zookeeper)
        await asyncio.to_thread(stranger.start)
        call = KazooClient._call  # noqa: SLF001 - what all requests go through
        disturbed = 0

        def call_and_pause(client: KazooClient, packet: Any, answer: Any) -> Any:
            nonlocal disturbed
            result = call(client, packet, answer)
            if getattr(packet, "watcher", None):
                disturbed += 1
                until(lambda: watched(client, packet.path))  # the reply has come
                if what == "event":
                    stranger.set(packet.path, b"new")
                    stranger.create(f"{packet.path}/new")
                else:
                    client._connection._socket.hang_up()  # noqa: SLF001 - the connection breaks there
                until(lambda: not watched(client, packet.path))
            return result

        monkeypatch.setattr(KazooClient, "_call", call_and_pause)
        try:
            written, child = asyncio.Event(), asyncio.Event()
            await tree.get("/a", written.set)
            await asyncio.wait_for(written.wait(), TIMEOUT)
            await asyncio.wait_for(insist(tree), TIMEOUT)
            await tree.children("/b", child.set)
            await asyncio.wait_for(child.wait(), TIMEOUT)
            assert disturbed == 2
        finally:
            await asyncio.to_thread(stranger.stop)
            stranger.close()

    def watched(client: KazooClient, path: str) -> object:
        return client._data_watchers.get(path) or client._child_watchers.get(path)  # noqa: SLF001 - what kazoo watches

    def until(is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    run(test)


def test_a_repeated_read_leaves_one_watch(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/a")])
        called: list[str] = []

        def watch() -> None:
            called.append("")

        for _ in range(3):
            await tree.get("/a", watch)
        await tree.commit([Write("/a", b"1")])
        await tree.sync()
        assert called == [""]

    run(test)


def test_a_watch_that_fails_holds_up_no_other(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/a")])
        called = asyncio.Event()

        def fail() -> None:
            raise KeyError("x")

        for number in range(5):
            await tree.get(f"/{number}", fail)
        await tree.get("/a", called.set)
        with structlog.testing.capture_logs() as logs:
            await other.commit([*(Create(f"/{number}") for number in range(5)), Write("/a", b"1")])
            await asyncio.wait_for(called.wait(), TIMEOUT)
        assert [line["log_level"] for line in logs] == ["error"] * 5

    run(test)


def test_requests_of_one_caller_stay_in_order(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        for number in range(20):
            result, seen = await asyncio.gather(tree.commit([Create(f"/{number}")]), tree.get(f"/{number}"))
            assert isinstance(result, Done)
            assert seen is not None

    run(test)


def test_many_nodes_are_read_at_once(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create(f"/{number}", b"%d" % number) for number in range(400)])
        nodes = await tree.get_many([f"/{number}" for number in range(1, 2000)])
        assert [node.data for node in nodes if node is not None] == [b"%d" % number for number in range(1, 400)]
        assert nodes[399:] == [None] * 1600

    run(test)


def test_ephemeral_nodes_end_with_the_session(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/e", ephemeral=True)])
        gone = asyncio.Event()
        await other.sync()
        assert await other.get("/e", gone.set) is not None
        await tree.close()
        await tree.close()
        await asyncio.wait_for(gone.wait(), TIMEOUT)
        assert tree.session == 0
        with pytest.raises(SessionEndedError):
            await tree.commit([Create("/x")])
        with pytest.raises(SessionEndedError):
            await tree.get("/x")

    run(test)


def test_a_member_that_skips_a_request_is_disconnected(run: Any) -> None:
    async def test(tree: KazooTree, _: KazooTree) -> None:
        client = tree._client  # noqa: SLF001 - the defect is in the library behind it
        session = tree.session
        lost = Answer(lambda _: None)
        # As if a request had been sent before, and its reply were missing.
        client._pending.append((None, lost, 999))  # noqa: SLF001 - as the library does it
        with pytest.raises(UnknownOutcomeError):
            await tree.commit([Create("/a")])
        assert isinstance(lost.exception, ConnectionLoss)
        await insist(tree)
        assert tree.session == session, "kazoo's thread goes on"

    run(test)


def test_a_client_whose_thread_fails_is_replaced(run: Any) -> None:
    async def test(tree: KazooTree, other: KazooTree) -> None:
        await tree.commit([Create("/e", ephemeral=True), Create("/a")])
        await other.sync()
        changed, watched, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tree.on_session(changed.set)
        await tree.get("/a", watched.set)
        await other.get("/e", gone.set)
        session = tree.session

        def fail(*_: Any) -> None:
            raise KeyError("an error that kazoo does not know")

        tree._client._connection._read_response = fail  # noqa: SLF001 - a defect in the thread of kazoo
        with structlog.testing.capture_logs() as logs:
            with pytest.raises(StoreUnavailableError):
                await tree.get("/a")
            await asyncio.wait_for(watched.wait(), TIMEOUT)
            while tree.session in {0, session}:
                await asyncio.wait_for(changed.wait(), TIMEOUT)
                changed.clear()
        assert isinstance(await tree.commit([Create("/e2", ephemeral=True)]), Done)
        await asyncio.wait_for(gone.wait(), TIMEOUT)
        assert [line["log_level"] for line in logs] == ["error"]

    run(test)


def test_an_unreachable_ensemble_is_reported_without_the_password(free_port: int) -> None:
    async def test() -> None:
        tree = KazooTree(parse_zookeeper(f"zookeeper://user:secret@127.0.0.1:{free_port}/x"), 1.0)
        with pytest.raises(StoreUnavailableError, match=r"zookeeper://user@127") as caught:
            await tree.open()
        assert "secret" not in str(caught.value)
        await tree.close()

    asyncio.run(test())


LOSES = "may lose acknowledged jobs"
UNKNOWN = "versions of some members are not known"


@pytest.mark.parametrize(
    ("answer", "logged"),
    [
        (
            "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25\nMode: leader\n",
            LOSES,
        ),
        ("Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024-10-17\n", LOSES),
        ("Zookeeper version: 3.9.4-7246445ec281f3dbf53dc54e970c914f39713903, built on 2025-08-19\n", ""),
        ("Zookeeper version: 3.10.0, built on 2027-01-01\n", ""),
        ("srvr is not executed because it is not in the whitelist.\n", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_a_version_that_may_lose_writes_is_logged(answer: str, logged: str) -> None:
    async def test() -> None:
        async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readexactly(4) == b"srvr"
            writer.write(answer.encode())
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(member, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with structlog.testing.capture_logs() as logs:
                await check_versions(parse_zookeeper(f"zookeeper://127.0.0.1:{port}/x"))
        assert logged in "".join(line["event"] for line in logs)
        assert len(logs) == bool(logged)

    asyncio.run(test())


def test_a_node_logs_the_version_of_each_member_once(zookeeper: str, chroot: str, free_port: int) -> None:
    async def test() -> None:
        asked = f"zookeeper://{zookeeper},127.0.0.1:{free_port}{chroot}"
        opened = build_engine(parse_store(asked), lease=4.0)
        with structlog.testing.capture_logs() as logs:
            await opened.open(NodeId("n1"), asyncio.get_running_loop().call_soon)
            await asyncio.gather(*(one for one in asyncio.all_tasks() if one.get_name() == "zookeeper versions"))
            await opened.close()
        (warning,) = [line for line in logs if LOSES in line["event"]]
        assert list(warning["versions"]) == [zookeeper], "Debian's is older"
        (info,) = [line for line in logs if UNKNOWN in line["event"]]
        assert info["members"] == [f"127.0.0.1:{free_port}"]
        assert info["log_level"] == "info"

    asyncio.run(asyncio.wait_for(test(), TIMEOUT))


@pytest.mark.parametrize("below", ["/workers", "/pending_tasks/00", "/fires/x"])
def test_a_chroot_inside_another_store_is_refused(zookeeper: str, chroot: str, below: str) -> None:
    async def check() -> None:
        store = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}"), 4.0)
        inside = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}{below}"), 4.0)
        beside = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}/others{below}"), 4.0)
        await store.open()
        try:
            await prepare_tree(store)
            with pytest.raises(SettingsError, match=f"inside the tree of another store, {chroot}: choose another"):
                await inside.open()
            await beside.open()
            assert await store.children("/workers") == []
        finally:
            for tree in (store, inside, beside):
                await tree.close()

    asyncio.run(asyncio.wait_for(check(), TIMEOUT))


def test_nodes_of_a_client_with_credentials_are_its_own(zookeeper: str, chroot: str) -> None:
    async def test() -> None:
        own = KazooTree(parse_zookeeper(f"zookeeper://user:secret@{zookeeper}{chroot}"), 4.0)
        await own.open()
        await own.commit([Create("/a", b"1")])
        same = KazooTree(parse_zookeeper(f"zookeeper://user:secret@{zookeeper}{chroot}"), 4.0)
        await same.open()
        await same.sync()
        assert await same.get("/a") is not None
        stranger = KazooTree(parse_zookeeper(f"zookeeper://user:wrong@{zookeeper}{chroot}"), 4.0)
        with pytest.raises(SettingsError, match="do not allow") as caught:
            await stranger.open()
        assert "wrong" not in str(caught.value)
        anonymous = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}"), 4.0)
        with pytest.raises(SettingsError):
            await anonymous.open()
        await own.close()
        await same.close()

    asyncio.run(test())


def test_acl_world_gives_every_client_access(zookeeper: str, chroot: str) -> None:
    async def test() -> None:
        own = KazooTree(parse_zookeeper(f"zookeeper://user:secret@{zookeeper}{chroot}?acl=world"), 4.0)
        await own.open()
        await own.commit([Create("/a", b"1")])
        anonymous = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}"), 4.0)
        await anonymous.open()
        await anonymous.sync()
        assert await anonymous.commit([Write("/a", b"2")]) == Done(["/a"])
        await own.close()
        await anonymous.close()

    asyncio.run(test())


def test_nodes_of_another_user_are_neither_read_nor_written(zookeeper: str, chroot: str) -> None:
    async def test() -> None:
        anonymous = KazooTree(parse_zookeeper(f"zookeeper://{zookeeper}{chroot}"), 4.0)
        await anonymous.open()
        user = KazooTree(parse_zookeeper(f"zookeeper://user:secret@{zookeeper}{chroot}"), 4.0)
        await user.open()
        await user.commit([Create("/a", b"1")])
        await anonymous.sync()
        for forbidden in (anonymous.get("/a"), anonymous.commit([Create("/b"), Write("/a", b"2")])):
            with pytest.raises(StoreForeignError, match="no permission"):
                await forbidden
        assert await anonymous.get("/b") is None
        await anonymous.close()
        await user.close()

    asyncio.run(test())


def test_an_ensemble_that_requires_credentials_refuses_a_client_without(
    zookeeper_program: str, chroot: str, tmp_path: Path
) -> None:
    options = ["-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"]
    with Ensemble(parent=tmp_path, java=options) as server:

        async def test() -> None:
            anonymous = KazooTree(parse_zookeeper(server.url(chroot)), 4.0)
            with pytest.raises(SettingsError, match="requires a user and password"):
                await anonymous.open()
            user = KazooTree(parse_zookeeper(server.url(chroot).replace("//", "//user:secret@")), 4.0)
            await user.open()
            await user.close()

        asyncio.run(test())


def test_refused_credentials_fail_the_opening(zookeeper: str, chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server accepts any digest, but refuses an unknown scheme."""

    async def test() -> None:
        tree = KazooTree(parse_zookeeper(f"zookeeper://user:secret@{zookeeper}{chroot}"), 4.0)

        def make_with_unknown_scheme(*arguments: Any) -> Any:
            client = make_client(*arguments)
            client.auth_data = {("unknown", "user:secret")}
            return client

        monkeypatch.setattr("mainspring.engines.zookeeper.ensemble_client.make_client", make_with_unknown_scheme)
        began = time.monotonic()
        with pytest.raises(SettingsError, match="refuses user and password") as caught:
            await tree.open()
        assert time.monotonic() - began < 3
        assert "secret" not in str(caught.value)

    asyncio.run(test())

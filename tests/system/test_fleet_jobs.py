"""Three nodes on one store: a job may run at another node than it was submitted at, without any effect on clients and workers."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind, encode, packet_of

from mainspring import App, RefusedError

from .extension import ExtensionKind
from .fleet import Fleet, FleetNode
from .servers import eventually
from .stores import STORES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .extension import ExtensionPeer
    from .fleet import ForkServer

VISIBILITY_DELAY = 0.5
"""Seconds after which the assigner of several nodes' jobs has read new ones: on ZooKeeper the assigner is the master."""


@pytest.fixture(scope="module", params=STORES)
def fleet(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    """Return three nodes that the module's tests share."""
    with (
        STORES[request.param](request.getfixturevalue) as store,
        Fleet(fork_server, tmp_path_factory.mktemp("fleet"), store.url, lease=15) as fleet,
    ):
        fleet.start_many("n1", "n2", "n3")
        yield fleet


@pytest.fixture
def nodes(fleet: Fleet) -> Iterator[list[FleetNode]]:
    yield fleet.nodes
    fleet.assert_healthy()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect_plain(node: FleetNode, stack: ExitStack, *functions: bytes) -> ExtensionPeer:
    """Connect a plain Gearman peer, as a worker if functions are named."""
    peer = stack.enter_context(node.peer())
    if functions:
        peer.can_do(*functions)
    return peer


def grab_until_assigned(worker: ExtensionPeer) -> tuple[bytes, bytes]:
    """Grab a job as plain workers do, asleep in between, and return its handle and payload."""
    while True:
        worker.send(Kind.GRAB_JOB)
        packet = worker.receive()
        while packet.kind is Kind.NOOP:
            packet = worker.receive()
        if packet.kind is Kind.JOB_ASSIGN:
            return packet.arguments[0], packet.arguments[2]
        assert packet == packet_of(Kind.NO_JOB)
        worker.send(Kind.PRE_SLEEP)
        assert worker.receive() == packet_of(Kind.NOOP)


# ---- from one node to another


def test_a_job_runs_where_its_worker_is(nodes: list[FleetNode], function: bytes) -> None:
    with nodes[0].extended() as client, nodes[1].worker(function) as worker:
        handle = client.submit_new(function, b"payload")
        job = worker.job()
        assert (job.handle, job.payload) == (handle, b"payload")
        assert worker.settle_as(job, b"succeeded", b"result") == b"recorded"
        assert client.outcome(handle).data == b"result"


def test_a_handle_names_the_node_that_created_it(nodes: list[FleetNode], function: bytes) -> None:
    for node in nodes:
        with node.extended() as client:
            handle = client.submit_new(function)
            assert handle.startswith(b"H:%b:" % node.name.encode())
            assert client.call("jobs.cancel", handle=handle.decode())["state"] == "cancelled"


def test_a_foreground_client_receives_everything_in_order_from_another_node(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client, worker = connect_plain(nodes[0], stack), connect_plain(nodes[1], stack, function)
    handle = client.submit(function, b"", b"payload")
    assert grab_until_assigned(worker) == (handle, b"payload")
    binary = bytes(range(256))
    for number in range(20):
        worker.send(Kind.WORK_DATA, handle, binary + b"%d" % number)
        worker.send(Kind.WORK_WARNING, handle, b"careful %d" % number)
        worker.send(Kind.WORK_STATUS, handle, b"%d" % number, b"20")
    worker.send(Kind.WORK_DATA, handle, b"x" * 100_000)  # sent in many pieces between nodes
    worker.send(Kind.WORK_STATUS, handle, b"20", b"20")
    for number in range(20):
        assert client.receive() == packet_of(Kind.WORK_DATA, handle, binary + b"%d" % number)
        assert client.receive() == packet_of(Kind.WORK_WARNING, handle, b"careful %d" % number)
        assert client.receive() == packet_of(Kind.WORK_STATUS, handle, b"%d" % number, b"20")
    assert client.receive() == packet_of(Kind.WORK_DATA, handle, b"x" * 100_000)
    assert client.receive() == packet_of(Kind.WORK_STATUS, handle, b"20", b"20")
    worker.complete(handle, b"result")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"result")


def test_progress_arrives_before_the_result_of_a_fast_worker(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client, worker = connect_plain(nodes[0], stack), connect_plain(nodes[1], stack, function)
    for size in (1, 10_000, 300_000):
        handle = client.submit(function, b"", b"payload")
        assert grab_until_assigned(worker) == (handle, b"payload")
        packets = [
            packet_of(Kind.WORK_DATA, handle, b"x" * size),
            packet_of(Kind.WORK_WARNING, handle, b"careful"),
            packet_of(Kind.WORK_STATUS, handle, b"1", b"2"),
            packet_of(Kind.WORK_COMPLETE, handle, b"whole"),
        ]
        worker.write(b"".join(encode(kind, *arguments) for kind, arguments in packets))
        assert [client.receive() for _ in packets] == packets


def test_a_client_at_another_node_receives_failures_and_exceptions(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client, asking, worker = (
        connect_plain(nodes[0], stack),
        connect_plain(nodes[2], stack),
        connect_plain(nodes[1], stack, function),
    )
    asking.option(b"exceptions")
    for end, forwarded in (
        ((Kind.WORK_FAIL,), (Kind.WORK_FAIL,)),
        ((Kind.WORK_EXCEPTION, b"boom"), (Kind.WORK_EXCEPTION, b"boom")),
    ):
        for peer, expected in ((client, (Kind.WORK_FAIL,)), (asking, forwarded)):
            handle = peer.submit(function, b"", b"payload")
            assert grab_until_assigned(worker) == (handle, b"payload")
            worker.send(end[0], handle, *end[1:])
            assert peer.receive() == packet_of(expected[0], handle, *expected[1:])


def test_listeners_at_three_nodes_share_one_run(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    clients = [connect_plain(node, stack) for node in nodes for _ in range(2)]
    handles = {client.submit(function, b"unique", b"%d" % place) for place, client in enumerate(clients)}
    assert len(handles) == 1
    (handle,) = handles
    waiting = stack.enter_context(nodes[1].extended())
    waiting.wait(handle)
    worker = connect_plain(nodes[2], stack, function)
    assert grab_until_assigned(worker) == (handle, b"0")
    worker.send(Kind.WORK_STATUS, handle, b"1", b"2")
    for client in (*clients, waiting):
        assert client.next() == packet_of(Kind.WORK_STATUS, handle, b"1", b"2")
    worker.complete(handle, b"result")
    for client in clients:
        assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"result")
    assert waiting.result().data == b"result"
    worker.send(Kind.GRAB_JOB)
    assert worker.receive() == packet_of(Kind.NO_JOB)


def test_a_submit_joins_the_live_job_of_another_node(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    peers = [stack.enter_context(node.extended()) for node in nodes]
    handle = peers[0].submit_new(function, b"first", b"unique")
    worker = stack.enter_context(nodes[1].worker(function))
    job = worker.job()
    for peer in peers[1:]:
        peer.request(function, b"another", b"unique")
        assert peer.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    assert worker.settle_as(job, b"succeeded", b"once") == b"recorded"
    assert {peer.outcome(handle).data for peer in peers} == {b"once"}

    def is_another() -> bool:
        peers[2].request(function, b"later", b"unique")
        return peers[2].expect(ExtensionKind.SUBMITTED)[0] != handle

    eventually(is_another, "the unique is free: on ZooKeeper after the publication, on PostgreSQL at once")


def test_results_of_one_node_are_read_at_every_node(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    client, worker = (stack.enter_context(node.extended()) for node in nodes[:2])
    worker.register(function)
    handles = [client.submit_new(function, b"%d" % number) for number in range(50)]
    waiting = [stack.enter_context(node.extended()) for node in nodes]
    for peer in waiting[:2]:
        for handle in handles:
            peer.wait(handle)
    for _ in handles:
        worker.ready()
        job = worker.job()
        assert worker.settle_as(job, b"succeeded", b"result of " + job.payload) == b"recorded"
    for peer in waiting:
        if peer is waiting[2]:  # requests the results after the last end
            for handle in handles:
                peer.wait(handle)
        results = {result.handle: result.data for result in (peer.result() for _ in handles)}
        assert results == {handle: b"result of %d" % number for number, handle in enumerate(handles)}


def list_only_job(node: FleetNode, function: bytes) -> tuple[str, int]:
    """Return state and attempt of the only job of a function, as a node lists it."""
    (job,) = node.ask("jobs.list", function=function.decode())["items"]
    return job["state"], job["attempt"]


def test_a_job_that_runs_at_another_node_is_shown_with_its_attempt(nodes: list[FleetNode], function: bytes) -> None:
    with nodes[0].extended() as client, nodes[1].worker(function) as worker:
        handle = client.submit_new(function)
        job = worker.job()
        for node in nodes[:2]:
            named = {"handle": handle.decode()}
            shown = node.ask("jobs.show", **named)
            assert (shown["state"], shown["attempt"]) == ("running", 1)
        for node in nodes[:2]:
            # A list comes from the store. The job's node stores that it runs after about a second.
            listed = ("running", 1)
            eventually(lambda: list_only_job(node, function) == listed, "it is listed as running")  # noqa: B023
        assert worker.settle_as(job, b"succeeded") == b"recorded"
        assert nodes[0].ask("jobs.show", **named)["attempt"] == 1


# ---- no job is stranded


def test_jobs_of_all_nodes_reach_the_only_worker(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    handles = set()
    for node in nodes:
        client = stack.enter_context(node.extended())
        handles |= {client.submit_new(function, b"%d" % number) for number in range(20)}
    worker = stack.enter_context(nodes[2].worker(function, places=60))
    assert {worker.job().handle for _ in handles} == handles


def test_jobs_leave_a_node_with_its_last_worker(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    first = nodes[0].worker(function)
    client = stack.enter_context(nodes[0].extended())
    handles = {client.submit_new(function, b"%d" % number) for number in range(20)}
    first.job()
    second = stack.enter_context(nodes[1].worker(function, places=20))
    first.close()
    jobs = [second.job() for _ in handles]
    assert {job.handle for job in jobs} == handles
    assert {job.info["attempt"] for job in jobs} == {1}, "the lost delivery does not count"


def test_two_nodes_with_workers_share_a_backlog_and_run_nothing_twice(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client = stack.enter_context(nodes[0].extended())
    handles = {client.submit_new(function, b"%d" % number) for number in range(300)}
    workers = [stack.enter_context(node.worker(function, places=3)) for node in nodes[1:]]
    seen: dict[bytes, int] = {}
    deadline = time.monotonic() + 20
    while len(seen) < len(handles):
        assert time.monotonic() < deadline
        for worker in workers:
            for packet in worker.drain():
                if packet.kind is not ExtensionKind.ASSIGN:
                    continue
                handle, token = packet.arguments[:2]
                seen[handle] = seen.get(handle, 0) + 1
                worker.write(
                    encode(ExtensionKind.SETTLE, handle, token, b"succeeded", b"", b"")
                    + encode(ExtensionKind.READY, b"1")
                )
    assert seen == dict.fromkeys(handles, 1)


def test_a_foreground_job_is_dropped_when_no_client_waits_at_any_node(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    one, other = nodes[0].peer(), nodes[1].peer()
    handle = one.submit(function, b"unique", b"payload")
    assert other.submit(function, b"unique", b"payload") == handle
    asking = stack.enter_context(nodes[2].peer())
    one.close()
    last = stack.enter_context(nodes[0].peer())
    last.await_waiters(b"unique", 0)
    # The store answers this node's request after the node's message that no client waits there any more.
    assert last.status(handle) == asking.status(handle) == (b"1", b"0", b"0", b"0")
    other.close()
    eventually(lambda: asking.status(handle) == (b"0", b"0", b"0", b"0"), "the job is dropped")


def test_a_delayed_job_starts_at_another_node_in_time(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client = stack.enter_context(nodes[0].extended())
    worker = stack.enter_context(nodes[1].worker(function))
    before = time.time()
    handle = client.submit_new(function, delay=0.7)
    assert worker.job().handle == handle
    # The relay wakes the node, or its regular query of the store finds the job.
    assert 0.65 <= time.time() - before < 20  # a node's estimate of the store's clock is off by some milliseconds


def test_a_high_job_of_one_node_comes_before_the_backlog_of_another(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client = stack.enter_context(nodes[0].extended())
    for _ in range(5):
        client.submit_new(function)
    high = stack.enter_context(nodes[2].extended()).submit_new(function, b"", priority="high")
    time.sleep(VISIBILITY_DELAY)
    assert stack.enter_context(nodes[1].worker(function)).job().handle == high


# ---- queries and cancellations at any node


def test_every_node_shows_the_state_of_a_job(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    peers = [stack.enter_context(node.extended()) for node in nodes]
    unique = b"unique of " + function[-40:]
    handle = peers[0].submit_new(function, b"payload", unique)
    assert [peer.show(handle)["state"] for peer in peers] == ["pending"] * 3
    worker = stack.enter_context(nodes[1].worker(function))
    job = worker.job()
    for peer in peers:
        assert peer.status(handle)[:2] == (b"1", b"1")
        assert peer.status_unique(unique)[0] == b"1"
        listed = peer.call("jobs.list", function=function.decode())["items"]
        assert [entry["handle"] for entry in listed] == [handle.decode()]
    worker.settle_as(job, b"succeeded", b"result")
    assert [peer.show(handle)["state"] for peer in peers] == ["succeeded"] * 3
    assert {peer.status(handle)[0] for peer in peers} == {b"0"}


def test_a_waiting_job_is_cancelled_from_any_node(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    peers = [stack.enter_context(node.extended()) for node in nodes]
    for peer in peers:
        handle = peers[0].submit_new(function)
        assert peer.call("jobs.cancel", handle=handle.decode())["state"] == "cancelled"
        assert peers[0].outcome(handle).state == b"cancelled"


def test_a_running_job_is_cancelled_from_any_node(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    peers = [stack.enter_context(node.extended()) for node in nodes]
    worker = stack.enter_context(nodes[1].worker(function))
    for peer in peers:
        handle = peers[0].submit_new(function)
        job = worker.job()
        assert peer.call("jobs.cancel", handle=handle.decode())["state"] == "running"
        assert worker.await_stop() == (handle, job.token, b"cancelled")
        shown = [one.call("jobs.attempts", handle=handle.decode())["attempts"] for one in peers]
        asked_at = shown[1][0]["stop_requested_at"]
        assert asked_at is not None
        assert [(one["outcome"], one["stop_requested_at"]) for (one,) in shown] == [("running", asked_at)] * 3
        assert worker.settle_as(job, b"cancelled") == b"recorded"
        worker.ready()
        assert peers[0].outcome(handle).state == b"cancelled"


def test_a_plain_workers_result_is_dropped_if_its_job_was_cancelled_elsewhere(
    nodes: list[FleetNode], function: bytes, stack: ExitStack
) -> None:
    client = stack.enter_context(nodes[0].extended())
    worker = connect_plain(nodes[1], stack, function)
    handle = client.submit_new(function)
    assert grab_until_assigned(worker)[0] == handle
    client.call("jobs.cancel", handle=handle.decode())
    assert client.outcome(handle).state == b"cancelled"
    worker.complete(handle, b"too late")
    assert client.outcome(handle).state == b"cancelled"


def test_a_dead_letter_is_redriven_from_another_node(nodes: list[FleetNode], function: bytes, stack: ExitStack) -> None:
    client, other = (stack.enter_context(node.extended()) for node in nodes[:2])
    worker = stack.enter_context(nodes[2].worker(function))
    handle = client.submit_new(function)
    worker.settle_as(worker.job(), b"failed", error={"type": "Boom", "message": "boom"}, final=True)
    assert client.outcome(handle).state == b"failed"
    assert other.call("jobs.retry", handle=handle.decode())["state"] == "pending"
    worker.ready()
    assert worker.job().handle == handle


def test_a_request_key_joins_at_each_node_or_is_refused(nodes: list[FleetNode], request: pytest.FixtureRequest) -> None:
    """No submit with a key is ever taken without it."""
    handles = []
    for node in nodes[:2]:
        with closing(App(node.address)) as app:
            keyed = app.function("keyed").options(request_key="k")
            if "zookeeper" in request.node.name:
                with pytest.raises(
                    RefusedError, match=r"this node's store keeps no request keys .*: leave out request_key"
                ):
                    keyed.submit(b"x")
            else:
                handles.append(keyed.submit(b"x").handle)
    with nodes[0].extended() as peer:
        for key in ("", "k" * 256):
            peer.request(b"keyed", options={"request_key": key})
            assert peer.next().kind is Kind.ERROR
    stored = [job["handle"] for job in nodes[0].ask("jobs.list", function="keyed")["items"]]
    assert stored == handles[:1]
    assert len(set(handles)) == len(stored)

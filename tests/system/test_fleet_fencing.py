"""Nodes that are frozen, or cut off from the database, for longer than their lease: they stop before others take over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind, packet_of
from tests.postgres.proxy import Direction

from .actors import arrives
from .extension import ExtensionKind
from .fleet import LEASE
from .servers import eventually
from .stores import ZOOKEEPER, on_each_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from tests.postgres.proxy import Proxy

    from .extension import ExtensionPeer
    from .fleet import Fleet, FleetNode
    from .stores import Store, StoreRoute


pytestmark = on_each_store
RECEIVE_TIMEOUT = 30.0


def with_timeout(peer: ExtensionPeer) -> ExtensionPeer:
    peer.socket.settimeout(RECEIVE_TIMEOUT)
    return peer


def proxy_of(route: StoreRoute) -> Proxy:
    assert route.proxy is not None
    return route.proxy


def start_timed(wait: Callable[[], object]) -> Callable[[], tuple[float, object]]:
    """Start a wait in a thread. Return a function that joins it, and returns the time at which it ended and its value."""
    ended: list[tuple[float, object]] = []

    def run() -> None:
        value = wait()
        ended.append((time.monotonic(), value))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> tuple[float, object]:
        thread.join(RECEIVE_TIMEOUT)
        assert ended, "the wait did not end"
        return ended[0]

    return result


# ---- frozen


def test_a_frozen_nodes_late_settlements_are_refused(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = with_timeout(stack.enter_context(n2.extended()))
    late = with_timeout(stack.enter_context(n1.worker(b"f")))
    plain = with_timeout(stack.enter_context(n1.peer()))
    plain.can_do(b"g")
    streaming_handle, plain_handle = client.submit_new(b"f", b"payload"), client.submit_new(b"g", b"payload")
    job = late.job()
    assert job.handle == streaming_handle
    eventually(lambda: plain.grab().kind is Kind.JOB_ASSIGN, "the plain worker has its job")
    before = n1.term

    n1.freeze()
    successor = with_timeout(stack.enter_context(n2.worker(b"f", b"g", places=2)))
    redelivered = {job.handle: job for job in (successor.job(), successor.job())}
    assert set(redelivered) == {streaming_handle, plain_handle}
    # Both workers send while their node is frozen: the node reads the packets before its clock when it continues.
    late.settle(job, b"succeeded", b"late")
    plain.send(Kind.WORK_COMPLETE, plain_handle, b"late")
    n1.thaw()

    # If the node read the settlement before its clock, the worker has no job left to stop.
    packets = [late.next()]
    if packets[0].kind is ExtensionKind.STOP:
        packets.append(late.next())
    assert packets[-1].kind is ExtensionKind.SETTLED
    for packet in packets:
        handle, token, answer = packet.arguments
        assert (handle, token) == (streaming_handle, job.token)
        assert answer == (b"lost" if packet.kind is ExtensionKind.STOP else b"stale")
    plain.send(Kind.ECHO_REQ, b"is it on disk?")  # it is not, and the protocol has no packet to report that
    assert plain.is_closed()
    for handle, taken in redelivered.items():
        assert successor.settle_as(taken, b"succeeded", b"in time") == b"recorded"
        assert client.outcome(handle).data == b"in time"
    eventually(lambda: n1.term != before, "n1 has a new term")
    assert n1.term > max(before, n2.term)
    assert_jobs_run_both_ways(n1, n2)


def assert_jobs_run_both_ways(n1: FleetNode, n2: FleetNode) -> None:
    """Assert that jobs can go both ways between two nodes."""
    for one, other in ((n1, n2), (n2, n1)):
        with one.extended() as client, other.worker(b"still works") as worker:
            with_timeout(client)
            with_timeout(worker)
            handle = client.submit_new(b"still works")
            job = worker.job()
            assert job.handle == handle
            assert worker.settle_as(job, b"succeeded", b"yes") == b"recorded"
            assert client.outcome(handle).data == b"yes"


def test_clients_of_a_frozen_node_still_receive_their_results(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    waiting, foreground, local = (with_timeout(stack.enter_context(n1.extended())) for _ in range(3))
    remote = with_timeout(stack.enter_context(n2.worker(b"f", places=2)))
    here = with_timeout(stack.enter_context(n1.worker(b"own")))
    handle = waiting.submit_new(b"f", b"background")
    waiting.wait(handle)
    own = foreground.submit(b"f", b"", b"foreground")
    of_node = local.submit(b"own", b"", b"nowhere but in memory")
    jobs = {job.handle: job for job in (remote.job(), remote.job())}
    assert set(jobs) == {handle, own}
    memory = here.job()
    n1.freeze()
    await_removal(n2, n1)
    n1.thaw()
    assert here.settle_as(memory, b"succeeded", b"kept") == b"recorded"
    assert local.next() == packet_of(Kind.WORK_COMPLETE, of_node, b"kept")
    for job in jobs.values():
        assert remote.settle_as(job, b"succeeded", b"result") == b"recorded"
    assert waiting.result().data == b"result"
    assert foreground.next() == packet_of(Kind.WORK_COMPLETE, own, b"result")


def await_removal(survivor: FleetNode, dead: FleetNode) -> None:
    """Wait until a node is no longer listed."""
    with survivor.extended() as peer:
        eventually(
            lambda: dead.name not in {row["name"] for row in peer.call("nodes.list")["items"]}, f"{dead.name} is gone"
        )


def test_a_node_that_is_frozen_for_less_than_its_lease_keeps_its_jobs(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    worker = with_timeout(stack.enter_context(n1.worker(b"f")))
    stack.enter_context(n2.worker(b"f"))
    stack.enter_context(n1.extended()).submit_new(b"f")
    job = worker.job()
    term = n1.term
    n1.freeze()
    time.sleep(LEASE / 4)
    n1.thaw()
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert n1.term == term


# ---- cut off from the database


@pytest.mark.parametrize("how", ["held", "unanswered", "cut"])
def test_a_node_that_is_cut_off_stops_its_workers_before_others_take_over(
    fleet: Fleet, route: StoreRoute, stack: ExitStack, how: str
) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = with_timeout(stack.enter_context(n2.extended()))
    holder = with_timeout(stack.enter_context(n1.worker(b"f")))
    handle = client.submit_new(b"f", b"payload")
    job = holder.job()
    successor = with_timeout(stack.enter_context(n2.worker(b"f")))
    before = n1.term

    parted = time.monotonic()
    if how == "held":
        proxy_of(route).freeze()
    elif how == "unanswered":
        proxy_of(route).freeze(Direction.TO_CLIENT)
    else:
        proxy_of(route).refuse()
    stopped, taken = start_timed(holder.await_stop), start_timed(successor.job)
    stopped_at, answer = stopped()
    taken_at, _ = taken()
    assert answer == (handle, job.token, b"lost")
    # The purpose of the lease: the node stops its worker first, and another node takes over after the margin.
    assert stopped_at < taken_at
    assert stopped_at - parted < LEASE
    holder.settle(job, b"succeeded", b"late")  # answered when the node can read the job's state from the store
    proxy_of(route).heal()
    assert holder.verdict(job) == b"stale"
    eventually(lambda: n1.term != before, "n1 has a new term")
    assert_jobs_run_both_ways(n1, n2)


def test_a_node_that_ignores_the_end_of_its_lease_is_found(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    """The check above must fail if leases do not end; otherwise it proves nothing."""
    n1, n2 = fleet.start("n1", store=route.url, plant="fencing"), fleet.start("n2")
    client = with_timeout(stack.enter_context(n2.extended()))
    holder = with_timeout(stack.enter_context(n1.worker(b"f")))
    handle = client.submit_new(b"f", b"payload")
    assert holder.job().handle == handle
    successor = with_timeout(stack.enter_context(n2.worker(b"f")))
    proxy_of(route).freeze()
    assert successor.job().handle == handle
    assert not arrives(holder, 0.1), "two workers have one job, and neither was stopped"
    proxy_of(route).heal()


def test_a_node_recovers_from_silently_dropped_connections(
    fleet: Fleet, store: Store, route: StoreRoute, stack: ExitStack
) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = with_timeout(stack.enter_context(n1.extended()))
    worker = with_timeout(stack.enter_context(n1.worker(b"f")))
    handle = client.submit_new(b"f", b"payload")
    job = worker.job()
    before = n1.term
    assert proxy_of(route).forget() == route.traits.connections
    worker.settle(job, b"succeeded", b"late")
    successor = with_timeout(stack.enter_context(n2.worker(b"f")))
    if store.kind == ZOOKEEPER:
        # The session outlives its connection: the settlement was under way, and the journal has its outcome.
        assert worker.verdict(job) == b"recorded"
        assert client.outcome(handle).data == b"late"
        successor.assert_silent()
        successor.close()
    else:
        redelivered = successor.job()
        assert redelivered.handle == handle
        assert successor.settle_as(redelivered, b"succeeded", b"in time") == b"recorded"
        # The settlement was under way when the lease ended: the node had no job left to stop.
        assert worker.verdict(job) == b"stale"
        assert client.outcome(handle).data == b"in time"
    eventually(lambda: n1.term != before, "n1 has a new term")
    assert_jobs_run_both_ways(n1, n2)


def test_a_node_whose_next_term_fails_to_begin_tries_again(fleet: Fleet, route: StoreRoute) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    before = n1.term
    trap = route.lose_request(of=route.traits.begin)
    n2.ask("nodes.remove", node="n1", force=True)
    trap.wait()
    eventually(lambda: n1.term != before, "n1 has a new term", timeout=RECEIVE_TIMEOUT)
    assert_jobs_run_both_ways(n1, n2)


# ---- lost answers


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_submission_is_stored_and_acknowledged_once_if_an_answer_is_lost(
    fleet: Fleet, route: StoreRoute, stack: ExitStack, lost: str
) -> None:
    n1 = fleet.start("n1", store=route.url)
    client = with_timeout(stack.enter_context(n1.extended()))
    client.submit_new(b"f", b"first")
    for round_ in range(2):
        trap = route.lose_answer() if lost == "answer" else route.lose_request()
        handles = [client.submit_new(b"f", b"%d" % round_)]
        trap.wait()
        assert client.drain() == []
        listed = client.call("jobs.list", function="f", limit=1)["items"]
        assert [job["handle"].encode() for job in listed] == handles
    assert len(client.call("jobs.list", function="f", limit=10)["items"]) == 3
    status = client.call("node.status")
    assert status["jobs"]["total"] == 3


def test_a_settlement_is_recorded_once_if_an_answer_is_lost(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    n1 = fleet.start("n1", store=route.url)
    client = with_timeout(stack.enter_context(n1.extended()))
    worker = with_timeout(stack.enter_context(n1.worker(b"f")))
    handle = client.submit_new(b"f")
    job = worker.job()
    trap = route.lose_answer()
    assert worker.settle_as(job, b"succeeded", b"result") == b"recorded"
    trap.wait()
    assert client.outcome(handle).data == b"result"
    worker.ready()
    worker.assert_silent()


def test_a_claim_whose_answer_is_lost_strands_nothing(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = with_timeout(stack.enter_context(n2.extended()))
    handles = {client.submit_new(b"f", b"%d" % number) for number in range(10)}
    trap = route.lose_answer()
    worker = with_timeout(stack.enter_context(n1.worker(b"f", places=10)))
    assert {worker.job().handle for _ in handles} == handles
    trap.wait()
    worker.assert_silent()
    del n2

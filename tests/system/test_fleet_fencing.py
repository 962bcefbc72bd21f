"""A node that is stopped, or cut off from the database, for longer than its lease: it gives up before others take over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind, got
from tests.postgres.proxy import Direction

from .actors import arrives
from .extension import More
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
TAKEOVER_LIMIT = LEASE + 2.0
"""Seconds after a node's last sign of life in which another has its jobs: the lease, a look each second, and what that takes."""
RECEIVE_TIMEOUT = 30.0


def patient(peer: ExtensionPeer) -> ExtensionPeer:
    peer.socket.settimeout(RECEIVE_TIMEOUT)
    return peer


def proxy_of(route: StoreRoute) -> Proxy:
    assert route.proxy is not None
    return route.proxy


def timed(wait: Callable[[], object]) -> Callable[[], tuple[float, object]]:
    """Wait for something in a thread; returns what waits for that, and gives the time at which it came, and what came."""
    came: list[tuple[float, object]] = []

    def run() -> None:
        value = wait()
        came.append((time.monotonic(), value))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> tuple[float, object]:
        thread.join(RECEIVE_TIMEOUT)
        assert came, "it did not come"
        return came[0]

    return result


# ---- stopped


def test_a_stopped_nodes_late_settlements_are_refused(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.several("n1", "n2")
    client = patient(stack.enter_context(n2.extended()))
    late = patient(stack.enter_context(n1.worker(b"f")))
    plain = patient(stack.enter_context(n1.peer()))
    plain.can_do(b"g")
    streamed, asked = client.put(b"f", b"payload"), client.put(b"g", b"payload")
    job = late.job()
    assert job.handle == streamed
    eventually(lambda: plain.grab().kind is Kind.JOB_ASSIGN, "the plain worker has its job")
    before = n1.term

    n1.freeze()
    successor = patient(stack.enter_context(n2.worker(b"f", b"g", places=2)))
    again = {again.handle: again for again in (successor.job(), successor.job())}
    assert set(again) == {streamed, asked}
    # Both speak while their node sleeps: it hears them when it wakes up, before it has had a look at its clock.
    late.settle(job, b"succeeded", b"late")
    plain.send(Kind.WORK_COMPLETE, asked, b"late")
    n1.thaw()

    # Where the node has heard the settlement before it looked at its clock, the worker has nothing left to be stopped.
    packets = [late.next()]
    if packets[0].kind is More.STOP:
        packets.append(late.next())
    assert packets[-1].kind is More.SETTLED
    for packet in packets:
        handle, lease, word = packet.arguments
        assert (handle, lease) == (streamed, job.lease)
        assert word == (b"lost" if packet.kind is More.STOP else b"stale")
    plain.send(Kind.ECHO_REQ, b"is it on disk?")  # it is not, and there is no word for that
    assert plain.is_closed()
    for handle, taken in again.items():
        assert successor.settled_as(taken, b"succeeded", b"in time") == b"recorded"
        assert client.outcome(handle).data == b"in time"
    eventually(lambda: n1.term != before, "it takes part again")
    assert n1.term > max(before, n2.term)
    works(n1, n2)


def works(n1: FleetNode, n2: FleetNode) -> None:
    """Say that jobs go both ways between two nodes."""
    for one, other in ((n1, n2), (n2, n1)):
        with one.extended() as client, other.worker(b"still works") as worker:
            patient(client)
            patient(worker)
            handle = client.put(b"still works")
            job = worker.job()
            assert job.handle == handle
            assert worker.settled_as(job, b"succeeded", b"yes") == b"recorded"
            assert client.outcome(handle).data == b"yes"


def test_what_clients_of_a_stopped_node_wait_for_still_comes(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.several("n1", "n2")
    waiting, foreground, local = (patient(stack.enter_context(n1.extended())) for _ in range(3))
    remote = patient(stack.enter_context(n2.worker(b"f", places=2)))
    here = patient(stack.enter_context(n1.worker(b"own")))
    handle = waiting.put(b"f", b"background")
    waiting.wait(handle)
    own = foreground.submit(b"f", b"", b"foreground")
    of_node = local.submit(b"own", b"", b"nowhere but in memory")
    jobs = {job.handle: job for job in (remote.job(), remote.job())}
    assert set(jobs) == {handle, own}
    memory = here.job()
    n1.freeze()
    n2_sees_it_dead(n2, n1)
    n1.thaw()
    assert here.settled_as(memory, b"succeeded", b"kept") == b"recorded"
    assert local.next() == got(Kind.WORK_COMPLETE, of_node, b"kept")
    for job in jobs.values():
        assert remote.settled_as(job, b"succeeded", b"result") == b"recorded"
    assert waiting.result().data == b"result"
    assert foreground.next() == got(Kind.WORK_COMPLETE, own, b"result")


def n2_sees_it_dead(survivor: FleetNode, dead: FleetNode) -> None:
    """Wait until a node is not listed any more."""
    with survivor.extended() as peer:
        eventually(
            lambda: dead.name not in {row["name"] for row in peer.call("nodes.list")["nodes"]}, f"{dead.name} is gone"
        )


def test_a_node_that_is_stopped_for_less_than_its_lease_keeps_its_jobs(fleet: Fleet, stack: ExitStack) -> None:
    n1, n2 = fleet.several("n1", "n2")
    worker = patient(stack.enter_context(n1.worker(b"f")))
    stack.enter_context(n2.worker(b"f"))
    stack.enter_context(n1.extended()).put(b"f")
    job = worker.job()
    term = n1.term
    n1.freeze()
    time.sleep(LEASE / 4)
    n1.thaw()
    assert worker.settled_as(job, b"succeeded") == b"recorded"
    assert n1.term == term


# ---- cut off from the database


@pytest.mark.parametrize("how", ["held", "unanswered", "cut"])
def test_a_node_that_is_cut_off_gives_up_before_others_take_over(
    fleet: Fleet, route: StoreRoute, stack: ExitStack, how: str
) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = patient(stack.enter_context(n2.extended()))
    holder = patient(stack.enter_context(n1.worker(b"f")))
    handle = client.put(b"f", b"payload")
    job = holder.job()
    successor = patient(stack.enter_context(n2.worker(b"f")))
    before = n1.term

    parted = time.monotonic()
    if how == "held":
        proxy_of(route).freeze()
    elif how == "unanswered":
        proxy_of(route).freeze(Direction.TO_CLIENT)
    else:
        proxy_of(route).refuse()
    stopped, taken = timed(holder.stopped), timed(successor.job)
    stopped_at, word = stopped()
    taken_at, _ = taken()
    assert word == (handle, job.lease, b"lost")
    # What the lease is for: the node stops its worker first, and by the margin; then another one takes over.
    assert stopped_at < taken_at
    assert stopped_at - parted < LEASE
    assert taken_at - parted < TAKEOVER_LIMIT
    holder.settle(job, b"succeeded", b"late")  # answered when the store can be asked what became of the job
    proxy_of(route).heal()
    assert holder.verdict(job) == b"stale"
    eventually(lambda: n1.term != before, "it takes part again")
    works(n1, n2)


def test_a_node_that_would_not_give_up_is_found(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    """The check above has to fail without the lease's end; otherwise it proves nothing."""
    n1, n2 = fleet.start("n1", store=route.url, plant="fencing"), fleet.start("n2")
    client = patient(stack.enter_context(n2.extended()))
    holder = patient(stack.enter_context(n1.worker(b"f")))
    handle = client.put(b"f", b"payload")
    assert holder.job().handle == handle
    successor = patient(stack.enter_context(n2.worker(b"f")))
    proxy_of(route).freeze()
    assert successor.job().handle == handle
    assert not arrives(holder, 0.1), "two workers have one job, and neither was stopped"
    proxy_of(route).heal()


def test_a_node_whose_connections_are_forgotten_goes_on(
    fleet: Fleet, store: Store, route: StoreRoute, stack: ExitStack
) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = patient(stack.enter_context(n1.extended()))
    worker = patient(stack.enter_context(n1.worker(b"f")))
    handle = client.put(b"f", b"payload")
    job = worker.job()
    before = n1.term
    assert proxy_of(route).forget() == route.traits.connections
    worker.settle(job, b"succeeded", b"late")
    successor = patient(stack.enter_context(n2.worker(b"f")))
    if store.kind == ZOOKEEPER:
        # Its session outlives its connection: the settlement was on its way, and its journal tells what became of it.
        assert worker.verdict(job) == b"recorded"
        assert client.outcome(handle).data == b"late"
        successor.assert_silent()
        successor.close()
    else:
        again = successor.job()
        assert again.handle == handle
        assert successor.settled_as(again, b"succeeded", b"in time") == b"recorded"
        # It was on its way to the store when the lease ended: there was no job left in the node's hands to stop.
        assert worker.verdict(job) == b"stale"
        assert client.outcome(handle).data == b"in time"
    eventually(lambda: n1.term != before, "it takes part again")
    works(n1, n2)


def test_a_node_whose_next_term_does_not_begin_at_once_tries_again(fleet: Fleet, route: StoreRoute) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    before = n1.term
    trap = route.lose_request(of=route.traits.begin)
    n2.ask("nodes.remove", node="n1", force=True)
    trap.wait()
    eventually(lambda: n1.term != before, "it takes part again", timeout=RECEIVE_TIMEOUT)
    works(n1, n2)


# ---- answers that are lost


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_submit_is_stored_and_acknowledged_once_where_an_answer_is_lost(
    fleet: Fleet, route: StoreRoute, stack: ExitStack, lost: str
) -> None:
    n1 = fleet.start("n1", store=route.url)
    client = patient(stack.enter_context(n1.extended()))
    client.put(b"f", b"first")
    for round_ in range(2):
        trap = route.lose_answer() if lost == "answer" else route.lose_request()
        handles = [client.put(b"f", b"%d" % round_)]
        trap.wait()
        assert client.drain() == []
        listed = client.call("jobs.list", function="f", limit=1)["jobs"]
        assert [job["handle"].encode() for job in listed] == handles
    assert len(client.call("jobs.list", function="f", limit=10)["jobs"]) == 3
    status = client.call("node.status")
    assert status["jobs"]["total"] == 3


def test_a_settlement_is_recorded_once_where_an_answer_is_lost(
    fleet: Fleet, route: StoreRoute, stack: ExitStack
) -> None:
    n1 = fleet.start("n1", store=route.url)
    client = patient(stack.enter_context(n1.extended()))
    worker = patient(stack.enter_context(n1.worker(b"f")))
    handle = client.put(b"f")
    job = worker.job()
    trap = route.lose_answer()
    assert worker.settled_as(job, b"succeeded", b"result") == b"recorded"
    trap.wait()
    assert client.outcome(handle).data == b"result"
    worker.ready()
    worker.assert_silent()


def test_a_claim_whose_answer_is_lost_strands_nothing(fleet: Fleet, route: StoreRoute, stack: ExitStack) -> None:
    n1, n2 = fleet.start("n1", store=route.url), fleet.start("n2")
    client = patient(stack.enter_context(n2.extended()))
    handles = {client.put(b"f", b"%d" % number) for number in range(10)}
    trap = route.lose_answer()
    worker = patient(stack.enter_context(n1.worker(b"f", places=10)))
    assert {worker.job().handle for _ in handles} == handles
    trap.wait()
    worker.assert_silent()
    del n2

"""Limits and pauses at a node: what they let through, what stays in the store, and that they outlive the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.jobs import function_limits
from mainspring.jobs.admission import MIN_JOBS
from mainspring.jobs.lateness import base_us
from mainspring.jobs.model import Job, Options, State
from mainspring.resources import rules
from mainspring.resources.rules import UNLIMITED, FunctionLimits, Limits, Rate, Times, UnreadableLimits, decode_limits

from .a_node import Node, side, unexpected

if TYPE_CHECKING:
    from mainspring.jobs.held import Worker

SECOND = 1_000_000


def limit(node: Node, limits: Limits | None, function: str = "f", *, paused: bool = False) -> None:
    """Say something by command."""

    def change(row: FunctionLimits, _: int) -> FunctionLimits:
        return FunctionLimits(row.function, row.declared, limits, paused, row.version)

    replies: list[FunctionLimits] = []
    CallInProgress(node.service.functions.change(function.encode(), change), replies.append, unexpected)
    node.commit()
    assert replies[0].paused is paused


def given(worker: Worker) -> list[str]:
    """The payloads of the jobs that a worker has been given."""
    return [held.job.payload.decode() for held in side(worker).given]


def succeed(node: Node, worker: Worker, payload: str) -> None:
    (held,) = [held for held in worker.running.values() if held.job.payload.decode() == payload]
    node.settling.succeeded(held, b"")


def keyed(node: Node, *names: str) -> list[Job]:
    """Submit jobs whose keys are the first letters of their payloads, in one batch."""
    jobs = node.submit(*[node.job(name, key=name[0].encode()) for name in names])
    node.commit()
    return jobs


def test_no_more_than_the_limit_are_with_workers_and_each_end_lets_the_next_start() -> None:
    node = Node()
    limit(node, Limits(concurrency=2))
    worker = node.stream(places=10)
    for number in range(5):
        node.background(f"{number}")
    assert given(worker) == ["0", "1"]
    succeed(node, worker, "1")
    assert given(worker) == ["0", "1"], "not before its end is on disk"
    node.commit()
    assert given(worker) == ["0", "1", "2"]


def test_the_jobs_of_a_lost_worker_give_their_tokens_back() -> None:
    node = Node()
    limit(node, Limits(concurrency=1))
    first = node.stream(places=10)
    node.background("1")
    node.background("2")
    second = node.stream(places=10)
    node.service.workers.gone(first)
    node.commit()
    assert (given(first), given(second)) == (["1"], ["2"])
    succeed(node, second, "2")
    node.commit()
    assert given(second) == ["2", "1"]


@pytest.mark.parametrize("end", ["fail", "release", "snooze", "time out", "cancel"])
def test_every_end_gives_the_token_back(end: str) -> None:
    node = Node()
    limit(node, Limits(concurrency=1))
    worker = node.stream(places=10, timeout=5.0)
    node.background("1")
    node.background("2")
    (held,) = worker.running.values()
    if end == "fail":
        node.settling.failed(held, b"{}")
    elif end == "release":
        node.settling.released(held)
    elif end == "snooze":
        node.settling.snoozed(held, 60)
    elif end == "time out":
        node.wait(6)
    else:
        node.settling.cancelled(held, "asked")
    node.commit()
    assert given(worker)[-1] == "2"
    admission = node.queue().admission
    assert admission is not None
    assert admission.running == 1


def test_plain_workers_are_woken_only_for_jobs_that_can_start() -> None:
    node = Node()
    limit(node, Limits(concurrency=1))
    first, second = node.worker(), node.worker()
    assert not node.assigner.sleep(first)
    assert not node.assigner.sleep(second)
    node.background("1")
    node.background("2")
    woken = [worker for worker in (first, second) if "wake" in side(worker).events]
    assert len(woken) == 1
    held = node.grab(woken[0])
    assert held is not None
    other = second if woken[0] is first else first
    assert node.grab(other) is None
    assert not node.assigner.sleep(other), "it would be woken again and again for nothing"
    side(other).pop_events()
    node.settling.succeeded(held, b"")
    node.commit()
    assert side(other).pop_events() == ["wake"]


def test_foreground_jobs_are_limited_too() -> None:
    node = Node()
    limit(node, Limits(concurrency=1))
    worker = node.stream(places=10)
    node.foreground("1")
    node.foreground("2")
    assert given(worker) == ["1"]
    (held,) = worker.running.values()
    node.settling.failed(held, b"{}")
    assert given(worker) == ["1", "2"]


def test_a_rate_is_kept_and_time_alone_lets_jobs_start() -> None:
    node = Node()
    limit(node, Limits(rate=Rate(10, SECOND, 2)))
    worker = node.stream(places=100)
    for number in range(40):
        node.background(f"{number}")
    assert len(given(worker)) == 2
    node.wait(0.95)
    assert len(given(worker)) == 11
    node.wait(2)
    assert len(given(worker)) == 31


def test_a_hot_key_leaves_room_for_others() -> None:
    node = Node()
    limit(node, Limits(concurrency_per_key=1))
    worker = node.stream(places=1000)
    hot = keyed(node, *[f"a{number}" for number in range(500)])
    keyed(node, "b1", "c1", "c2")
    assert given(worker) == ["a0", "b1", "c1"]
    here = [job for job in hot if node.held(job) is not None]
    assert len(here) <= 2 * MIN_JOBS, "the rest stays in the store"
    for number in range(20):
        succeed(node, worker, f"a{number}")
        node.commit()
    assert given(worker)[-1] == "a20"
    succeed(node, worker, "c1")
    node.commit()
    assert given(worker)[-1] == "c2"


def test_keys_take_turns_without_any_limit() -> None:
    node = Node()
    keyed(node, *[f"a{number}" for number in range(300)], "b1", "b2", "c1")
    worker = node.stream(places=1)
    node.commit()
    seen = []
    for _ in range(40):
        name = given(worker)[-1]
        seen.append(name)
        succeed(node, worker, name)
        node.service.workers.ready(worker, 1)
        node.commit()
    assert {"b1", "b2", "c1"} <= set(seen), "they do not wait for three hundred others"


def test_an_idle_node_with_blocked_keys_leaves_the_store_alone() -> None:
    node = Node()
    limit(node, Limits(concurrency_per_key=1))
    worker = node.stream(places=1000)
    keyed(node, *[f"a{number}" for number in range(100)])
    node.wait(1)
    groups = node.life.commits.groups
    node.wait(20)
    assert node.life.commits.groups - groups <= 10, "sweeps, and a look now and then"
    assert len(given(worker)) == 1


def test_a_paused_function_takes_jobs_and_runs_none() -> None:
    node = Node()
    worker = node.stream(places=10)
    limit(node, None, paused=True)
    node.background("1")
    other = node.stream("g")
    node.background("2", "g")
    assert (given(worker), given(other)) == ([], ["2"])
    limit(node, None, paused=False)
    node.commit()
    assert given(worker) == ["1"]
    assert node.queue().admission is None, "no limit is set"


def test_waiting_and_running_jobs_are_kept_when_limits_come_and_go() -> None:
    node = Node()
    worker = node.stream(places=2)
    for number in range(6):
        node.background(f"{number}")
    limit(node, Limits(concurrency=1))
    succeed(node, worker, "0")
    node.service.workers.ready(worker, 5)
    node.commit()
    assert given(worker) == ["0", "1"], "one runs already"
    limit(node, UNLIMITED)
    assert given(worker) == ["0", "1", "2", "3", "4", "5"]


def test_limits_and_pauses_outlive_the_node() -> None:
    node = Node()
    limit(node, Limits(concurrency=1))
    limit(node, None, "g", paused=True)
    node = node.restart()
    worker = node.stream("f", "g", places=10)
    for payload, function in (("1", "f"), ("2", "f"), ("3", "g")):
        node.background(payload, function)
    assert given(worker) == ["1"]


def test_keys_outlive_the_node() -> None:
    node = Node()
    jobs = keyed(node, *[f"a{number}" for number in range(100)], "b1")
    limit(node, Limits(concurrency_per_key=1))
    node = node.restart()
    worker = node.stream(places=10)
    node.commit()
    assert sorted(given(worker)) == ["a0", "b1"]
    assert node.state(jobs[50].id) is State.PENDING


# ---- what workers declare ----


def test_what_a_worker_declares_holds_at_once_and_after_a_restart() -> None:
    node = Node()
    worker = node.stream(places=10, limits=Limits(concurrency=1))
    node.background("1")
    node.background("2")
    assert given(worker) == ["1"]
    node = node.restart()
    assert node.service.functions.limits(b"f") == Limits(concurrency=1)


def test_a_command_counts_more() -> None:
    node = Node()
    worker = node.stream(places=10, limits=Limits(concurrency=1))
    limit(node, Limits(concurrency=3))
    for number in range(5):
        node.background(f"{number}")
    assert given(worker) == ["0", "1", "2"]
    node.stream(places=10, limits=Limits(concurrency=1))
    node.commit()
    assert node.service.functions.limits(b"f") == Limits(concurrency=3)


def test_two_versions_of_a_worker_do_not_flap() -> None:
    node = Node()
    old, new = Limits(concurrency=1), Limits(concurrency=2)
    node.stream(limits=old)
    node.wait(1)
    node.stream(limits=new)
    for _ in range(3):
        node.wait(400)
        node.stream(limits=old)
        assert node.service.functions.limits(b"f") == new


def test_a_declaration_ends_some_minutes_after_its_last_worker() -> None:
    node = Node()
    worker = node.stream(limits=Limits(concurrency=1))
    node.wait(3600)
    assert node.service.functions.limits(b"f") == Limits(concurrency=1)
    node.service.workers.gone(worker)
    node.wait(rules.DECLARATION_EXPIRY_US / SECOND + function_limits.REPEAT_INTERVAL + 1)
    assert node.service.functions.limits(b"f") == UNLIMITED
    assert node.queue().admission is None


def test_two_who_write_at_once_both_come_through() -> None:
    node = Node()
    first: list[FunctionLimits] = []
    second: list[FunctionLimits] = []
    for name, replies in (("paused", first), ("commanded", second)):
        value = True if name == "paused" else Limits(concurrency=7)

        def change(row: FunctionLimits, _: int, name: str = name, value: object = value) -> FunctionLimits:
            values = {"declared": row.declared, "commanded": row.commanded, "paused": row.paused, name: value}
            return FunctionLimits(row.function, version=row.version, **values)  # type: ignore[arg-type]

        CallInProgress(node.service.functions.change(b"f", change), replies.append, unexpected)
    node.commit()
    assert (first[0].version, second[0].version) == (1, 2)
    assert (second[0].paused, second[0].commanded) == (True, Limits(concurrency=7))


def pause(node: Node, seconds: float) -> None:
    """Pause a function for some seconds."""

    def change(row: FunctionLimits, now_us: int) -> FunctionLimits:
        return rules.paused(row, now_us, until_us=now_us + round(seconds * SECOND))

    CallInProgress(node.service.functions.change(b"f", change), lambda _: None, unexpected)
    node.commit()


def test_a_pause_with_an_end_ends_by_itself_and_a_later_pause_replaces_its_end() -> None:
    node = Node()
    pause(node, 10)
    worker = node.stream(places=10)
    node.background("a")
    pause(node, 30)
    node.wait(11)
    assert not given(worker)
    assert node.service.functions.limits_of(b"f").paused
    node.wait(20)
    assert given(worker) == ["a"]
    assert not node.service.functions.limits_of(b"f").paused


def test_a_pause_that_ended_while_the_node_was_down_is_over() -> None:
    row = rules.paused(FunctionLimits(b"f"), 5, "why", 10)
    assert rules.without_ended_pause(row, 9) is row
    assert rules.without_ended_pause(row, 10) == FunctionLimits(b"f")
    assert rules.without_ended_pause(rules.paused(row, 7), 99) == FunctionLimits(b"f", paused=True, paused_us=5)


def test_a_function_whose_limits_cannot_be_read_waits_and_keeps_them() -> None:
    earlier = Node()
    limit(earlier, Limits(concurrency=1))
    assert isinstance(earlier.engine, MemoryEngine)
    stored = earlier.engine.tables.limits
    (key,) = stored
    written, stored[key] = stored[key], decode_limits(b"\x93\xc1", b"f", 1)
    node = earlier.restart()
    worker, other = node.stream(places=5), node.stream("g")
    node.background("1")
    node.background("2", "g")
    assert (given(worker), given(other)) == ([], ["2"])
    node.service.functions.declare(b"f", Limits(concurrency=7))
    refused: list[object] = []
    CallInProgress(node.service.functions.change(b"f", lambda row, _: rules.resumed(row)), unexpected, refused.append)
    node.commit()
    assert "cannot read the limits" in str(refused)
    assert isinstance(stored[key], UnreadableLimits), "no write loses them"
    stored[key] = written
    node = node.restart()
    worker = node.stream(places=5)
    node.commit()
    assert given(worker) == ["1"]


def test_times_of_a_function_are_those_of_new_jobs_without_any_and_outlive_the_node() -> None:
    node = Node()
    node.service.functions.declare_times(node.stream(), {b"f": Times(start_within=5.0, deadline=60.0)})
    own = Options(deadline_us=7)
    first, second = node.submit(node.job("1"), node.job("2", options=own))
    node.commit()
    for job, deadline_us in ((first, base_us(first) + 60 * SECOND), (second, 7)):
        assert job.options == Options(start_us=base_us(job) + 5 * SECOND, deadline_us=deadline_us)
    later = Node(node)
    (third,) = later.submit(later.job("3"))
    assert third.options is not None
    assert third.options.deadline_us == base_us(third) + 60 * SECOND


def test_jobs_of_a_slice_have_the_times_of_their_functions() -> None:
    node = Node()
    node.service.functions.declare_times(node.stream(), {b"f": Times(deadline=60.0)})
    job = node.job("1")
    assert node.service.lifecycle.reserve(job, node.service.term)
    assert job.options == Options(deadline_us=base_us(job) + 60 * SECOND)


def test_times_are_repeated_while_their_worker_is_connected() -> None:
    node = Node()
    worker = node.stream()
    node.service.functions.declare_times(worker, {b"f": Times(deadline=60.0)})
    node.commit()
    first = node.service.functions.limits_of(b"f")
    for minute in range(12):
        node.wait(15)
        node.commit()
        if minute == 7:
            node.service.workers.gone(worker)
            last = node.service.functions.limits_of(b"f")
    assert last.times[0].first_us == first.times[0].first_us
    assert last.times[0].last_us > first.times[0].last_us
    assert node.service.functions.limits_of(b"f") == last

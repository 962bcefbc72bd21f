"""A node looks at managed resources, and submits the jobs that create, check and release instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.jobs.model import State
from mainspring.jobs.tending import LOST_AFTER_US
from mainspring.resources.holds import Line, Resource
from mainspring.resources.instances import InstanceState
from mainspring.resources.managed import Managed
from mainspring.resources.rules import Limits

from .a_node import Node, side

if TYPE_CHECKING:
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.tending import Tending
    from mainspring.resources.instances import Instance

MINUTE = 60
SECOND = 1_000_000
SPARK = Managed(1, idle_us=8 * MINUTE * SECOND, check_us=MINUTE * SECOND)
STARTING, READY, RELEASING, GONE = (
    InstanceState.STARTING,
    InstanceState.READY,
    InstanceState.RELEASING,
    InstanceState.GONE,
)


class Crew:
    """A node whose workers have a function that uses a resource, and the class of its instances."""

    def __init__(self, node: Node, managed: Managed = SPARK) -> None:
        self.node = node
        ability: dict[str, Any] = {"resources": (("s", Resource(managed=managed)),)}
        self.user: Worker = node.stream("f", places=4, limits=Limits(uses=(Line("s"),)), **ability)
        self.steps: Worker = node.stream("s.create", "s.check", "s.release", places=100, **ability)
        node.commit()
        self.tending: Tending = node.service.tending(lambda _: True)
        self.answered: list[tuple[str, dict[str, Any]]] = []

    def look(self) -> None:
        """Look once."""
        self.tending.check(self.node.clock.monotonic())
        self.node.commit()

    def wait(self, seconds: int, *, answers: bool = True) -> None:
        """Let time pass, with a look each second; the jobs of steps are answered."""
        for _ in range(seconds):
            self.node.wait(1)
            self.look()
            if answers:
                self.answer()

    def answer(self) -> None:
        """Let the jobs of steps succeed."""
        for held in [*self.steps.running.values()]:
            self.end(held)

    def end(self, held: Held) -> None:
        """Let the job of a step succeed."""
        step = held.job.function.decode().partition(".")[2]
        self.answered.append((step, msgspec.json.decode(held.job.payload)))
        self.node.settling.succeeded(held, b'{"state": "healthy"}' if step == "check" else b'{"id": 7}')
        self.node.service.workers.ready(self.steps, 100)
        self.node.commit()

    @property
    def steps_done(self) -> list[str]:
        """The steps that were done, but for checks."""
        return [step for step, _ in self.answered if step != "check"]

    def instances(self) -> list[Instance]:
        """Return the stored instances."""
        assert isinstance(self.node.engine, MemoryEngine)
        return [*self.node.engine.tables.instances.values()]

    def states(self) -> list[int]:
        """Return their states."""
        return [one.state for one in self.instances()]


@pytest.fixture
def crew(node: Node) -> Crew:
    return Crew(node)


def test_a_job_gets_an_instance_that_is_created_for_it_and_its_meta(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(3)
    (held,) = side(crew.user).given
    assert held.slots is not None
    assert held.slots.metas == (("s", "1", b'{"id": 7}'),)
    assert crew.steps_done == ["create"]
    (_, order) = crew.answered[0]
    assert (order["fields"], order["meta"], order["repeated"]) == ({}, None, False)


def test_the_cluster_is_still_there_when_its_user_is_late(crew: Crew) -> None:
    """It is idle for eight minutes at most, and the step is submitted nine minutes after it is ready."""
    crew.node.background("decider")
    crew.wait(9 * MINUTE)
    assert side(crew.user).pop_events() == ["job decider"]
    assert crew.states() == [READY]
    crew.node.settling.succeeded(side(crew.user).given[0], b"")
    crew.wait(8 * MINUTE - 2)
    assert crew.states() == [READY]
    crew.node.background("step")
    crew.wait(1)
    assert side(crew.user).pop_events() == ["job step"]
    assert crew.steps_done == ["create"], "on the same cluster"


def test_the_cluster_is_still_there_after_a_stall_of_the_node(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(3)
    crew.node.settling.succeeded(side(crew.user).given[0], b"")
    crew.wait(2)
    crew.node.clock.advance(9 * MINUTE)
    crew.wait(5)
    crew.node.background("step")
    crew.wait(2)
    assert crew.steps_done == ["create"]


def test_the_cluster_is_still_there_after_a_step_of_the_wall_clock(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(3)
    crew.node.settling.succeeded(side(crew.user).given[0], b"")
    crew.wait(2)
    crew.node.clock.step(3600.0)
    crew.wait(5)
    crew.node.clock.step(-3600.0)
    crew.wait(5)
    assert crew.states() == [READY]


def test_an_idle_instance_is_released_and_another_one_made_later(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(3)
    crew.node.settling.succeeded(side(crew.user).given[0], b"")
    crew.wait(8 * MINUTE + 5)
    assert crew.states() == [GONE]
    assert crew.steps_done == ["create", "release"]
    crew.node.background("b")
    crew.wait(4)
    keys = [order["key"] for step, order in crew.answered if step == "create"]
    assert len({*keys}) == 2
    assert crew.states() == [GONE, READY]


def test_a_job_is_stopped_whose_instance_is_broken_and_gets_another_one(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(3)
    assert side(crew.user).pop_events() == ["job a"]
    while not (checks := [held for held in crew.steps.running.values() if held.job.function == b"s.check"]):
        crew.wait(1, answers=False)
    crew.node.settling.succeeded(checks[0], b'{"state": "broken", "text": "no disk"}')
    crew.node.service.workers.ready(crew.steps, 100)
    crew.wait(20)
    events = side(crew.user).pop_events()
    assert [event.partition(":")[0] for event in events] == ["stop a", "job a"]
    assert crew.steps_done == ["create", "release", "create"]
    assert crew.states() == [GONE, READY]


def test_a_burst_of_looks_submits_one_job_for_a_step(crew: Crew) -> None:
    crew.node.background("a")
    others = [crew.node.service.tending(lambda _: True) for _ in range(3)]
    for _ in range(5):
        for one in (crew.tending, *others):
            one.check(crew.node.clock.monotonic())
    crew.node.commit()
    crew.wait(3, answers=False)
    assert len(crew.steps.running) == 1


def test_a_cancelled_job_of_a_step_is_repeated_with_the_same_key(crew: Crew) -> None:
    crew.node.background("a")
    crew.wait(2, answers=False)
    (held,) = crew.steps.running.values()
    first = msgspec.json.decode(held.job.payload)
    crew.node.settling.failed(held, b'{"type": "E", "message": "no quota", "traceback": ""}', final=True)
    crew.node.service.workers.ready(crew.steps, 100)
    crew.wait(2)
    (one,) = crew.instances()
    assert (one.state, one.text) == (STARTING, "E: no quota")
    crew.wait(5 * MINUTE + 2)
    (_, second) = crew.answered[0]
    assert (second["key"], second["repeated"], first["repeated"]) == (first["key"], True, False)
    assert crew.states() == [READY]


def test_a_job_that_never_reached_the_store_is_replaced(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(crew.tending, "_submit", lambda *_: None)  # as by a crash after the decision
        crew.node.background("a")
        crew.wait(2)
    (lost,) = crew.instances()
    next_node = Crew(crew.node.restart())
    next_node.wait(LOST_AFTER_US // SECOND - 5)
    assert next_node.steps_done == [], "its node may still submit it"
    next_node.wait(10)
    (_, order) = next_node.answered[0]
    assert (order["key"], order["repeated"]) == (lost.key, True)
    assert next_node.states() == [READY]


def test_steps_wait_as_jobs_for_a_worker_with_the_class(node: Node) -> None:
    node.stream("f", limits=Limits(uses=(Line("s"),)), resources=(("s", Resource(managed=SPARK)),))
    node.commit()
    tending = node.service.tending(lambda _: True)
    node.background("a")
    for _ in range(100):
        node.wait(1)
        tending.check(node.clock.monotonic())
        node.commit()
    assert isinstance(node.engine, MemoryEngine)
    (one,) = node.engine.tables.instances.values()
    assert (one.state, one.tries, node.state(one.job)) == (STARTING, 1, State.PENDING)


@pytest.mark.parametrize("interval", [0.0, 30.0])
def test_a_node_that_is_not_first_in_line_looks_at_what_its_workers_have_just_declared(
    crew: Crew, interval: float
) -> None:
    tending = crew.node.service.tending(lambda _: False, interval)
    crew.node.background("a")
    for _ in range(5):
        crew.node.wait(1)
        tending.check(crew.node.clock.monotonic())
        crew.node.commit()
    assert len(crew.instances()) == bool(interval)

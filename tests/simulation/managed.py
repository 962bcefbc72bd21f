"""A node with managed resources, and the cloud in which their instances are.

The cloud notes what really happens, by a clock that nobody sets: how many clusters there are, which are used, and since when they
are not. Jobs of steps succeed, fail, lose their answers and are cancelled; the node stalls, crashes and gets other wall times;
looks come in bursts and from several lookers at once.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.resources.holds import Line, Resource
from mainspring.resources.instances import InstanceState
from mainspring.resources.managed import Backoff, Managed
from mainspring.resources.rules import Limits
from tests.unit.jobs.a_node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.tending import Tending
    from mainspring.resources.instances import Instance

IDLE: Final = 120
MOST: Final = 2
DEFINITION: Final = Managed(
    MOST, slots=2, idle_us=IDLE * 1_000_000, check_us=40_000_000, backoff=Backoff(1, maximum=20.0)
)
FAILURE: Final = b'{"type": "OSError", "message": "the answer was lost", "traceback": ""}'
STEPS: Final = 120


class SimulationError(Exception):
    """A promise is broken."""


class World:
    """One run of the simulation."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._node = Node()
        self._users: Worker
        self._steps: Worker
        self._lookers: list[Tending]
        self._clusters: dict[str, str] = {}
        """Those that exist: the number of each in its key, by key."""
        self._keys: dict[str, str] = {}
        self._used: dict[str, float] = {}
        """The monotonic time at which a cluster was created, or somebody had it last, by its number."""
        self._begin()

    def _begin(self) -> None:
        ability: dict[str, Any] = {"resources": (("s", Resource(managed=DEFINITION)),)}
        self._users = self._node.stream("f", places=50, limits=Limits(uses=(Line("s"),)), **ability)
        self._steps = self._node.stream("s.create", "s.check", "s.release", places=50, **ability)
        self._node.commit()
        self._lookers = [self._node.service.tending(lambda _: True) for _ in range(2)]

    def run(self) -> None:
        """Run, and then end all jobs: every cluster has to be released. Raises SimulationError."""
        acts: list[Callable[[], None]] = [self._submit, self._end_user, self._end_user, self._stall, self._step_clock]
        acts += [self._cancel, self._crash, *[self._answer] * 3, *[self._wait] * 8]
        for _ in range(STEPS):
            self._random.choice(acts)()
            self._look(self._random.choice([1, 1, 1, 20]))
        while self._users.running or self._waiting():
            for held in [*self._users.running.values()]:
                self._end(held)
            self._pass(1)
        for _ in range(3 * IDLE):
            if self._clusters:
                self._pass(1)
        self._pass(10)
        self._check(not self._clusters, f"the clusters {[*self._clusters]} are left behind")

    def _waiting(self) -> bool:
        return any(self._node.stored(job).state < 4 for job in self._jobs())

    def _jobs(self) -> Iterable[int]:
        assert isinstance(self._node.engine, MemoryEngine)
        return [job.id for job in self._node.engine.tables.jobs.values() if job.function == b"f"]

    @staticmethod
    def _check(is_right: bool, text: str) -> None:
        if not is_right:
            raise SimulationError(text)

    # ---- acts ----

    def _submit(self) -> None:
        self._node.background("a")

    def _end_user(self) -> None:
        if self._users.running:
            self._end(self._random.choice([*self._users.running.values()]))

    def _end(self, held: Held) -> None:
        self._see()
        if self._random.random() < 0.5:
            self._node.settling.succeeded(held, b"")
        else:
            self._node.settling.failed(held, FAILURE, final=True)
        self._node.service.workers.ready(self._users, 50)
        self._node.commit()

    def _answer(self) -> None:
        if self._steps.running:
            self._do(self._random.choice([*self._steps.running.values()]), self._random.random())

    def _cancel(self) -> None:
        if self._steps.running:
            held = self._random.choice([*self._steps.running.values()])
            self._do(held, 2.0)

    def _stall(self) -> None:
        self._see()
        self._node.clock.advance(self._random.choice([20, 40, IDLE - 5, IDLE + 5, 600]))

    def _step_clock(self) -> None:
        self._node.clock.step(self._random.choice([-3600.0, -10.0, 45.0, 3600.0]))

    def _crash(self) -> None:
        self._see()
        self._node = self._node.restart()
        self._begin()

    def _wait(self) -> None:
        self._pass(self._random.choice([1, 5, 30]))

    def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self._node.wait(1)
            self._look(1)
            for held in [*self._steps.running.values()]:
                self._do(held, 0.9)

    def _look(self, times: int) -> None:
        self._see()
        for _ in range(times):
            looker = self._random.choice(self._lookers)
            before = {one.name: one.state for one in self._instances()}
            looker.check(self._node.clock.monotonic())
            self._node.commit()
            self._compare(before)
        self._see()

    # ---- the cloud ----

    def _do(self, held: Held, outcome: float) -> None:
        """Do a step. Below 0.2 it fails, below 0.4 its answer is lost; above 1 its job is cancelled when it is done."""
        step, order = held.job.function.decode().partition(".")[2], msgspec.json.decode(held.job.payload)
        key = order["key"]
        number = key.split("-")[1]
        if outcome >= 0.2 and step == "create":
            self._check(self._keys.setdefault(number, key) == key, f"{number} is created under a second key")
            self._clusters[key] = number
            self._used[number] = self._node.clock.monotonic()
            self._check(len(self._clusters) <= MOST, f"there are {len(self._clusters)} clusters")
        elif outcome >= 0.2 and step == "release":
            users = [one for one in self._users.running.values() if self._item(one) == number]
            self._check(not users, f"{number} is released while somebody uses it")
            self._clusters.pop(key, None)
        if outcome > 1.0:
            self._node.cancel(held.job.id)
            self._node.settling.failed(held, FAILURE, final=True)
        elif outcome < 0.4:
            self._node.settling.failed(held, FAILURE, final=True)
        else:
            self._node.settling.succeeded(held, b'{"state": "healthy"}' if step == "check" else b"{}")
        self._node.service.workers.ready(self._steps, 50)
        self._node.commit()

    @staticmethod
    def _item(held: Held) -> str:
        holds = None if held.slots is None else held.slots.holds
        return holds[0].item if holds else ""

    def _instances(self) -> list[Instance]:
        assert isinstance(self._node.engine, MemoryEngine)
        return [*self._node.engine.tables.instances.values()]

    def _see(self) -> None:
        for held in self._users.running.values():
            self._used[self._item(held)] = self._node.clock.monotonic()

    def _compare(self, before: dict[str, int]) -> None:
        """Check that those which a look releases were idle for long enough, by the clock that nobody sets."""
        for one in self._instances():
            if before.get(one.name) == InstanceState.READY and one.state == InstanceState.RELEASING:
                idle = self._node.clock.monotonic() - self._used[one.name]
                self._check(idle >= IDLE, f"{one.name} is released after {idle} seconds: {one.text}")


def simulate(seeds: Iterable[int]) -> None:
    """Run worlds. Raises SimulationError with the seed of the first that breaks a promise."""
    for seed in seeds:
        try:
            World(seed).run()
        except SimulationError as error:
            raise SimulationError(f"seed {seed}: {error}") from error

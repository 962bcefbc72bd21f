"""A fleet whose jobs use resources: whatever happens, no slot has two holders, and nobody waits for slots that nobody has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import Act
from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.engines.memory.holds import MemoryHolds
from mainspring.jobs.model import State
from mainspring.resources.definition_store import StoredResource
from mainspring.resources.hold_store import FindHolds, find
from mainspring.resources.holds import Line, counted, named
from mainspring.resources.rules import Declaration, FunctionLimits, Limits
from mainspring.storage.engine import run_synchronously
from tests.simulation.actors import FUNCTIONS

from .world import FleetWorld

if TYPE_CHECKING:
    from mainspring.jobs.held import Held
    from mainspring.resources.hold_store import Holding

TOTAL: Final = 2
SLOTS: Final = {("licence", ""): TOTAL, ("printer", "p1"): 1, ("printer", "p2"): 1}
USES: Final = {
    b"f": (Line("licence"),),
    b"g": (Line("licence", TOTAL), Line("printer", 1, ("colour",))),
    b"h": (Line("printer"),),
}
_DAY_US: Final = 86_400_000_000
_ACT: Final = Act("resources.take", "ann")


class ResourceWorld(FleetWorld):
    """One run with resources that are set before the first node starts. An operator takes slots of jobs away."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.taken = 0
        """The number of acts of the operator that a node has confirmed."""
        self.most = 0
        """The number of checks at which all slots of a resource were held."""

    def _begin(self, name: str) -> None:
        tables = self.content.tables
        if not tables.resources:
            assert {*USES} == {*FUNCTIONS}
            for one, resource in (("licence", counted(TOTAL)), ("printer", named({"p1": {"colour"}, "p2": ()}))):
                tables.resources[one] = StoredResource(one, commanded=resource, version=1)
            now_us = to_us(self.clock.wall())
            for function, lines in USES.items():
                # The clocks of nodes may be wrong by an hour.
                declared = Declaration(Limits(uses=lines), first_us=now_us - _DAY_US, last_us=now_us + 30 * _DAY_US)
                tables.limits[function] = FunctionLimits(function, declared=(declared,), version=1)
        super()._begin(name)

    # ---- the operator ----

    def step(self) -> None:
        """Do one random action."""
        if self.chance.random() < 0.01:
            self._take()
        super().step()

    def _take(self) -> None:
        lives = [life for life in self.lives.values() if life.ready and not life.closed and not life.stopped]
        holds = sorted(hold for one in self.holdings() for hold in one.holds)
        if lives and holds:
            lost_slots = self.chance.choice(lives).service.lost_slots
            taking = lost_slots.take(self.chance.choice(holds), _ACT, cancel=self.chance.random() < 0.2)
            CallInProgress(taking, lambda _: self._has_taken(), lambda _: None)

    def _has_taken(self) -> None:
        self.taken += 1

    # ---- invariants ----

    def holdings(self) -> list[Holding]:
        """Return the valid holds and requests."""
        tables = MemoryHolds(self.content.tables)
        return run_synchronously(find(tables, FindHolds(("licence", "printer"), to_us(self.clock.wall()))))

    def assigned(self, handle: bytes) -> None:
        """Check the slots at the assignment of a job."""
        super().assigned(handle)
        self._check_slots()

    def check(self) -> None:
        """Check the invariants of any moment."""
        super().check()
        self._check_slots()

    def _check_slots(self) -> None:
        jobs = self.content.tables.jobs
        holdings = self.holdings()
        used: Counter[tuple[str, str]] = Counter()
        of_holder: dict[tuple[int, str], int] = {}
        for hold in (hold for one in holdings for hold in one.holds):
            job = jobs.get(hold.holder.id)
            assert job is not None, f"{hold} is of a job that is gone"
            assert State(job.state).held, f"{hold} is of a job that is {State(job.state).name}"
            assert job.term == hold.holder.term, f"{hold} is of a job that another lease has"
            used[hold.resource, hold.item] += hold.units
            key = hold.holder.id, hold.resource
            of_holder[key] = of_holder.get(key, 0) + hold.units
        for slot, number in used.items():
            assert number <= SLOTS[slot], f"{slot} has {number} holders, and {SLOTS[slot]} may"
            self.most += number == SLOTS[slot]
        for (job_id, resource), units in of_holder.items():
            wanted = sum(line.units for line in USES[jobs[job_id].function] if line.resource == resource)
            assert units == wanted, f"{job_id} has {units} of {resource}, and asked for {wanted}"
        for held in self._running():
            has = sum(of_holder.get((held.job.id, line.resource), 0) for line in USES[held.queue.name])
            wanted = sum(line.units for line in USES[held.queue.name])
            assert has == wanted, f"{held.job.id} runs with {has} slots, and needs {wanted}"

    def _running(self) -> list[Held]:
        """Return the running jobs of nodes with valid leases; others stop theirs."""
        running: list[Held] = []
        for life in self.lives.values():
            if life.ready and not life.closed and not life.store.is_over():
                held = life.service.table.held.values()
                running += [one for one in held if one.worker is not None and one.queue.name in USES]
        return running

    def run_without_faults(self) -> None:
        """Run without faults until all jobs have ended. Nobody holds or awaits anything then."""
        super().run_without_faults()
        left = [one for one in self.holdings() if one.holds or one.requests]
        assert not left, f"leaked: {left}"

"""The part of a simulated node's world that workers and clients use: it executes their work, and checks what they see."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.ids import Handles
from mainspring.jobs.model import State
from mainspring.testing import ManualClock
from mainspring.workflows import history
from tests.simulation.wires import Wire

from .accounts import Accounts
from .program import KINDS
from .virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.model import Job
    from tests.simulation.actors import Actor
    from tests.simulation.life import Life

_json = msgspec.json.decode


class FlowStage:
    """The stage of one seed: `actors.Stage` and `program.Stage`."""

    life: Life
    """The present life of the node."""

    def __init__(self, seed: int, kinds: Sequence[str] = (), *, chains: bool = False) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.calm = False
        self.prepare(kinds, chains=chains)

    def prepare(self, kinds: Sequence[str] = (), *, chains: bool = False) -> None:
        """Choose what the seed has."""
        chance = self.chance
        self.accounts = Accounts(self.clock)
        self.load = chance.choice((1.0, 0.3))
        self.most_runs = chance.choice((3, 6, 12))
        self.kinds = ["relay"] if chains else [*kinds] or chance.sample(KINDS, chance.choice((2, 3, len(KINDS))))
        self.deadly = chance.random() < 0.1
        """Whether decisions often kill their workers."""
        self.slow_activations = chance.random() < 0.2
        self.brief_steps = chance.random() < 0.5
        self.violations: list[AssertionError] = []
        """The errors of checks inside the code of users."""
        self.started: dict[int, dict[str, Any]] = {}
        """Acknowledged starts."""
        self.submitted: dict[int, str] = {}
        """Acknowledged jobs of workflows, whose runs may begin later, with the names of their workflows."""
        self.requests: list[tuple[int, dict[str, Any]]] = []
        """Acknowledged signals and requests to cancel."""
        self.may_be_cancelled: set[str] = set()
        """Handles of the runs and jobs that clients have asked to cancel."""
        self._number = 0
        self._dead: set[VirtualLoop] = set()

    # ---- calls of actors ----

    def connect(self, actor: Actor) -> Wire:
        def see(kind: int, args: list[bytes]) -> None:
            if actor.wire is wire:
                actor.see(kind, args)

        wire = Wire(self.life, see)
        self.life.wires.append(wire)
        return wire

    def died(self, loop: VirtualLoop) -> None:
        """Ignore everything that the process of a loop does from now on."""
        self._dead.add(loop)

    def handle_of(self, run: int) -> str:
        return f"H:n:{run}"

    def some_job(self) -> str:
        """Return the handle of a job that does something for a run, or did: operators may cancel it by hand."""
        accounts = list(self.accounts.runs.values())
        account = self.chance.choice(accounts) if accounts else None
        if account is None:
            return self.handle_of(7_000_000_000_001)
        jobs = [account.decision, *(activity.job for activity in account.activities.values())]
        return self.handle_of(self.chance.choice(jobs))

    def signal_value(self) -> int:
        self._number += 1
        return self._number

    def next_number(self, run: int, label: str) -> int:
        self._number += 1
        self.accounts.executed[self._number] = run, label
        return self._number

    async def execute(self, run: int, label: str, *, step: bool) -> int:
        """See `program.Stage`."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if loop in self._dead:
            await loop.create_future()  # until it is cancelled
        if step and not loop.owner.stood_still:
            try:
                self.accounts.step_begins(run, label)
            except AssertionError as error:  # it would be the step's failure
                self.violations.append(error)
        number = 0.0 if self.calm else self.chance.random()
        if number > (0.8 if self.brief_steps else 0.4):
            await asyncio.sleep(self.chance.choice((0.01, 0.2, 1.0, 4.0)))
        if 0 < number < 0.08:
            raise ValueError(label)
        return self.next_number(run, label)

    def side(self, run: int) -> int:
        """See `program.Stage`."""
        return self.next_number(run, "side")

    def activation_time(self) -> float:
        """Return a time for the beginning or the end of an activation."""
        self._number += 1
        return self.clock.monotonic() + (self.chance.choice((0.0, 0.03)) if self.slow_activations else 0.0)

    # ---- calls of plain workers ----

    def result_of(self, handle: bytes, worker: str) -> bytes:
        del worker
        job_id = _id(handle)
        for account in self.accounts.runs.values():
            for scheduled in account.activities.values():
                if scheduled.job == job_id:
                    label = str(_json(scheduled.input)[1])
                    return b"%d" % self.next_number(account.run, label)
        return b"%d" % self.next_number(0, "late")

    def assigned(self, handle: bytes) -> None:
        """Check that an assigned job is leased to this life of the node."""
        job = self.life.store.find(_id(handle))
        assert job is not None, f"{handle!r} is assigned and not stored"
        assert State(job.state).held, f"{handle!r} is assigned while it is {State(job.state).name}"
        assert job.term == self.life.term, f"{handle!r} is assigned under an old lease"

    def must_have_ended(self, handle: bytes, why: str) -> None:
        job = self.life.store.find(_id(handle))
        assert job is None or State(job.state).ended, f"{handle!r}: {why}"

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """Check that a job of a workflow is stored: its run begins at once if a worker has registered the workflow."""
        del unique
        job = self.life.store.find(_id(handle))
        assert job is not None, f"{handle!r} is acknowledged and not stored"
        assert job.function == function, f"{handle!r} is another job's answer"
        self.submitted[job.id] = function.decode()

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check that an outcome is that of a run, and committed."""
        chain = self.accounts.chain(_id(handle))
        if not chain:
            assert state == b"cancelled", f"{handle!r} is reported as {state!r}, and has not begun"
            return
        account = chain[-1]
        assert account.close is not None, f"{handle!r} is reported as {state!r}, and its run is open"
        if state == b"succeeded":
            assert account.close.result == result, f"{handle!r} has the result of another run"

    # ---- acknowledgements ----

    def start_acknowledged(self, run: int, params: dict[str, Any]) -> None:
        if run in self.accounts.runs:
            self.started[run] = params
        else:  # it has joined a job that waits
            job = self.life.store.find(run)
            assert job is not None, f"{run} is acknowledged and not begun"
            assert not State(job.state).ended, f"{run} is acknowledged and not begun"
            self.submitted[run] = params["function"]

    def request_acknowledged(self, run: int, params: dict[str, Any]) -> None:
        self.requests.append((run, params))
        if run in self.accounts.runs:
            self.check_request(run, params)

    def check_request(self, run: int, params: dict[str, Any]) -> None:
        account = self.accounts.runs.get(run)
        if account is None:
            assert not self.waiting_job(run), f"{params} is acknowledged, and its run has not begun"
            return
        chain = self.accounts.chain(account.root)
        if "value" in params:
            values = [[_json(event.input) for event in one.of(history.WorkflowExecutionSignaled)] for one in chain]
            counts = [of_run.count(params["value"]) for of_run in values]
            assert max(counts) == 1, f"signal {params} is {counts} times there"
        else:
            asked = [one for one in chain if one.of(history.WorkflowExecutionCancelRequested)]
            assert asked, f"{params} is acknowledged and not recorded"

    def waiting_job(self, run: int) -> Job | None:
        """Return the job of a run that has not begun; None if it was cancelled, and perhaps deleted since."""
        job = self.life.store.find(run)
        if job is None or State(job.state).ended:
            assert self.handle_of(run) in self.may_be_cancelled, f"{job or run} has ended, and nobody has cancelled it"
            return None
        return job


def _id(handle: bytes) -> int:
    job_id = Handles.parse(handle)
    assert job_id is not None
    return job_id

"""A world that drives random workflows at random; replays compare the commands of every prefix of their histories.

As a script it replays histories from stdin and prints a digest of the turns of each prefix::

    python -m tests.unit.workflow_code.recordings < histories > digests
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any, NamedTuple

import msgspec
from tests.unit.workflow_code.fake_node import FakeNode, FakeWorker
from tests.unit.workflow_code.other_runs import OtherRuns
from tests.unit.workflow_code.programs import CODE, deployed, make, recording

from mainspring.jobs.model import JobFailure
from mainspring.workflow_code.instance import Instance
from mainspring.workflows.history import Event, WorkflowExecutionContinuedAsNew, decode_events
from mainspring.workflows.model import Limits
from mainspring.workflows.requests import FailWorkflowExecution

# ---- the world ----


class Recorded(NamedTuple):
    """A history, with the last events of its transactions."""

    seed: int
    events: list[Event]
    commits: list[int]


def record(seed: int) -> Recorded:
    """Run a random program with a random world, up to the end of its first run."""
    return record_chain(seed, 1)[0]


def record_chain(seed: int, most: int = 3) -> list[Recorded]:
    """Run a random program with a random world, up to the end of its last run, or of so many.

    Every other recording begins with the old code.
    """
    chance = random.Random(seed)
    recording.append(True)
    if seed % 2:
        deployed.clear()
    limits = Limits(warn_bytes=chance.choice((600, 1_200, 2_400)))
    program = msgspec.json.encode([make(chance, 3 + seed % 2)])
    node = FakeNode(program, seed=seed * 7919 + 1, limits=limits, others=OtherRuns(chance, ["child"]))
    chain = []
    try:
        while True:
            _run(node, chance)
            chain.append(Recorded(seed, node.events, node.commits))
            if not isinstance(node.closed, WorkflowExecutionContinuedAsNew) or len(chain) == most:
                return chain
            node = FakeNode(limits=limits, others=node.others, after=node)
    finally:
        recording.clear()
        deployed[:] = [True]


def _run(node: FakeNode, chance: random.Random) -> None:
    """Go on at random until the run is closed. Late answers and ends of children then change nothing."""
    worker = FakeWorker(CODE, node)
    for round_number in range(2000):
        if node.closed is not None:
            worker.instance.evict()
            last = node.state.last
            node.do_errands(100)
            assert node.state.last == last
            return
        worker.hold = chance.random() < 0.5
        worker.errands = chance.choice((0, 1, 100, 100))
        choices = ["decide"] * 3 if node.decision_waits and not worker.decides else []
        if worker.decides:
            choices += ["steps"] * 4
        if node.activities:
            choices += ["activities"] * 4
        if node.state.timers:
            choices += ["timer"]
        if node.others.errands:
            choices += ["errands"] * 3
        if node.children:
            choices += ["children"]
        if round_number < 100:
            choices += ["signal"]
            choices += ["restart", "lose"] if chance.random() < 0.3 else []
            choices += ["cancel"] if chance.random() < 0.005 else []
        _do(chance.choice(choices or ["signal"]), chance, node, worker)
    raise AssertionError("the run does not end")


def _do(choice: str, chance: random.Random, node: FakeNode, worker: FakeWorker) -> None:
    match choice:
        case "decide":
            turn = worker.decide()
            assert turn.parked is None, turn.parked
        case "lose":  # the worker dies before its report arrives
            if node.decision_waits and not worker.decides:
                worker.decide_only()
                worker.restart()
        case "restart":
            worker.restart()
            if chance.random() < 0.5:
                deployed[:] = [True]
        case "steps":
            numbers = list(worker.running)
            chance.shuffle(numbers)
            worker.end_steps(*numbers[: chance.randint(1, len(numbers))])
        case "activities":
            ids = list(node.activities)
            chance.shuffle(ids)
            chosen = ids[: chance.randint(1, 3)]
            error = "ValueError" if chance.random() < 0.15 else ""
            node.end_activity(*chosen, result=chance.randrange(1000), error=error, attempt=chance.randint(1, 3))
        case "errands":
            node.do_errands(chance.randint(1, 3))
        case "children":
            ended = list(node.children)
            chance.shuffle(ended)
            node.end_children(*ended[: chance.randint(1, 5)])
        case "timer":
            node.fire()
        case "signal":
            node.now_us += chance.randrange(2_000_000)
            node.signal(f"c{chance.randrange(3)}", chance.randrange(1000))
        case "cancel":
            node.request_cancel("enough")


# ---- replays ----


def digest_of_prefixes(recorded: Recorded) -> list[str]:
    """Return a digest of the turn that follows each prefix of a history.

    Every prefix is replayed by a new instance. Another instance goes on from prefix to prefix, as in a worker, and is evicted at
    random; its turn must be the same.
    """
    chance = random.Random(recorded.seed)
    digests = []
    warm = Instance(CODE, 1)
    for last in recorded.commits[:-1]:
        events = recorded.events[:last]
        now_us = events[-1].at_us + 1
        cold = Instance(CODE, 1)
        turn = cold.deliver(events, now_us)
        assert turn.parked is None, (recorded.seed, last, turn.parked)
        warm.recorded(events[warm.position :])
        if chance.random() < 0.2:
            warm.evict()
            warm = Instance(CODE, 1)
            repeated = warm.deliver(events, now_us)
            assert repeated == turn, (recorded.seed, last, repeated, turn)
            warm.evict()
            warm = Instance(CODE, 1)
        digests.append(digest_of_turn(turn, cold))
        cold.evict()
    warm.evict()
    return digests


def digest_of_turn(turn: Any, instance: Instance) -> str:
    """Return a digest of a turn. It leaves out tracebacks: they name files, lines and the interpreter, and no replay compares
    them.
    """
    shown = [
        [_show(one) for one in turn.decisions],
        [(one.number, one.name, one.payload, one.record, one.at_once) for one in turn.start],
        turn.finished,
        turn.waits,
        instance.seen,
        instance.now_us,
    ]
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()


def _show(decision: Any) -> str:
    if isinstance(decision, FailWorkflowExecution):
        failure = msgspec.json.decode(decision.details, type=JobFailure)
        return repr((decision.number, decision.reason, failure.type, failure.message))
    return repr(decision)


def main() -> None:
    """Replay the histories of stdin, and print the digests."""
    sys.setrecursionlimit(5000)
    rows = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[tuple[int, msgspec.Raw, list[int]]])
    for recorded in (Recorded(seed, decode_events(events), commits) for seed, events, commits in rows):
        print(recorded.seed, *digest_of_prefixes(recorded))  # noqa: T201


if __name__ == "__main__":
    main()

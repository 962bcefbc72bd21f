"""The simulation on ZooKeeper detects planted faults: each test removes one guard, and the runs must fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import master, paths, recovering
from mainspring.engines.zookeeper.claiming import Claims
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.tree import Check, Done, RefreshedTree, Refused, Write
from mainspring.faces.gearman.peer import Peer
from mainspring.jobs import sharing
from mainspring.jobs.service import JobService

from .stores import SimulationError
from .wires import wait_for_answers
from .zookeeper.ensemble import Way
from .zookeeper.running import simulate_zookeeper
from .zookeeper.serving import LossyMail, ServingWorld
from .zookeeper.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.changing import Plan
    from mainspring.engines.zookeeper.queries import LocatedJob, Name
    from mainspring.engines.zookeeper.sessions import Completion, Waiting
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.ids import Term
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import ClaimRequest

Plant = pytest.MonkeyPatch
SEEDS = 60


def is_caught(*, by: str, kind: type[World] = World) -> None:
    """Check that one of the runs fails for the right reason. (Others may fail for its consequences.)"""
    for seed in range(SEEDS):
        try:
            simulate_zookeeper(seed, kind=kind)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("no run has detected the fault")


def rewrite(monkeypatch: Plant, careless: Callable[[Change], Change]) -> None:
    """Replace the changes of every multi."""
    commit = Way.commit

    async def commit_carelessly(self: Way, changes: Sequence[Change]) -> Done | Refused:
        return await commit(self, [careless(change) for change in changes])

    monkeypatch.setattr(Way, "commit", commit_carelessly)


def test_batches_without_a_check_of_the_worker_are_detected(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        if isinstance(change, Check) and change.path.startswith(f"{paths.WORKERS}/"):
            return Check(paths.WORKERS)
        return change

    rewrite(monkeypatch, careless)
    is_caught(by="whose term has ended, has happened")


def test_batches_without_the_journals_version_are_detected(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        if isinstance(change, Write) and change.path.startswith(f"{paths.JOURNALS}/"):
            return Write(change.path, change.data)
        return change

    rewrite(monkeypatch, careless)
    is_caught(by="happens after batch")


def test_a_master_without_the_guard_of_its_term_is_detected(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        return Check(change.path) if isinstance(change, Check) and change.path == paths.MASTER_TERM else change

    rewrite(monkeypatch, careless)
    is_caught(by="assigns or publishes after")


def test_a_publication_that_keeps_the_name_is_detected(monkeypatch: Plant) -> None:
    entry = master.entry

    def careless(one: Completion, result: int | None, name: Name | None = None) -> Entry:
        del name
        return entry(one, result, None)

    monkeypatch.setattr(master, "entry", careless)
    is_caught(by="never ends: .*'/names/")


def test_a_recovery_that_skips_a_task_is_detected(monkeypatch: Plant) -> None:
    given_back = recovering.given_back

    def forgetful(who: str, held: recovering.Held) -> tuple[Entry, Waiting | None]:
        entry, back = given_back(who, held)
        return (entry, back) if back is None or held.id % 2 else (Entry(entry.changes[:1]), None)

    monkeypatch.setattr(recovering, "given_back", forgetful)
    is_caught(by="runs and is nobody's")


def test_events_as_the_only_way_to_a_change_are_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(RefreshedTree, "_refresh", lambda _: None)
    is_caught(by="never ends: .*_tasks/")


def test_a_claim_that_is_never_answered_is_detected(monkeypatch: Plant) -> None:
    def forget(self: Claims) -> None:
        self._is_over = True

    monkeypatch.setattr(Claims, "_fence", forget)
    is_caught(by="never ends: .*a claim of")


def test_a_claim_that_returns_a_task_twice_is_detected(monkeypatch: Plant) -> None:
    pop = Claims._pop_arrived

    def twice(self: Claims, want: ClaimRequest, limit: int, *, counted: bool) -> list[Job]:
        jobs = pop(self, want, limit, counted=counted)
        return [*jobs, *jobs[-1:]]

    monkeypatch.setattr(Claims, "_pop_arrived", twice)
    is_caught(by="is handed out twice")


# ---- serving nodes


def test_removing_the_waiters_of_all_nodes_is_detected(monkeypatch: Plant) -> None:
    left = recovering.left

    def rude(seen: LocatedJob | None, term: int) -> Plan[bool]:
        return left(seen if seen is None else seen._replace(data={**seen.data, "waiters": [term]}), term)

    monkeypatch.setattr(recovering, "left", rude)
    is_caught(by="although .* waits for it", kind=ServingWorld)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_graceful_stop_that_releases_nothing_is_detected(monkeypatch: Plant) -> None:
    def keep(self: JobService) -> None:
        self.dispatch.paused = True

    monkeypatch.setattr(JobService, "hand_back", keep)
    is_caught(by="a graceful stop of", kind=ServingWorld)


def test_keeping_a_worker_that_has_ended_its_side_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Peer, "sends_no_more", wait_for_answers)
    is_caught(by="never ends: .*/running_tasks/.*half open", kind=ServingWorld)


def test_messages_as_the_only_source_of_outcomes_are_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(sharing, "REFRESH_INTERVAL", 1e9)
    is_caught(by="never ends: .*clients of", kind=LossyMail)


def test_a_node_that_misses_its_new_term_is_detected(monkeypatch: Plant) -> None:
    begin = JobService.begin

    def forgetful(self: JobService, term: Term) -> None:
        if self.term:
            self.term = term
        else:
            begin(self, term)

    monkeypatch.setattr(JobService, "begin", forgetful)
    is_caught(by="takes no part", kind=ServingWorld)

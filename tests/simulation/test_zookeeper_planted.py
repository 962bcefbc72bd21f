"""The simulation on ZooKeeper is worth something only if it notices: each test takes one guard away, and the runs must fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master import publishing, recovering
from mainspring.engines.zookeeper.tree import Check, Done, Refused, Write

from .stores import SimulationError
from .zookeeper.ensemble import Way
from .zookeeper.running import simulate_zookeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.locating import Name
    from mainspring.engines.zookeeper.session import Waiting
    from mainspring.engines.zookeeper.tree import Change

Plant = pytest.MonkeyPatch
SEEDS = 60


def is_caught(*, by: str) -> None:
    """One of the runs fails, and for the right reason. (Others may fail for what follows from it.)"""
    for seed in range(SEEDS):
        try:
            simulate_zookeeper(seed)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("nobody has noticed")


def rewrite(monkeypatch: Plant, careless: Callable[[Change], Change]) -> None:
    """Have every multi written with other changes."""
    commit = Way.commit

    async def commit_carelessly(self: Way, changes: Sequence[Change]) -> Done | Refused:
        return await commit(self, [careless(change) for change in changes])

    monkeypatch.setattr(Way, "commit", commit_carelessly)


def test_batches_without_a_check_of_the_worker(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        if isinstance(change, Check) and change.path.startswith(f"{paths.WORKERS}/"):
            return Check(paths.WORKERS)
        return change

    rewrite(monkeypatch, careless)
    is_caught(by="whose term has ended, has happened")


def test_batches_without_the_journals_version(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        if isinstance(change, Write) and change.path.startswith(f"{paths.JOURNALS}/"):
            return Write(change.path, change.data)
        return change

    rewrite(monkeypatch, careless)
    is_caught(by="happens after batch")


def test_a_master_without_the_guard_of_its_term(monkeypatch: Plant) -> None:
    def careless(change: Change) -> Change:
        return Check(change.path) if isinstance(change, Check) and change.path == paths.MASTER_TERM else change

    rewrite(monkeypatch, careless)
    is_caught(by="assigns or publishes after")


def test_a_publication_that_keeps_the_name(monkeypatch: Plant) -> None:
    entry = publishing.entry

    def careless(one: publishing.Ending, result: int | None, name: Name | None = None) -> Entry:
        del name
        return entry(one, result, None)

    monkeypatch.setattr(publishing, "entry", careless)
    is_caught(by="never ends: .*'/names/")


def test_a_recovery_that_forgets_a_task(monkeypatch: Plant) -> None:
    given_back = recovering.given_back

    def forgetful(who: str, held: recovering.Held) -> tuple[Entry, Waiting | None]:
        entry, back = given_back(who, held)
        return (entry, back) if back is None or held.id % 2 else (Entry(entry.changes[:1]), None)

    monkeypatch.setattr(recovering, "given_back", forgetful)
    is_caught(by="runs and is nobody's")

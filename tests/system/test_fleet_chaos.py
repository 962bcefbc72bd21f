"""Nodes of a fleet are killed, frozen and cut off at random: no acknowledged job is lost, no settled job runs again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import pytest

from .chaos import FLEET, FLEET_WITH_CREW, Chaos, Findings, Scenario, endure
from .fleet import LEASE
from .fleet_chaos import any_disturbance, freeze, kill, part
from .ledger import STOP_DELAY
from .stores import POSTGRESQL, STORES

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .fleet import ForkServer
    from .stores import Store

NODES = 3
SEEDS = 5
SEEDS_OF_OTHER_STORES = 2
"""Seeds on the stores after the first, which share most of the code."""
SLOW_SEEDS = 3
PLANTED_SEEDS = 30
"""Seeds until one of them shows a planted fault, at most."""
LONG_SEEDS = 300
KILLS = 6
CREW_SECONDS = 8.0
"""Seconds of the disturbances of a run with worker processes."""
LONG_CREW_SECONDS = 60.0
PARALLEL_SEEDS = 5
"""Seeds that run in parallel: a run mostly waits for leases to end."""
LONGEST_DISTURBANCE = 2 * LEASE + 1
"""The longest time for which a node is disturbed, in seconds."""


class SeedRunner:
    """Runs seeds on one kind of store, one after another or in parallel."""

    def __init__(
        self,
        fork_server: ForkServer,
        create_store: Callable[[], AbstractContextManager[Store]],
        directory: Path,
        seeds: int,
    ) -> None:
        self._fork_server = fork_server
        self._create_store = create_store
        self._directory = directory
        self.seeds = range(seeds)
        """Seeds of the short form, with kills."""

    def survive(
        self,
        disturb: Callable[[Chaos], None],
        seed: int,
        *,
        rounds: int = KILLS,
        plant: str | None = None,
        scenario: Scenario = FLEET,
        seconds: float = 0.0,
    ) -> Findings:
        """Run one seed in a directory and a store of its own, with a separate route to the store for each node."""
        own = self._directory / str(seed)
        own.mkdir()
        with self._create_store() as store, store.routes(NODES) as routes:
            chaos = Chaos(self._fork_server, own, routes, seed, scenario=scenario, plant=plant)
            return chaos.run(disturb, rounds, seconds)

    def survive_everything(self, seed: int, seconds: float) -> Findings:
        """Run one seed with worker processes, and with every kind of disturbance."""
        return self.survive(any_disturbance, seed, scenario=FLEET_WITH_CREW, seconds=seconds)

    def check(
        self,
        disturb: Callable[[Chaos], None],
        seeds: range,
        *,
        rounds: int = KILLS,
        overlap: float = STOP_DELAY,
        everything: bool = False,
    ) -> None:
        """Run seeds, and assert that none of them broke a promise; with ``everything``, one more seed has all that there is."""
        with ThreadPoolExecutor(PARALLEL_SEEDS) as pool:
            whole = pool.submit(self.survive_everything, seeds.stop, CREW_SECONDS) if everything else None
            found = pool.map(lambda seed: self.survive(disturb, seed, rounds=rounds), seeds)
            findings = dict(zip(seeds, found, strict=True))
        broken = {seed: one for seed, one in findings.items() if one.broken(overlap=overlap)}
        assert not broken, "\n".join(f"seed {seed}: {one}" for seed, one in broken.items())
        assert sum(one.acknowledged for one in findings.values()) > 20 * len(seeds)
        if whole is not None:
            assert not whole.result().broken(overlap=LONGEST_DISTURBANCE), whole.result()


@pytest.fixture(params=STORES)
def seed_runner(request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path: Path) -> SeedRunner:
    fixture = cache(request.getfixturevalue)
    with STORES[request.param](fixture):
        pass  # start the servers now: threads cannot request fixtures
    seeds = SEEDS if request.param == POSTGRESQL else SEEDS_OF_OTHER_STORES
    return SeedRunner(fork_server, lambda: STORES[request.param](fixture), tmp_path, seeds)


def test_kills_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    # A worker detects the end of its connection before the lease ends: no job runs twice at the same time.
    seed_runner.check(kill, seed_runner.seeds, everything=True)


def test_partitions_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    # A node that is cut off stops its workers before other nodes take over.
    seed_runner.check(part, range(SLOW_SEEDS), rounds=2)


def test_frozen_nodes_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    # A frozen node can stop its workers only after it continues.
    seed_runner.check(freeze, range(SLOW_SEEDS), rounds=2, overlap=LONGEST_DISTURBANCE)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_kills_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    seed_runner.check(kill, range(SEEDS, SEEDS + LONG_SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_partitions_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    seed_runner.check(part, range(SLOW_SEEDS, SLOW_SEEDS + LONG_SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_frozen_nodes_lose_nothing_and_run_nothing_again(seed_runner: SeedRunner) -> None:
    seed_runner.check(freeze, range(SLOW_SEEDS, SLOW_SEEDS + LONG_SEEDS), overlap=LONGEST_DISTURBANCE)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed_runner", [POSTGRESQL], indirect=True)
def test_many_minutes_of_everything_lose_nothing_and_leave_nothing(
    seed_runner: SeedRunner, request: pytest.FixtureRequest
) -> None:
    def survive(seed: int) -> Findings:
        return seed_runner.survive_everything(seed, LONG_CREW_SECONDS)

    endure(request.config.getoption("--minutes"), survive, overlap=LONGEST_DISTURBANCE)


# The check must fail if a node makes promises before it commits; otherwise it proves nothing.


@pytest.mark.parametrize(
    "seed_runner",
    [one if one == POSTGRESQL else pytest.param(one, marks=pytest.mark.long) for one in STORES],
    indirect=True,
)
def test_an_early_acknowledgement_is_found(seed_runner: SeedRunner) -> None:
    assert any(seed_runner.survive(kill, seed, plant="acknowledgement").lost for seed in range(PLANTED_SEEDS))


def test_an_early_confirmation_is_found(seed_runner: SeedRunner) -> None:
    findings = (seed_runner.survive(kill, seed, plant="confirmation") for seed in range(PLANTED_SEEDS))
    assert any("ran again" in violation for found in findings for violation in found.violations)

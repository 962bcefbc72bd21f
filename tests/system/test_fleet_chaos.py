"""Nodes of a fleet are killed at random points: what was acknowledged is not lost, what was settled does not run again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from . import fleet_chaos
from .fleet import Nursery
from .fleet_ledger import SLACK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.server import PostgresServer

LEASE = 1.5
SEEDS = 10
LONG_SEEDS = 300
KILLS = 6
TOGETHER = 3
"""Seeds run side by side: most of a run is waiting for leases to end."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def survive(
    nursery: Nursery, postgres: PostgresServer, directory: Path, seed: int, *, plant: str | None = None
) -> fleet_chaos.Findings:
    """Run one seed in a directory and a database of its own."""
    own = directory / str(seed)
    own.mkdir()
    store = postgres.create_database()
    try:
        chaos = fleet_chaos.Chaos(nursery, own, [(store, None)] * 3, seed, lease=LEASE, plant=plant)
        return chaos.run(fleet_chaos.kill, KILLS)
    finally:
        postgres.drop_database(store)


def check(nursery: Nursery, postgres: PostgresServer, directory: Path, seeds: range) -> None:
    """Run seeds, and say what any of them has shown."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        found = pool.map(lambda seed: survive(nursery, postgres, directory, seed), seeds)
        findings = dict(zip(seeds, found, strict=True))
    # Workers hear the end of their connection at once, and are the only ones for a lease: nothing runs twice at a time.
    broken = {
        seed: found for seed, found in findings.items() if found.lost or found.violations or found.overlap > SLACK
    }
    assert broken == {}
    assert sum(found.acknowledged for found in findings.values()) > 20 * len(seeds)


def test_kills_lose_nothing_and_run_nothing_again(nursery: Nursery, postgres: PostgresServer, tmp_path: Path) -> None:
    check(nursery, postgres, tmp_path, range(SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_kills_lose_nothing_and_run_nothing_again(
    nursery: Nursery, postgres: PostgresServer, tmp_path: Path
) -> None:
    check(nursery, postgres, tmp_path, range(SEEDS, SEEDS + LONG_SEEDS))


# The check has to fail where a node promises before it commits; otherwise it proves nothing.


def test_an_early_acknowledgement_is_found(nursery: Nursery, postgres: PostgresServer, tmp_path: Path) -> None:
    assert any(survive(nursery, postgres, tmp_path, seed, plant="acknowledgement").lost for seed in range(SEEDS))


def test_an_early_confirmation_is_found(nursery: Nursery, postgres: PostgresServer, tmp_path: Path) -> None:
    findings = (survive(nursery, postgres, tmp_path, seed, plant="confirmation") for seed in range(SEEDS))
    assert any("ran again" in violation for found in findings for violation in found.violations)

"""Workflows in a fleet on PostgreSQL: nodes, workers and the database fail at random; no run is lost, stands still or repeats.

The nodes are killed, frozen and cut off, the workers are killed and held, and the database server ends at once and recovers.
Runs have steps, activities, timers, signals, children, successors and cancels. The workers are connected to all nodes, and each
request goes to any node. When the faults are over, each run closes with the right result within `workflow_chaos.TIMEOUT`, and the
store has no open run, no live job and no errand.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import PostgresServer, memory_directory, name_of

from mainspring.engines.postgres.engine import migrate_store

from .chaos import FLEET_WITH_WORKFLOWS, Chaos, Findings, endure
from .fleet import LEASE
from .fleet_chaos import Deck
from .stores import POSTGRESQL, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fleet import ForkServer

NODES = 3
SECONDS = 60.0
"""Seconds of the disturbances of each seed of the long form."""
LONGEST_DISTURBANCE = 2 * LEASE + 1
"""The longest time for which a node is disturbed, in seconds."""
PLANTED_SEEDS = 5
"""Seeds until one of them shows a planted fault, at most."""
SCHEMA = "migrated"
"""The database of which those of the seeds are copies."""
LEFT = """
SELECT 'open runs', count(*) FROM mainspring.runs_open UNION ALL
SELECT 'live jobs', count(*) FROM mainspring.jobs UNION ALL
SELECT 'submitted jobs', count(*) FROM mainspring.inbox UNION ALL
SELECT 'early signals', count(*) FROM mainspring.early_signals UNION ALL
SELECT 'errands', count(*) FROM mainspring.errands
"""


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        server.sql(f'ALTER DATABASE "{_migrated(server)}" RENAME TO {SCHEMA}')
        yield server


def _migrated(server: PostgresServer) -> str:
    url = server.create_database()
    asyncio.run(migrate_store(url))
    return name_of(url)


def survive(
    fork_server: ForkServer,
    server: PostgresServer,
    directory: Path,
    seed: int,
    *,
    seconds: float = 0.0,
    plant: str | None = None,
) -> Findings:
    """Run one seed in a directory and a database of its own: all disturbances of a deck, and further ones for some seconds."""
    own = directory / str(seed)
    own.mkdir()
    url = server.create_database(SCHEMA)

    def left() -> str:
        rows = server.sql(LEFT, name_of(url)).splitlines()
        return ", ".join(row for row in rows if not row.endswith("|0"))

    deck = Deck(lambda _: server.restart("immediate"))
    try:
        with Store(POSTGRESQL, url, {url: server.port}).routes(NODES) as routes:
            chaos = Chaos(fork_server, own, routes, seed, scenario=FLEET_WITH_WORKFLOWS, plant=plant, left=left)
            return chaos.run(deck.deal, len(deck), seconds)
    finally:
        server.drop_database(url)


def test_disturbances_leave_each_run_closed_once_with_its_result(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path
) -> None:
    found = survive(fork_server, server, tmp_path, 1)
    print(found.summary())  # noqa: T201 - the accounts
    assert not found.broken(overlap=LONGEST_DISTURBANCE), found
    assert sum(found.counts[f"workers: {kind}"] for kind in ("kill", "stop", "kill process", "hold")) == 2
    assert found.counts["closed"] == found.counts["starts"] > 0
    assert {"children", "runs continued as new", "signals", "cancels"} <= (+found.counts).keys(), found.counts


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_disturbances_leave_each_run_closed_once_with_its_result(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def run(seed: int) -> Findings:
        return survive(fork_server, server, tmp_path, seed, seconds=SECONDS)

    endure(request.config.getoption("--minutes"), run, overlap=LONGEST_DISTURBANCE)


# The accounts must show what a node loses or repeats; otherwise they prove nothing.


@pytest.mark.long
@pytest.mark.parametrize("plant", ["memory", "errands"])
def test_a_planted_defect_is_found(fork_server: ForkServer, server: PostgresServer, tmp_path: Path, plant: str) -> None:
    assert any(survive(fork_server, server, tmp_path, seed, plant=plant).broken() for seed in range(PLANTED_SEEDS))

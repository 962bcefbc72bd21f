"""Workflows in a fleet on PostgreSQL: nodes, workers and the database fail at random; no run is lost, stands still or repeats.

The nodes are killed, frozen and cut off, the workers are killed and held, and the database server ends at once and recovers.
Runs have steps, activities, timers, signals, children, successors and cancels. The workers are connected to all nodes, and each
request goes to any node. When the faults are over, each run closes with the right result within `workflow_chaos.TIMEOUT`, and the
store has no open run, no live job and no errand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import PostgresServer, memory_directory, name_of

from .chaos import FLEET_WITH_WORKFLOWS, Chaos, Findings, endure
from .fleet import LEASE
from .fleet_chaos import Deck
from .left_in_store import keep_schema, left
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
LONG_LEASE = 15.0
"""The lease by default, in seconds: a death that shows at the end of a session is found long before its end."""
LONGEST_CUT = 3.0
"""The longest time for which a node with this lease is disturbed: sessions that were cut by then have proved a death."""
PLANTED_SEEDS = 10
"""Seeds until one of them shows a planted fault, at most."""
EARLY_SEED = 1
SCHEMA = "migrated"
"""The database of which those of the seeds are copies."""


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        keep_schema(server, SCHEMA)
        yield server


def survive(
    fork_server: ForkServer,
    server: PostgresServer,
    directory: Path,
    seed: int,
    *,
    seconds: float = 0.0,
    early: bool = False,
    plant: str | None = None,
) -> Findings:
    """Run one seed in a directory and a database of its own: all disturbances of a deck, and further ones for some seconds.

    ``early``: deaths are found by the ends of sessions, and the database does not restart: after that, leases would decide.
    """
    own = directory / str(seed)
    own.mkdir()
    url = server.create_database(SCHEMA)
    deck = Deck() if early else Deck(lambda _: server.restart("immediate"))
    lease, longest = (LONG_LEASE, LONGEST_CUT) if early else (LEASE, LONGEST_DISTURBANCE)
    try:
        with Store(POSTGRESQL, url, {url: server.port}).routes(NODES) as routes:
            chaos = Chaos(
                fork_server,
                own,
                routes,
                seed,
                scenario=FLEET_WITH_WORKFLOWS,
                lease=lease,
                longest=longest,
                plant=plant,
                left=lambda: left(server, name_of(url)),
            )
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


def test_deaths_that_sessions_prove_leave_each_run_closed_once_with_its_result(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path
) -> None:
    found = survive(fork_server, server, tmp_path, EARLY_SEED, early=True)
    print(found.summary())  # noqa: T201 - the accounts
    assert not found.broken(overlap=LONG_LEASE), found
    assert found.counts["closed"] == found.counts["starts"] > 0
    assert "a node is dead" in found.logs


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_proved_deaths_leave_each_run_closed_once_with_its_result(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def run(seed: int) -> Findings:
        return survive(fork_server, server, tmp_path, seed, seconds=SECONDS, early=True)

    endure(request.config.getoption("--minutes"), run, overlap=LONG_LEASE)


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

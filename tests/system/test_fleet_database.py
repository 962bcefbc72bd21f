"""The database of a fleet fails and returns: no acknowledged job is lost, and the nodes recover by themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import PostgresServer, memory_directory, name_of, several

from .chaos import Chaos
from .fleet import LEASE
from .stores import StoreRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .chaos import Findings
    from .fleet import ForkServer

ROUNDS = 3


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        yield server


def assert_survives(chaos: Chaos, disturb: Callable[[Chaos], None], rounds: int) -> Findings:
    """Run the disturbances, assert that nothing was lost or run twice, and return the findings."""
    found = chaos.run(disturb, rounds)
    assert (found.lost, found.stuck, found.violations) == ([], [], [])
    assert found.acknowledged
    return found


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_fleet_survives_a_restart_of_the_database_under_load(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path, how: str
) -> None:
    def disturb(chaos: Chaos) -> None:
        if how == "restart":
            server.restart(chaos.random.choice(["fast", "immediate"]))
        else:
            server.kill()
            time.sleep(chaos.random.uniform(0, 2 * LEASE))
            server.start()

    store = server.create_database()
    assert_survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, ROUNDS)


def test_a_fleet_survives_a_hanging_database_under_load(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path
) -> None:
    def disturb(chaos: Chaos) -> None:
        server.pause()
        time.sleep(chaos.random.uniform(0, 2 * LEASE))
        server.resume()

    store = server.create_database()
    assert_survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, ROUNDS)


def test_a_fleet_survives_a_failover_to_a_synchronous_standby_under_load(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    with PostgresServer(parent=memory_directory()) as primary, primary.replica() as standby:
        store = several(name_of(primary.create_database()), primary, standby)

        def disturb(_: Chaos) -> None:
            primary.kill()
            standby.promote()

        assert_survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, 1)
        # The run has read each acknowledged job from the new primary.
        assert not primary.is_running

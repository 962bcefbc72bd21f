"""The database under a fleet goes away and comes back: nothing acknowledged is lost, and the nodes go on by themselves."""

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
    """Give a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        yield server


def survives(chaos: Chaos, disturb: Callable[[Chaos], None], rounds: int) -> Findings:
    """Say that a run has lost and doubled nothing; returns what it has shown."""
    found = chaos.run(disturb, rounds)
    assert (found.lost, found.violations) == ([], [])
    assert found.acknowledged
    return found


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_database_that_is_restarted_under_load(
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
    survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, ROUNDS)


def test_a_database_that_hangs_under_load(fork_server: ForkServer, server: PostgresServer, tmp_path: Path) -> None:
    def disturb(chaos: Chaos) -> None:
        server.pause()
        time.sleep(chaos.random.uniform(0, 2 * LEASE))
        server.resume()

    store = server.create_database()
    survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, ROUNDS)


def test_a_failover_to_a_synchronous_standby_under_load(fork_server: ForkServer, tmp_path: Path) -> None:
    with PostgresServer(parent=memory_directory()) as primary, primary.replica() as standby:
        store = several(name_of(primary.create_database()), primary, standby)

        def disturb(_: Chaos) -> None:
            primary.kill()
            standby.promote()

        survives(Chaos(fork_server, tmp_path, [StoreRoute(store)] * 3, 1), disturb, 1)
        # What was acknowledged before is there now: the run has asked for each job at the new primary.
        assert not primary.is_running

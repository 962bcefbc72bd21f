"""The database of a fleet with workflows fails: a standby takes over, or the power of all machines is cut.

No acknowledged start or signal is lost, nothing is recorded twice, and each run closes once with its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import PostgresServer, memory_directory, name_of, several

from . import workflow_chaos
from .chaos import FLEET_WITH_WORKFLOWS, Chaos
from .fleet import LEASE
from .left_in_store import left, migrated
from .servers import eventually
from .stores import StoreRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .chaos import Findings
    from .fleet import ForkServer

NODES = 3
RUNS = 6
"""Runs that begin before each fault."""
MANY = 10
"""Power cuts of the long form."""


@pytest.fixture
def primary(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that one test disturbs."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        yield server


def survive(
    fork_server: ForkServer,
    directory: Path,
    url: str,
    last: PostgresServer,
    disturb: Callable[[Chaos], None],
    *,
    rounds: int = 1,
    after: int = RUNS // 2,
) -> Findings:
    """Disturb a fleet while runs are under way. ``last``: the server that has the store in the end.

    ``after``: runs that begin after each disturbance.
    """
    routes = [StoreRoute(url)] * NODES
    database = name_of(url)
    chaos = Chaos(
        fork_server,
        directory,
        routes,
        1,
        scenario=FLEET_WITH_WORKFLOWS,
        left=lambda: left(last, database),
    )

    def disturbed(chaos: Chaos) -> None:
        chaos.await_runs(RUNS)
        disturb(chaos)
        chaos.await_runs(after)

    found = chaos.run(disturbed, rounds)
    print(found.summary())  # noqa: T201 - the accounts
    return found


def check(found: Findings, rounds: int = 1) -> None:
    assert not found.broken(overlap=2 * LEASE + 1), found
    assert found.counts["closed"] == found.counts["starts"] > RUNS * rounds
    assert found.counts["results"] > 0
    assert found.counts["signals"] > 0


def test_a_failover_to_a_synchronous_standby_loses_and_repeats_nothing(
    fork_server: ForkServer, primary: PostgresServer, tmp_path: Path
) -> None:
    url = migrated(primary)
    with primary.replica() as standby:

        def fail_over(_: Chaos) -> None:
            primary.kill()
            standby.promote()

        found = survive(fork_server, tmp_path, several(name_of(url), primary, standby), standby, fail_over)
        check(found)
        assert not primary.is_running


def cut_power(
    fork_server: ForkServer,
    primary: PostgresServer,
    directory: Path,
    url: str,
    *,
    rounds: int = 1,
    after: int = RUNS // 2,
) -> Findings:
    """Cut the power of all machines some times: commits that the database has not written to its files are lost."""

    def cut(chaos: Chaos) -> None:
        primary.kill()
        chaos.kill_everything()
        primary.start()
        for slot in chaos.slots:
            slot.ready()

    return survive(fork_server, directory, url, primary, cut, rounds=rounds, after=after)


def test_a_power_cut_of_all_machines_loses_and_repeats_nothing(
    fork_server: ForkServer, primary: PostgresServer, tmp_path: Path
) -> None:
    check(cut_power(fork_server, primary, tmp_path, migrated(primary)))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_power_cuts_of_all_machines_lose_and_repeat_nothing(
    fork_server: ForkServer, primary: PostgresServer, tmp_path: Path
) -> None:
    check(cut_power(fork_server, primary, tmp_path, migrated(primary), rounds=MANY), MANY)


# The accounts must show what is lost if commits wait neither for the disk nor for the standby; otherwise they prove nothing.


@pytest.fixture
def hasty(primary: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let commits wait for nothing; return the DSN of a store whose nodes accept that."""
    monkeypatch.setattr(workflow_chaos, "TIMEOUT", 10.0)  # a run that is lost does not end
    monkeypatch.setattr(workflow_chaos, "WAIT", 1.0)
    url = migrated(primary)
    primary.set(synchronous_commit=False, wal_writer_delay="10s")
    eventually(lambda: primary.sql("SHOW synchronous_commit") == "off", "commits wait for nothing")
    return url


UNSAFE = "unsafe=synchronous_commit"


@pytest.mark.long
def test_a_power_cut_after_hasty_commits_is_found(
    fork_server: ForkServer, primary: PostgresServer, tmp_path: Path, hasty: str
) -> None:
    assert cut_power(fork_server, primary, tmp_path, f"{hasty}?{UNSAFE}", after=0).broken()


@pytest.mark.long
def test_a_failover_to_a_standby_that_was_behind_is_found(
    fork_server: ForkServer, primary: PostgresServer, tmp_path: Path, hasty: str
) -> None:
    with primary.replica(synchronous=False) as standby:

        def fail_over(chaos: Chaos) -> None:
            standby.pause()
            chaos.await_runs(RUNS)
            primary.kill()
            standby.resume()
            standby.promote()

        url = f"{several(name_of(hasty), primary, standby)}&{UNSAFE}"
        assert survive(fork_server, tmp_path, url, standby, fail_over, after=0).broken()

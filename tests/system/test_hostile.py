"""A server under each attack that once did harm: its other clients must be served as before.

The short form uses small sizes; the long form uses the sizes with which the attacks were found, and one server for each.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.postgres.server import name_of

from .disks import Filled, small_file_system
from .hostile import crashing, crowding, hoarding, naming, swapping, watching, writing
from .hostile.load import load
from .hostile.vitals import Sample, Vitals, growth, table
from .hostile.watching import MIB
from .servers import Server, eventually, launch, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.postgres.server import PostgresServer

UNLIMITED_FUNCTIONS = ("--max-functions", "0")
"""Option for servers that are attacked by numbers of names: the limit must not end the attack early."""
OPEN_FILES = 400
"""Limit of open files of the shared server."""

SHORT_ATTACKS: dict[str, Callable[[Server], None]] = {
    "poison": partial(crashing.poison, innocents=6, seconds=0.2, timeout=60.0),
    "unread results": partial(hoarding.unread_results, connections=20, waits=4, result=8 * MIB),
    "small unread results": partial(hoarding.unread_results, connections=4, waits=1024, result=MIB // 4),
    "foreign writer": partial(writing.foreign_writer, seconds=2.0),
    "idle connections": partial(crowding.idle_connections, count=OPEN_FILES + 100),
    "client ids": partial(hoarding.client_ids, connections=10, size=4 * MIB),
    "names of functions": partial(naming.functions, count=20_000, listings=100, connections=5),
    "abilities": partial(naming.abilities, workers=10, count=10_000),
    "schedules": partial(naming.schedules, count=3000),
    "empty function": naming.empty_function,
    "second node": swapping.second_node,
    "foreground jobs": partial(hoarding.foreground_jobs, count=60_000, left=32 * MIB),
}
SMALL_ATTACKS: dict[str, Callable[[Server], None]] = SHORT_ATTACKS | {
    "unread results": partial(hoarding.unread_results, connections=20, waits=4, result=2 * MIB),
    "names of functions": partial(naming.functions, count=4000, listings=100, connections=5),
    "abilities": partial(naming.abilities, workers=10, count=1000),
    "schedules": partial(naming.schedules, count=500),
    "foreground jobs": partial(hoarding.foreground_jobs, count=20_000, left=48 * MIB),
}
"""For repeated attacks during a load: small enough for several rounds within the server's warm-up time."""
LONG_ATTACKS: dict[str, Callable[[Server], None]] = {
    "poison": partial(crashing.poison, innocents=40, seconds=0.3, timeout=60.0),
    "poison with long tasks": partial(crashing.poison, innocents=40, seconds=3.0, timeout=60.0),
    "unread results": partial(hoarding.unread_results, connections=40, waits=2, result=60 * MIB),
    "small unread results": partial(hoarding.unread_results, connections=8, waits=1024, result=MIB),
    "foreign writer": partial(writing.foreign_writer, seconds=12.0),
    "client ids": partial(hoarding.client_ids, connections=20, size=60 * MIB),
    "names of functions": partial(naming.functions, count=300_000, listings=1000, connections=20, growth=80 * MIB),
    "abilities": partial(naming.abilities, workers=30, count=10_000, growth=320 * MIB),
    "schedules": partial(naming.schedules, count=20_000),
    "foreground jobs": partial(hoarding.foreground_jobs, count=400_000, left=64 * MIB),
}


def limited(files: int) -> tuple[str, ...]:
    """Return a program that starts another one with a limit of open files."""
    return ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh")


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("victim")
    with serving(directory, "--http", "127.0.0.1:0", *UNLIMITED_FUNCTIONS, tracer=limited(OPEN_FILES)) as server:
        yield server


@pytest.mark.parametrize("attack", SHORT_ATTACKS)
def test_an_attack_harms_no_other_client(victim: Server, attack: str) -> None:
    SHORT_ATTACKS[attack](victim)
    victim.assert_healthy()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", LONG_ATTACKS)
def test_a_large_attack_harms_no_other_client(tmp_path: Path, attack: str) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0", *UNLIMITED_FUNCTIONS) as server:
        LONG_ATTACKS[attack](server)
        server.assert_healthy()


@pytest.mark.long
def test_idle_connections_in_thousands_harm_no_other_client(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0", tracer=limited(2000)) as server:
        crowding.idle_connections(server, count=300)
        crowding.idle_connections(server, count=2500)
        server.assert_healthy()


def test_a_full_disk_is_logged_once_and_the_node_is_not_ready(tmp_path: Path) -> None:
    with (
        small_file_system(tmp_path) as disk,
        serving(tmp_path, "--http", "127.0.0.1:0", store=f"sqlite:///{disk / 'jobs.db'}") as server,
    ):
        writing.full_disk(Filled(server, disk), refusals=2000)
        server.assert_healthy()


def test_functions_above_the_limit_of_a_server_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-functions", "1000") as server:
        naming.too_many_functions(server, count=3000, limit=1000)
        server.assert_healthy()


def test_a_nodes_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    swapping.readable_files(tmp_path)


def test_symbolic_links_at_the_paths_of_new_files_are_not_followed(tmp_path: Path) -> None:
    swapping.links_in_the_way(tmp_path)


def test_a_moved_store_accepts_no_more_jobs(tmp_path: Path) -> None:
    swapping.moved_away(tmp_path)


# ---- the long form ----


def own_role(postgres: PostgresServer, database: str) -> str:
    """Create a role that owns a database; returns the store's URL for it."""
    postgres.sql("DROP ROLE IF EXISTS hostile; CREATE ROLE hostile LOGIN")
    postgres.sql(f'ALTER DATABASE "{name_of(database)}" OWNER TO hostile')
    return database.replace("postgres@", "hostile@")


@pytest.mark.long
def test_revoked_rights_are_logged_once_and_the_node_is_not_ready(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    store = own_role(postgres, database)
    with serving(tmp_path, "--http", "127.0.0.1:0", store=store) as server:
        writing.revoked_rights(server, lambda statement: postgres.sql(statement, name_of(database)))
        server.assert_healthy()


@pytest.mark.long
def test_a_read_only_role_is_not_reported_as_a_standby(tmp_path: Path, postgres: PostgresServer, database: str) -> None:
    store = own_role(postgres, database)
    postgres.sql("ALTER ROLE hostile SET default_transaction_read_only = on")
    server = launch(tmp_path, store=store)
    try:
        eventually(lambda: "default_transaction_read_only" in server.log_text(), "the log names the setting")
        assert "is a standby" not in server.log_text()
    finally:
        server.end()


MINUTES = 10
PING_UNDER_LOAD = 3.0
"""Limit in seconds for a ping during an attack and a load that uses a whole processor."""
RETENTION = ("--retention", "20s", "--dead-retention", "20s")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_resource_usage_of_a_server_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs of all kinds for ten minutes, next to a client that tries each attack in rotation."""
    monkeypatch.setattr(watching, "LONGEST_PING", PING_UNDER_LOAD)
    with (
        serving(
            tmp_path, "--http", "127.0.0.1:0", *RETENTION, *UNLIMITED_FUNCTIONS, tracer=limited(OPEN_FILES)
        ) as server,
        load(server) as served,
    ):
        vitals = Vitals(server, tmp_path / "jobs.db")
        vitals.start()
        turns = 0
        try:
            end = time.monotonic() + MINUTES * 60
            while time.monotonic() < end:
                for name, attack in SMALL_ATTACKS.items():
                    print(f"turn {turns}, {name}")  # noqa: T201 - shown with a test that fails
                    attack(server)
                turns += 1
        finally:
            vitals.end()
            print(table(vitals.samples))  # noqa: T201
        served.assert_served()
        server.assert_healthy()
        assert turns > 2
        assert growth(vitals.samples) == []


@pytest.mark.parametrize("name", ["memory", "descriptors", "threads", "database", "wal", "log"])
def test_growth_is_found(name: str) -> None:
    still = [Sample(float(second), 2**28, 50, 2, 0, 2**24, 2**25) for second in range(10 * 60)]
    assert growth(still) == []
    grows = [one._replace(**{name: getattr(one, name) + int(one.at) * 2**17}) for one in still]
    assert growth(grows) != []

from __future__ import annotations

import pytest

from mainspring.engines.postgres.connections import parse_address
from mainspring.errors import SettingsError


def test_own_parameters_are_removed_and_the_rest_is_left_to_the_library() -> None:
    address = parse_address(
        "postgresql://me:secret@db:5433/app?schema=jobs&unsafe=fsync,synchronous_commit&sslmode=require"
    )
    assert address.dsns == ("postgresql://me:secret@db:5433/app?sslmode=require",)
    assert address.schema == "jobs"
    assert address.unsafe == {"fsync", "synchronous_commit"}


def test_several_hosts_get_a_dsn_each() -> None:
    address = parse_address("postgresql://me:pass@a:1,b,[::1]:3/app?target_session_attrs=any&connect_timeout=3")
    assert address.dsns == tuple(
        f"postgresql://me:pass@{host}/app?connect_timeout=3" for host in ("a:1", "b", "[::1]:3")
    )


def test_the_password_is_not_shown() -> None:
    assert parse_address("postgresql://me:sec%40ret@a,b/app?password=other").shown == "postgresql://me@a,b/app"


@pytest.mark.parametrize("url", ["postgresql://db/app", "postgres://db/app", "postgresql:///app?host=/run/postgresql"])
def test_the_schema_has_a_default(url: str) -> None:
    assert parse_address(url).schema == "mainspring"
    assert parse_address(url).unsafe == frozenset()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://db/app", "not an address of PostgreSQL"),
        ("postgresql://db/app?schema=", "name of a schema"),
        ("postgresql://db/app?schema=pg_jobs", "name of a schema"),
        ("postgresql://db/app?schema=" + "x" * 64, "name of a schema"),
        ("postgresql://db/app?unsafe=everything", "is unknown: use fsync"),
        ("postgresql://db/app?schema", "cannot be read"),
    ],
)
def test_an_invalid_address_is_refused(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_address(url)


def test_each_schema_has_its_own_locks_and_channels() -> None:
    assert parse_address("postgresql:///a?schema=one").checksum != parse_address("postgresql:///a?schema=two").checksum

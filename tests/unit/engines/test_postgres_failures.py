from __future__ import annotations

import asyncpg
import pytest

from mainspring.engines.postgres.connections import Verdict, explain, is_away, judge, parse_address
from mainspring.errors import StoreError, StoreFullError, StoreUnavailableError

ADDRESS = parse_address("postgresql://me:secret@db/app")


def server_error(code: str, **fields: str) -> asyncpg.PostgresError:
    names = {"constraint_name": "n"}
    return asyncpg.PostgresError.new(
        {"C": code, "M": "the message", "S": "ERROR"} | {names[k]: v for k, v in fields.items()}
    )


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("MS001", Verdict.FENCED),
        ("MS002", Verdict.COMMITTED),
        ("40001", Verdict.BUSY),  # serialization
        ("40P01", Verdict.BUSY),  # deadlock
        ("55P03", Verdict.BUSY),  # lock timeout
        ("57014", Verdict.BUSY),  # the statement was cancelled
        ("25006", Verdict.AWAY),  # the primary is a standby now
        ("25P03", Verdict.AWAY),  # idle in a transaction for too long
        ("53300", Verdict.AWAY),
        ("57P01", Verdict.AWAY),
        ("57P02", Verdict.AWAY),
        ("57P03", Verdict.AWAY),
        ("08006", Verdict.AWAY),
        ("53100", Verdict.FULL),
        ("23505", Verdict.RACE),
        ("42P01", Verdict.RACE),
        ("0A000", Verdict.DEFECT),
        ("22003", Verdict.DEFECT),
        ("42601", Verdict.DEFECT),
    ],
)
def test_the_verdict_on_an_error(code: str, verdict: Verdict) -> None:
    assert judge(server_error(code), connected=True) is verdict


def test_a_conflict_in_the_journal_means_that_the_group_was_committed() -> None:
    assert judge(server_error("23505", constraint_name="journal_pkey"), connected=True) is Verdict.COMMITTED
    assert judge(server_error("23505", constraint_name="jobs_pkey"), connected=True) is Verdict.RACE


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        asyncpg.ConnectionDoesNotExistError("closed"),
        OSError(5, "i/o"),
        asyncpg.exceptions.InternalClientError("cannot switch to state 15"),
    ],
)
def test_a_lost_connection_is_not_an_answer(error: Exception) -> None:
    assert judge(error, connected=False) is Verdict.AWAY
    assert is_away(error)


def test_an_unexpected_message_of_the_server_is_not_an_answer() -> None:
    assert judge(asyncpg.exceptions.InternalClientError("cannot switch to state 15"), connected=True) is Verdict.AWAY


def test_an_error_with_a_lost_connection_is_not_an_answer() -> None:
    assert judge(asyncpg.InterfaceError("something"), connected=False) is Verdict.AWAY
    assert judge(server_error("22003"), connected=False) is Verdict.AWAY
    assert judge(server_error("MS001"), connected=False) is Verdict.FENCED


def test_an_unknown_error_is_a_defect() -> None:
    assert judge(KeyError("x"), connected=True) is Verdict.DEFECT
    assert "a defect" in str(explain(KeyError("x"), ADDRESS))


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (server_error("28P01"), StoreError, "PGPASSWORD"),
        (server_error("28000"), StoreError, "pg_hba.conf"),
        (server_error("3D000"), StoreError, "createdb"),
        (server_error("42501"), StoreError, "CREATE SCHEMA mainspring AUTHORIZATION"),
        (server_error("53100"), StoreFullError, "no space"),
        (server_error("53300"), StoreUnavailableError, "max_connections"),
        (server_error("57P03"), StoreUnavailableError, "cannot be reached"),
        (server_error("42501"), StoreError, "GRANT ALL ON ALL TABLES IN SCHEMA mainspring"),
        (ConnectionRefusedError(111, "refused"), StoreUnavailableError, "refused"),
        (TimeoutError(), StoreUnavailableError, "no answer in time"),
        (server_error("42601"), StoreError, "SQLSTATE 42601"),
    ],
)
def test_messages_contain_advice(error: Exception, kind: type[StoreError], advice: str) -> None:
    explained = explain(error, ADDRESS)
    assert type(explained) is kind
    assert advice in str(explained)
    assert "postgresql://me@db/app" in str(explained)
    assert "secret" not in str(explained)

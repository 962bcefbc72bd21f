"""A connection to the store's primary, with the settings that groups depend on."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import structlog
from asyncpg import connect_utils
from asyncpg.connect_utils import SessionAttribute

from mainspring.engines.postgres import failures
from mainspring.engines.postgres.migrate import quoted
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address

log = structlog.get_logger("mainspring.postgres")

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to connect to one server."""
CLOSE_TIMEOUT: Final = 1.0
"""Seconds for an orderly close; after that the connection is dropped."""
FIRST_DELAY: Final = 0.05
LAST_DELAY: Final = 2.0
LOG_INTERVAL: Final = 60.0
"""Seconds between lines in the log while the store is unavailable."""

SESSION_SETTINGS: Final = {
    "jit": "off",  # compiling a statement takes longer than running any of these
    # Every statement finds its rows by an index. PostgreSQL plans it once: a plan made while a table was empty would scan the
    # whole table until the statistics are renewed, which may be a million rows later.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_indexonlyscan": "off",
    "lock_timeout": "2s",
    # A node that is cut off or frozen must not hold its term's lock for long: the node that recovers its jobs waits for the lock.
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "0",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    "default_transaction_isolation": "read committed",
}


def _retrieve(ended: asyncio.Future[bool]) -> None:
    if not ended.cancelled():
        ended.exception()


class _Upgrade(connect_utils.TLSUpgradeProto):
    """The library's request whether a server supports TLS.

    If an attempt times out just after the server has accepted it, the library drops the future of this request, and its exception
    would appear in the log as one that was never retrieved. No option avoids the request, so this class replaces the library's
    and retrieves the exception.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_data.add_done_callback(_retrieve)


connect_utils.TLSUpgradeProto = _Upgrade  # type: ignore[misc]


def delays() -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: doubling, with jitter so that nodes do not connect at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, not a secret
        delay = min(delay * 2, LAST_DELAY)


async def connect(address: Address, name: str) -> Connection[Record]:
    """Connect to the first server that accepts writes; ``name`` is shown in ``pg_stat_activity``.

    The connection keeps the server's present ``synchronous_commit``, even if the server's setting changes later. Raises
    StoreError, or StoreUnavailableError if another attempt may succeed.
    """
    failure: StoreError | None = None
    for dsn in address.dsns:
        try:
            connection = await asyncpg.connect(
                dsn,
                timeout=CONNECT_TIMEOUT,
                # `_check` distinguishes a standby from a server whose transactions may not write; the library does not.
                target_session_attrs=SessionAttribute.any,
                statement_cache_size=500,
                max_cached_statement_lifetime=0,
                server_settings={**SESSION_SETTINGS, "application_name": name, "search_path": quoted(address.schema)},
            )
        except failures.ERRORS as error:
            failure = _to_report(failure, failures.explain(error, address))
            failure.__cause__ = error
            await asyncio.sleep(0)  # the event loop closes the library's dropped sockets in its next iteration
            continue
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await _check(connection, address)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, (*failures.ERRORS, StoreError)):
                raise
            failure = _to_report(failure, failures.explain(error, address))
        else:
            return connection
    assert failure is not None
    raise failure


def _to_report(one: StoreError | None, other: StoreError) -> StoreError:
    """Return the failure to report of two servers: the first that may be available again soon."""
    return one if isinstance(one, StoreUnavailableError) else other


async def _check(connection: Connection[Record], address: Address) -> None:
    """Refuse a server that does not accept writes, or could lose acknowledged jobs."""
    shown = await connection.fetchrow(
        "SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only') AS read_only,"
        " current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,"
        " current_setting('synchronous_commit') AS synchronous_commit, current_setting('server_version') AS version"
    )
    assert shown is not None
    if shown["is_standby"]:
        raise failures.standby(address)
    if shown["read_only"] == "on":
        raise failures.read_only(address)
    if connection.get_server_version().major < 13:
        raise StoreError(f"{address.shown} is PostgreSQL {shown['version']}: use version 13 or newer")
    off = {
        name for name in ("fsync", "full_page_writes", "synchronous_commit") if shown[name] == "off"
    } - address.unsafe
    if off:
        names = ",".join(sorted(off))
        raise StoreError(
            f"{address.shown} has {names} off: a crash of its host would lose acknowledged jobs or damage the store."
            f" Switch it on there, or accept the loss by adding unsafe={names} to the address, after a '?' or a '&'"
        )
    await connection.execute(f"SET synchronous_commit = '{shown['synchronous_commit']}'")


async def connect_repeatedly(address: Address, name: str, open_timeout: float | None) -> Connection[Record]:
    """Connect in as many attempts as needed; raise StoreUnavailableError after ``open_timeout`` seconds (None: never)."""
    clock = asyncio.get_running_loop().time
    began, logged = clock(), 0.0
    for delay in delays():
        try:
            connection = await connect(address, name)
        except StoreError as error:
            away = clock() - began
            if not isinstance(error, StoreUnavailableError) and open_timeout is not None:
                raise
            if open_timeout is not None and away + delay > open_timeout:
                raise
            if not logged or clock() - logged >= LOG_INTERVAL:
                logged = clock()
                log.warning(
                    "the store is away: waiting for it", connection=name, reason=str(error), seconds=round(away, 1)
                )
            await asyncio.sleep(delay)
        else:
            if logged:
                log.info("the store is back", connection=name, seconds=round(clock() - began, 1))
            return connection
    raise AssertionError


async def disconnect(connection: Connection[Any] | None) -> None:
    """Close a connection: orderly within a second, or else by dropping it."""
    if connection is None or connection.is_closed():
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await connection.close(timeout=CLOSE_TIMEOUT)
    except failures.ERRORS:
        connection.terminate()

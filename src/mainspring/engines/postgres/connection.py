"""A connection to the store's primary, with the settings that groups rely on."""

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

CONNECT: Final = 5.0
"""Seconds for one server to let us in."""
CLOSE: Final = 1.0
"""Seconds for a polite end; after that the connection is dropped."""
FIRST_DELAY: Final = 0.05
LAST_DELAY: Final = 2.0
EVERY: Final = 60.0
"""Seconds between lines in the log while the store is away."""

SETTINGS: Final = {
    "jit": "off",  # compiling a statement takes longer than any of ours
    # Every statement looks rows up by an index. A plan is made once and kept: made while a table was empty, it would pass over
    # all of it for as long as a million rows may come before statistics say so.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_indexonlyscan": "off",
    "lock_timeout": "2s",
    # A node that is cut off or frozen must not hold its term's lock for long: whoever recovers its jobs waits for it.
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "0",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    "default_transaction_isolation": "read committed",
}


def _see(ended: asyncio.Future[bool]) -> None:
    if not ended.cancelled():
        ended.exception()


class _Upgrade(connect_utils.TLSUpgradeProto):
    """The library's question whether a server speaks TLS.

    Where an attempt is given up just when the server has accepted it, the library forgets that it has asked, and what becomes of
    that would stand in the log as an exception that was never retrieved. Nothing else tells of it, and no option avoids the
    question; so it takes the library's place there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_data.add_done_callback(_see)


connect_utils.TLSUpgradeProto = _Upgrade  # type: ignore[misc]


def delays() -> Iterator[float]:
    """Give the seconds to wait before each further attempt: doubling, and spread so that nodes do not come at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        delay = min(delay * 2, LAST_DELAY)


async def connect(address: Address, name: str) -> Connection[Record]:
    """Connect to the first of the servers that can be written to; ``name`` is shown in ``pg_stat_activity``.

    The connection's ``synchronous_commit`` stays what it is now, whatever the server's becomes. Raises StoreError, and
    StoreUnavailableError where another try may help.
    """
    failure: StoreError | None = None
    for dsn in address.dsns:
        try:
            connection = await asyncpg.connect(
                dsn,
                timeout=CONNECT,
                # `_check` tells a standby from a server on which transactions may not write; the library does not.
                target_session_attrs=SessionAttribute.any,
                statement_cache_size=500,
                max_cached_statement_lifetime=0,
                server_settings={**SETTINGS, "application_name": name, "search_path": quoted(address.schema)},
            )
        except failures.ERRORS as error:
            failure = _worse(failure, failures.explain(error, address))
            failure.__cause__ = error
            await asyncio.sleep(0)  # what the library dropped is closed in the loop's next turn
            continue
        try:
            async with asyncio.timeout(CONNECT):
                await _check(connection, address)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, (*failures.ERRORS, StoreError)):
                raise
            failure = _worse(failure, failures.explain(error, address))
        else:
            return connection
    assert failure is not None
    raise failure


def _worse(one: StoreError | None, other: StoreError) -> StoreError:
    """Of two servers' refusals, the one to tell: where one of them may be back soon, that one."""
    return one if isinstance(one, StoreUnavailableError) else other


async def _check(connection: Connection[Record], address: Address) -> None:
    """Refuse a server that cannot be written to, or would lose what it has acknowledged."""
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
            f"{address.shown} has {names} off: a crash of its host would lose jobs that were acknowledged, or damage the store."
            f" Switch it on there, or accept the loss by adding unsafe={names} to the address, after a '?' or a '&'"
        )
    await connection.execute(f"SET synchronous_commit = '{shown['synchronous_commit']}'")


async def connect_patiently(address: Address, name: str, patience: float | None) -> Connection[Record]:
    """Connect, also where that takes several attempts; raises StoreUnavailableError after ``patience`` seconds, None: never."""
    clock = asyncio.get_running_loop().time
    began, said = clock(), 0.0
    for delay in delays():
        try:
            connection = await connect(address, name)
        except StoreError as error:
            away = clock() - began
            if not isinstance(error, StoreUnavailableError) and patience is not None:
                raise
            if patience is not None and away + delay > patience:
                raise
            if not said or clock() - said >= EVERY:
                said = clock()
                log.warning(
                    "the store is away: waiting for it", connection=name, reason=str(error), seconds=round(away, 1)
                )
            await asyncio.sleep(delay)
        else:
            if said:
                log.info("the store is back", connection=name, seconds=round(clock() - began, 1))
            return connection
    raise AssertionError


async def disconnect(connection: Connection[Any] | None) -> None:
    """End a connection politely where that is soon done, and in any case at once."""
    if connection is None or connection.is_closed():
        return
    try:
        async with asyncio.timeout(CLOSE):
            await connection.close(timeout=CLOSE)
    except failures.ERRORS:
        connection.terminate()

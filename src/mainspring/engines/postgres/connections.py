"""Connections to the store's primary: its address, the settings that groups depend on, and the meaning of its errors.

The address of a store is ``postgresql://user:password@host:port/database?schema=mainspring``. For each of PostgreSQL's errors
there is a consequence for a group under way (`Verdict`), and a translation into the store's errors.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import asyncpg
import structlog
from asyncpg import connect_utils
from asyncpg.connect_utils import SessionAttribute

from mainspring.engines.postgres.migrate import quoted
from mainspring.errors import SettingsError, StoreError, StoreFullError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncpg import Connection, Record

SCHEMA: Final = "mainspring"
UNSAFE: Final = frozenset({"fsync", "synchronous_commit", "full_page_writes"})
"""The server settings that may be off if ``?unsafe=`` names them, separated by commas."""


class Address(NamedTuple):
    """The servers, the schema and the accepted risks of a store."""

    dsns: tuple[str, ...]
    """One for each server that may be the primary, in the order of the attempts."""
    schema: str
    unsafe: frozenset[str]
    """The settings that the server may have switched off."""
    shown: str
    """The address as messages show it: without the password."""

    @property
    def checksum(self) -> int:
        """The schema's checksum of 32 bits. Locks and channels belong to the whole database, so they carry it."""
        return zlib.crc32(self.schema.encode())


def parse_address(url: str) -> Address:
    """Parse an address; parameters that are not Mainspring's go to the client library unchanged. Raises SettingsError.

    Of several hosts, separated by commas, each gets its own DSN and so its own time-out: in the library's list, one host that
    swallows packets would use up the time of all.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise SettingsError(f"{parts.scheme}:// is not an address of PostgreSQL: write postgresql://user@host/database")
    try:
        query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise SettingsError(f"the part of the store's address after the '?' cannot be read: {error}") from error
    schema = query.pop("schema", [SCHEMA])[-1]
    if not schema or "\0" in schema or len(schema.encode()) > 63 or schema.startswith("pg_"):
        raise SettingsError(
            f"{schema!r} cannot be the name of a schema: it needs 1 to 63 bytes and must not begin with pg_"
        )
    unsafe = frozenset(name for value in query.pop("unsafe", []) for name in value.split(",") if name)
    if not unsafe <= UNSAFE:
        raise SettingsError(f"unsafe={','.join(sorted(unsafe - UNSAFE))} is unknown: use {', '.join(sorted(UNSAFE))}")
    query.pop("target_session_attrs", None)  # only a primary can be used
    rest = urlencode(query, doseq=True)
    credentials, at, hosts = parts.netloc.rpartition("@")
    dsns = tuple(parts._replace(netloc=f"{credentials}{at}{host}", query=rest).geturl() for host in hosts.split(","))
    user = credentials.partition(":")[0]
    return Address(dsns, schema, unsafe, f"{parts.scheme}://{user}{at}{hosts}{parts.path}")


ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.exceptions.InternalClientError,
    OSError,
    TimeoutError,
)
"""Every error that a call of the library may raise."""

FENCED: Final = "MS001"
COMMITTED: Final = "MS002"
OVERTAKEN: Final = "MS003"
_FULL: Final = frozenset({"53100"})
_READ_ONLY: Final = "25006"
_BUSY: Final = frozenset({"40001", "40P01", "55P03", "57014", "25P03", "0A000"})
"""Another session was faster, holds a lock, or cancelled a statement; 0A000 only for a cached plan that is out of date."""
_RACES: Final = frozenset({"23505", "42P01", "XX000", "53200", "53400", OVERTAKEN})
"""Conflicts that a new snapshot may resolve: a unique that was taken or a row that was changed in between, a dropped partition, a
momentary lack of memory."""
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "25P03"})
"""The server ends sessions, or has no connection left."""


class OvertakenError(Exception):
    """Rows have changed since the group read them."""

    sqlstate = OVERTAKEN


class Verdict(Enum):
    """The consequence of an error for the group that met it."""

    COMMITTED = auto()
    """An earlier attempt was committed."""
    FENCED = auto()
    """The node's term has ended."""
    AWAY = auto()
    """The connection is lost or useless: connect again, then run the group again."""
    BUSY = auto()
    """Run it again, as often as needed."""
    RACE = auto()
    """Run it again, a few times; after that it is a defect."""
    FULL = auto()
    """The server's disk is full."""
    DEFECT = auto()
    """A defect of this code, or of a changed schema."""


def judge(error: BaseException, *, connected: bool) -> Verdict:
    """Return the verdict on an error; ``connected``: the connection is still open."""
    code = getattr(error, "sqlstate", None) or ""
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "journal_pkey":
        return Verdict.COMMITTED
    if code == COMMITTED:
        return Verdict.COMMITTED
    if code == FENCED:
        return Verdict.FENCED
    if not connected or isinstance(error, (OSError, asyncpg.exceptions.InternalClientError)):
        return Verdict.AWAY
    if code in _AWAY or code == _READ_ONLY or code.startswith("08"):
        return Verdict.AWAY
    if code in _FULL:
        return Verdict.FULL
    if code == "0A000":
        return Verdict.BUSY if isinstance(error, asyncpg.InvalidCachedStatementError) else Verdict.DEFECT
    if code in _BUSY:
        return Verdict.BUSY
    return Verdict.RACE if code in _RACES else Verdict.DEFECT


def explain(error: BaseException, address: Address) -> StoreError:
    """Translate an error into one for the store at an address."""
    at = address.shown
    if isinstance(error, StoreError):
        return error
    if isinstance(error, asyncpg.InvalidPasswordError):
        return StoreError(
            f"{at} refuses the password ({error}): put the right one into the address, into PGPASSWORD, or into ~/.pgpass"
        )
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return StoreError(
            f"{at} refuses this user or connections from this machine ({error}): check its pg_hba.conf and its roles"
        )
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreError(f"{at}: {error}; create the database first (createdb), or name another one in the address")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(
            f"{at}: {error}; the role must own the schema {address.schema!r} and have all rights to its tables. The"
            f" database's owner creates it with: CREATE SCHEMA {address.schema} AUTHORIZATION <role>; and gives rights back with:"
            f" GRANT ALL ON ALL TABLES IN SCHEMA {address.schema} TO <role>"
        )
    if getattr(error, "sqlstate", None) in _FULL:
        return full(address, error)
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return StoreUnavailableError(
            f"{at} has no connection left ({error}): raise its max_connections; each node needs three"
        )
    if is_away(error):
        return StoreUnavailableError(f"{at} cannot be reached ({_reason(error)})")
    if isinstance(error, asyncpg.PostgresError):
        return StoreError(f"{at}: {_reason(error)} (SQLSTATE {error.sqlstate})")
    return StoreError(f"{at}: a defect in the store's code: {error!r}")


def is_away(error: BaseException) -> bool:
    """Return whether an error means that the server is unreachable for now: another attempt may succeed."""
    # The library's internal errors: the server sent an unexpected message, mostly the end of its session.
    if isinstance(error, (OSError, TimeoutError, asyncpg.exceptions.InternalClientError, StoreUnavailableError)):
        return True
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        return code in _AWAY or code == _READ_ONLY or code.startswith("08")
    # asyncpg's own: the connection is closed, or was closed during a command
    return isinstance(error, asyncpg.InterfaceError) and "connection" in str(error)


def standby(address: Address) -> StoreUnavailableError:
    """Return the error for a server that follows another one."""
    return StoreUnavailableError(
        f"{address.shown} is a standby, which does not accept writes: name the primary in the address, or all servers of the"
        " cluster with commas between them"
    )


def read_only(address: Address) -> StoreUnavailableError:
    """Return the error for a server that is no standby, but whose transactions may not write."""
    return StoreUnavailableError(
        f"{address.shown} has default_transaction_read_only on, and is not a standby: switch it off where it was set: in"
        " the server's settings, for the database (ALTER DATABASE … RESET default_transaction_read_only), or for the role"
        " (ALTER ROLE …)"
    )


def full(address: Address, error: BaseException) -> StoreFullError:
    """Return the error for a server whose disk is full."""
    return StoreFullError(
        f"no space is left for {address.shown} ({error}): free some on the database's host; accepted jobs are safe, and the"
        " node continues as soon as there is space"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__


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


def retrieve(ended: asyncio.Future[Any]) -> None:
    """Retrieve an exception that nobody else does, so that it does not appear in the log."""
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
        self.on_data.add_done_callback(retrieve)


connect_utils.TLSUpgradeProto = _Upgrade  # type: ignore[misc]


def delays(longest: float = LAST_DELAY) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: doubling, with jitter so that nodes do not connect at once."""
    delay = FIRST_DELAY
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, not a secret
        delay = min(delay * 2, longest)


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
        except ERRORS as error:
            failure = _to_report(failure, explain(error, address))
            failure.__cause__ = error
            await asyncio.sleep(0)  # the event loop closes the library's dropped sockets in its next iteration
            continue
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await _check(connection, address)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, (*ERRORS, StoreError)):
                raise
            failure = _to_report(failure, explain(error, address))
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
        raise standby(address)
    if shown["read_only"] == "on":
        raise read_only(address)
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


async def connect_repeatedly(
    address: Address, name: str, open_timeout: float | None, *, longest: float = LAST_DELAY
) -> Connection[Record]:
    """Connect in as many attempts as needed; raise StoreUnavailableError after ``open_timeout`` seconds (None: never).

    The pauses between attempts grow to ``longest`` seconds.
    """
    clock = asyncio.get_running_loop().time
    began, logged = clock(), 0.0
    for delay in delays(longest):
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
    except ERRORS:
        connection.terminate()

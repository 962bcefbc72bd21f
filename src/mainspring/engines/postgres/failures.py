"""PostgreSQL's errors: the consequence of each for a group under way, and its translation into the store's errors."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import asyncpg

from mainspring.errors import StoreError, StoreFullError, StoreUnavailableError

if TYPE_CHECKING:
    from mainspring.engines.postgres.address import Address

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

"""The address of a store on PostgreSQL: ``postgresql://user:password@host:port/database?schema=mainspring``."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from mainspring.errors import SettingsError

SCHEMA: Final = "mainspring"
UNSAFE: Final = frozenset({"fsync", "synchronous_commit", "full_page_writes"})
"""Settings of a server that may be off where ``?unsafe=`` names them, with commas between."""


class Address(NamedTuple):
    """Where a store is."""

    dsns: tuple[str, ...]
    """One for each server that may be the primary, in the order in which they are tried."""
    schema: str
    unsafe: frozenset[str]
    """What the server may have switched off."""
    shown: str
    """How messages call it: without the password."""

    @property
    def checksum(self) -> int:
        """A number of 32 bits for the schema: locks and channels are the whole database's and carry it."""
        return zlib.crc32(self.schema.encode())


def parse(url: str) -> Address:
    """Read an address; what is not ours in its query goes to the client library as it is. Raises SettingsError.

    Of several hosts with commas between, each gets a DSN of its own, and so a time-out of its own: in the library's list, one
    that swallows packets would use up the time of all.
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
            f"{schema!r} cannot be the name of a schema: PostgreSQL takes 1 to 63 bytes, not beginning with pg_"
        )
    unsafe = frozenset(name for value in query.pop("unsafe", []) for name in value.split(",") if name)
    if not unsafe <= UNSAFE:
        raise SettingsError(f"unsafe={','.join(sorted(unsafe - UNSAFE))}: known are {', '.join(sorted(UNSAFE))}")
    query.pop("target_session_attrs", None)  # there is only one that we can use
    rest = urlencode(query, doseq=True)
    credentials, at, hosts = parts.netloc.rpartition("@")
    dsns = tuple(parts._replace(netloc=f"{credentials}{at}{host}", query=rest).geturl() for host in hosts.split(","))
    user = credentials.partition(":")[0]
    return Address(dsns, schema, unsafe, f"{parts.scheme}://{user}{at}{hosts}{parts.path}")

"""The address of a store on PostgreSQL: ``postgresql://user:password@host:port/database?schema=mainspring``."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from mainspring.errors import SettingsError

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


def parse(url: str) -> Address:
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

"""The store of an App: its URL, and the options of tasks and jobs that the store does not support.

Every App loads this module, and it loads no engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from mainspring.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["memory", "sqlite", "postgres", "zookeeper"]

DEFAULT_STORE: Final = "sqlite:///mainspring.db"
ZOOKEEPER_CHROOT: Final = "/mainspring"
"""The default chroot: the node below which all others are."""
ZOOKEEPER_PORT: Final = 2181
ZOOKEEPER_FORM: Final = "write zookeeper://host:2181,host:2181,host:2181/chroot"

_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:@\s]+))(?::(?P<port>[0-9]{1,5}))?")
_ACCESS: Final = ("creator", "world")


@dataclass(frozen=True, slots=True, repr=False)
class ZooKeeper:
    """A store on ZooKeeper: ``zookeeper://host:2181,host:2181/chroot``.

    It supports neither limits nor transactional submits: an App on it refuses both.

    Raises SettingsError for an invalid address.
    """

    url: str

    def __post_init__(self) -> None:
        given: object = self.url
        if not isinstance(given, str):
            raise SettingsError(f"{given!r} is not an address of ZooKeeper: {ZOOKEEPER_FORM}")
        parse_zookeeper(given)

    def __repr__(self) -> str:
        """Show the address without its password."""
        return f"ZooKeeper({parse_zookeeper(self.url).shown!r})"


def check_store(store: object) -> None:
    """Check the store of an App: a ZooKeeper, the URL of another store, or None.

    Raises UsageError for anything else; for an invalid URL it is a SettingsError.
    """
    if store is None or isinstance(store, ZooKeeper):
        return
    if not isinstance(store, str):
        raise UsageError(f"store must be a URL or ZooKeeper(…); it is {store!r}")
    if store.startswith("zookeeper:"):
        raise UsageError(
            "a store on ZooKeeper has no limits, which must show in the code: write store=ZooKeeper('zookeeper://…')"
        )
    parse_url(store)


def check_options(store: object, options: Mapping[str, object]) -> None:
    """Raise UsageError for options of tasks and jobs that an App's store does not support.

    The options are limits and keys, ``request_key``, ``start_within`` and ``deadline``, ``connection``, a database connection for
    a transactional submit, and ``workflow``, ``listener`` and ``external`` for a definition of one. None and
    empty text count as not given.
    """
    if not isinstance(store, ZooKeeper):
        return
    given = [name for name, value in options.items() if value is not None and value != ""]
    if "connection" in given:
        raise UsageError(
            f"the App's store is {store!r}, which a database transaction cannot include: leave out connection= and submit"
            " after the commit, or use a store on PostgreSQL"
        )
    if "request_key" in given:
        raise UsageError(
            f"the App's store is {store!r}, which keeps no request keys: leave out request_key=, or give a unique="
        )
    if "workflow" in given:
        raise UsageError(
            f"the App's store is {store!r}, which has no workflows: define them on an App with a store on SQLite or PostgreSQL"
        )
    if "external" in given:
        raise UsageError(
            f"the App's store is {store!r}, which keeps no work that runs elsewhere: define it on an App with a store on SQLite"
            " or PostgreSQL"
        )
    if "listener" in given:
        raise UsageError(
            f"the App's store is {store!r}, which keeps no events: define listeners on an App with a store on SQLite or"
            " PostgreSQL"
        )
    if late := [f"{name}=" for name in ("start_within", "deadline") if name in given]:
        raise UsageError(
            f"the App's store is {store!r}, which keeps no deadlines: leave out {', '.join(late)}, or use a store on SQLite or"
            " PostgreSQL"
        )
    if given:
        raise UsageError(
            f"the App's store is {store!r}, which has no limits: leave out {', '.join(f'{name}=' for name in given)},"
            " or use a store on SQLite or PostgreSQL"
        )


class ParsedUrl(NamedTuple):
    """The URL of a store."""

    url: str
    engine: Engine
    path: Path | None = None
    """The SQLite file; None for other engines."""


def parse_url(url: str) -> ParsedUrl:
    """Parse a store's URL; the rest of an address is left to its engine.

    Raises SettingsError for an unknown scheme, and for a SQLite URL without a file.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        if url not in {"memory://", "memory:"}:
            raise SettingsError(f"{url!r} has a name, but a store in memory has none: write memory://")
        return ParsedUrl("memory://", "memory")
    if parts.scheme == "sqlite":
        if parts.netloc or not url.startswith("sqlite:///"):
            raise SettingsError(
                f"{url!r} lacks a slash: write sqlite:///FILE, or sqlite:////PATH/FILE for an absolute path"
            )
        path = unquote(url.removeprefix("sqlite:///"))
        if not path or path.endswith("/"):
            raise SettingsError(f"{url!r} names no file: write sqlite:///FILE, such as {DEFAULT_STORE}")
        return ParsedUrl(url, "sqlite", Path(path))
    if parts.scheme in {"postgresql", "postgres"}:
        return ParsedUrl(url, "postgres")
    if parts.scheme == "zookeeper":
        return ParsedUrl(url, "zookeeper")
    if not parts.scheme or len(parts.scheme) == 1:
        raise SettingsError(f"{url!r} is not a store: write sqlite:///{url} for that file, or memory://")
    raise SettingsError(
        f"{url!r} is a store that this version does not have: use sqlite:///FILE, postgresql://USER@HOST/DATABASE,"
        " zookeeper://HOST:2181/CHROOT, or memory:// to keep nothing"
    )


class ZooKeeperAddress(NamedTuple):
    """The parsed address of a store on ZooKeeper: ``zookeeper://user:password@host:port,host:port/chroot?acl=world``."""

    hosts: tuple[tuple[str, int], ...]
    """The members of the ensemble to connect to: name or IP address, and port."""
    chroot: str
    """The node below which all others are; it begins with a slash. A single slash is the root of the ensemble."""
    user: str | None
    password: str
    is_open: bool
    """Whether all clients may read and change the nodes; otherwise only those with the same credentials."""
    shown: str
    """The address for messages, without the password."""


def parse_zookeeper(url: str) -> ZooKeeperAddress:
    """Return the parsed address. Raises SettingsError.

    The session time-out is the lease of the fleet's nodes, and no part of the address.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:  # wrong brackets
        raise SettingsError(f"the store's address cannot be read: {error}; {ZOOKEEPER_FORM}") from error
    if parts.scheme != "zookeeper":
        raise SettingsError(f"{parts.scheme}:// is not an address of ZooKeeper: {ZOOKEEPER_FORM}")
    if parts.fragment:
        raise SettingsError(f"the store's address has a '#': write it as %23, or {ZOOKEEPER_FORM}")
    credentials, at, listed = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon and password):
        raise SettingsError("the store's address has an '@' without user and password: write user:password@host")
    user, password = unquote(user), unquote(password)
    if ":" in user:
        raise SettingsError("a user of ZooKeeper has no colon in the name")
    hosts = tuple(_host(host) for host in listed.split(","))
    chroot = _chroot(unquote(parts.path))
    access = _access(parts.query)
    if access == "creator" and not at:
        raise SettingsError("acl=creator needs credentials: write user:password@host, or leave it out")
    shown = f"zookeeper://{user}{at}{listed}{chroot}"
    return ZooKeeperAddress(hosts, chroot, user if at else None, password, not at or access == "world", shown)


def _host(text: str) -> tuple[str, int]:
    if not text:
        raise SettingsError(f"the store's address names no host, or has a comma too many: {ZOOKEEPER_FORM}")
    found = _HOST.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"{text!r} is not a host of ZooKeeper: {ZOOKEEPER_FORM}; numbers with colons stand in brackets: [::1]:2181"
        )
    port = int(found["port"] or ZOOKEEPER_PORT)
    if not 0 < port < 65_536:
        raise SettingsError(f"{text!r}: a port is a number from 1 to 65535; ZooKeeper's own is {ZOOKEEPER_PORT}")
    return found["six"] or found["name"], port


def _chroot(path: str) -> str:
    if not path:
        return ZOOKEEPER_CHROOT
    chroot = path.rstrip("/") or "/"
    parts = chroot[1:].split("/")
    if chroot == "/":
        return chroot
    if any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise SettingsError(f"{path!r} cannot be a node of ZooKeeper: {ZOOKEEPER_FORM}")
    if parts[0] == "zookeeper":
        raise SettingsError("/zookeeper is reserved for ZooKeeper itself: choose another chroot")
    return chroot


def _access(query: str) -> str | None:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise SettingsError(f"the part of the store's address after the '?' cannot be read: {error}") from error
    access = options.pop("acl", None)
    if options:
        raise SettingsError(f"{next(iter(options))}= is not an option of a ZooKeeper address: there is only acl=world")
    if access is not None and access not in _ACCESS:
        raise SettingsError(f"acl={access}: known are {' and '.join(_ACCESS)}")
    return access

"""The store of an App, and the options of tasks and jobs that the store does not support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import address
from mainspring.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            raise SettingsError(f"{given!r} is not an address of ZooKeeper: {address.WRITE}")
        address.parse(given)

    def __repr__(self) -> str:
        """Show the address without its password."""
        return f"ZooKeeper({address.parse(self.url).shown!r})"


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
    # Loaded only for Apps with a store.
    from mainspring.server.settings import parse_store  # noqa: PLC0415

    parse_store(store)


def check_options(store: object, options: Mapping[str, object]) -> None:
    """Raise UsageError for options of tasks and jobs that an App's store does not support.

    The options are limits and keys, ``request_key``, ``connection``, a database connection for a transactional submit, and
    ``workflow`` for a definition of one. None and empty text count as not given.
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
            f"the App's store is {store!r}, which has no workflows: define them on an App with a store on SQLite or in memory"
        )
    if given:
        raise UsageError(
            f"the App's store is {store!r}, which has no limits: leave out {', '.join(f'{name}=' for name in given)},"
            " or use a store on SQLite or PostgreSQL"
        )

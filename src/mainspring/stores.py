"""The store that an App is made for, and what its tasks and jobs cannot have there."""

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

    It keeps no limits, and no transaction of a database reaches it: an App on it refuses both where they are given.

    Raises SettingsError for what is no such address.
    """

    url: str

    def __post_init__(self) -> None:
        given: object = self.url
        if not isinstance(given, str):
            raise SettingsError(f"{given!r} is no address of ZooKeeper: {address.WRITE}")
        address.parse(given)

    def __repr__(self) -> str:
        """Show the address without its password."""
        return f"ZooKeeper({address.parse(self.url).shown!r})"


def check_store(store: object) -> None:
    """Check what a user gives an App as its store: a ZooKeeper, the URL of any other, or None.

    Raises UsageError for anything else; that is SettingsError for a URL that is wrong.
    """
    if store is None or isinstance(store, ZooKeeper):
        return
    if not isinstance(store, str):
        raise UsageError(f"store must be a URL or ZooKeeper(…); it is {store!r}")
    if store.startswith("zookeeper:"):
        raise UsageError(
            "a store on ZooKeeper keeps no limits, and code is to say so: write store=ZooKeeper('zookeeper://…')"
        )
    # Only who names a store needs what reads its address.
    from mainspring.server.settings import parse_store  # noqa: PLC0415

    parse_store(store)


def check_options(store: object, options: Mapping[str, object]) -> None:
    """Raise UsageError for options of tasks and jobs, None or empty where they are not given, that an App's store cannot keep.

    All options are those of limits, but ``connection``, a connection to submit by.
    """
    if not isinstance(store, ZooKeeper):
        return
    given = [name for name, value in options.items() if value is not None and value != ""]
    if "connection" in given:
        raise UsageError(
            f"the App's store is {store!r}, which no transaction of a database reaches: leave out connection= and submit"
            " after the commit, or use a store on PostgreSQL"
        )
    if given:
        raise UsageError(
            f"the App's store is {store!r}, which keeps no limits: leave out {', '.join(f'{name}=' for name in given)},"
            " or use a store on SQLite or PostgreSQL"
        )

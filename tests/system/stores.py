"""The stores that nodes share, each an empty place on servers that all tests share, and routes to them that can be disturbed."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from tests.postgres.proxy import Proxy
from tests.postgres.traps import READY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tests.postgres.server import PostgresServer
    from tests.postgres.traps import Trap
    from tests.zookeeper.server import Ensemble

POSTGRESQL: Final = "postgresql"
ZOOKEEPER: Final = "zookeeper"

_NUMBERS: Final = itertools.count(1)


class Traits(NamedTuple):
    """Properties of a kind of store: the texts of its protocol's requests and answers, and the number of a node's connections."""

    commit: bytes
    """Text in each request of a member node to commit."""
    until: bytes
    """The end of the answer to it."""
    begin: bytes
    """Text in the request that begins a node's term."""
    connections: int
    """Connections of each node."""


TRAITS: Final[Mapping[str, Traits]] = {
    POSTGRESQL: Traits(commit=b"COMMIT", until=READY, begin=b'"counter":0,', connections=3),
    # Any answer matches: the next one ends the connection, and the answers under way are lost.
    ZOOKEEPER: Traits(commit=b"/journals/", until=b"", begin=b"/terms/", connections=1),
}


class StoreRoute(NamedTuple):
    """A route to a store."""

    url: str
    proxy: Proxy | None = None
    """The proxy in between, if any."""
    traits: Traits = TRAITS[POSTGRESQL]

    def lose_answer(self, *, to: bytes | None = None) -> Trap:
        """Execute the next commit (or the next request with ``to`` in it), but lose its answer."""
        assert self.proxy is not None
        return self.proxy.lose_answer(self.traits.commit if to is None else to, self.traits.until)

    def lose_request(self, *, of: bytes | None = None) -> Trap:
        """Lose the next commit (or the next request with ``of`` in it)."""
        assert self.proxy is not None
        return self.proxy.lose_request(self.traits.commit if of is None else of)


class Store(NamedTuple):
    """An empty place that nodes may share."""

    kind: str
    url: str
    servers: Mapping[str, int]
    """The URL of the place and the port, for each server."""

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]

    @property
    def route(self) -> StoreRoute:
        """The direct route."""
        return StoreRoute(self.url, None, self.traits)

    @contextmanager
    def routes(self, number: int) -> Iterator[list[StoreRoute]]:
        """Return routes to the store, each through its own proxy in front of one of the servers, in rotation."""
        servers = itertools.islice(itertools.cycle(self.servers.items()), number)
        with ExitStack() as stack:
            proxies = [(url, stack.enter_context(Proxy(port))) for url, port in servers]
            yield [StoreRoute(proxy.through(url), proxy, self.traits) for url, proxy in proxies]


@contextmanager
def on_postgresql(fixture: Callable[[str], Any], *, migrated: bool = True) -> Iterator[Store]:
    """Create a database with the store's schema, or without, and drop it afterwards."""
    server: PostgresServer = fixture("postgres")
    url = server.create_database(*[fixture("schema")] if migrated else ())
    try:
        yield Store(POSTGRESQL, url, {url: server.port})
    finally:
        server.drop_database(url)


@contextmanager
def on_zookeeper(fixture: Callable[[str], Any], *, migrated: bool = True) -> Iterator[Store]:
    """Return a path of an ensemble of three where no node exists yet."""
    yield place_of(fixture("ensemble"))


def place_of(ensemble: Ensemble) -> Store:
    """Return a path of an ensemble where no node exists yet."""
    chroot = f"/system{next(_NUMBERS)}"
    servers = {f"zookeeper://127.0.0.1:{port}{chroot}": port for port in ensemble.ports}
    return Store(ZOOKEEPER, ensemble.url(chroot), servers)


STORES: Final[Mapping[str, Callable[..., AbstractContextManager[Store]]]] = {
    POSTGRESQL: on_postgresql,
    ZOOKEEPER: on_zookeeper,
}
on_each_store = pytest.mark.parametrize("store", [*STORES], indirect=True)
"""For tests of the promises of every shared store."""

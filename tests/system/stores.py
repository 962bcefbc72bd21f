"""The stores that nodes share, each as an empty place on servers that all tests use, and ways there that can be disturbed."""

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
    """What is known of a kind of store by what nodes say to it."""

    commit: bytes
    """What is in each request to commit something, of a node that takes part."""
    until: bytes
    """How the answer to it ends."""
    begin: bytes
    """What is in the request to begin a node's term."""
    connections: int
    """How many connections a node has."""


TRAITS: Final[Mapping[str, Traits]] = {
    POSTGRESQL: Traits(commit=b"COMMIT", until=READY, begin=b'"counter":0,', connections=3),
    # With the next answer, whichever it is, the connection ends, and all answers are lost that are on their way.
    ZOOKEEPER: Traits(commit=b"/journals/", until=b"", begin=b"/terms/", connections=1),
}


class Way(NamedTuple):
    """A way to a store."""

    url: str
    proxy: Proxy | None = None
    """Stands in between, where there is one."""
    traits: Traits = TRAITS[POSTGRESQL]

    def lose_answer(self, *, to: bytes | None = None) -> Trap:
        """Let the next commit (or whatever has ``to`` in it) happen, and nobody hear of it."""
        assert self.proxy is not None
        return self.proxy.lose_answer(self.traits.commit if to is None else to, self.traits.until)

    def lose_request(self, *, of: bytes | None = None) -> Trap:
        """Let the next commit (or whatever has ``of`` in it) never be heard of."""
        assert self.proxy is not None
        return self.proxy.lose_request(self.traits.commit if of is None else of)


class Store(NamedTuple):
    """An empty place that nodes may share."""

    kind: str
    url: str
    servers: Mapping[str, int]
    """Of each server of it the address of the place there, and the port."""

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]

    @property
    def way(self) -> Way:
        """The straight way."""
        return Way(self.url, None, self.traits)

    @contextmanager
    def ways(self, number: int) -> Iterator[list[Way]]:
        """Give some ways there, each by a proxy of its own before one of the servers, in turns."""
        servers = itertools.islice(itertools.cycle(self.servers.items()), number)
        with ExitStack() as stack:
            proxies = [(url, stack.enter_context(Proxy(port))) for url, port in servers]
            yield [Way(proxy.through(url), proxy, self.traits) for url, proxy in proxies]


@contextmanager
def on_postgresql(fixture: Callable[[str], Any]) -> Iterator[Store]:
    """Give an empty database; it is dropped afterwards."""
    server: PostgresServer = fixture("postgres")
    url = server.create_database()
    try:
        yield Store(POSTGRESQL, url, {url: server.port})
    finally:
        server.drop_database(url)


@contextmanager
def on_zookeeper(fixture: Callable[[str], Any]) -> Iterator[Store]:
    """Give a node of an ensemble of three that is not there yet."""
    yield place_of(fixture("ensemble"))


def place_of(ensemble: Ensemble) -> Store:
    """Return a node of an ensemble that is not there yet."""
    chroot = f"/system{next(_NUMBERS)}"
    servers = {f"zookeeper://127.0.0.1:{port}{chroot}": port for port in ensemble.ports}
    return Store(ZOOKEEPER, ensemble.url(chroot), servers)


STORES: Final[Mapping[str, Callable[[Callable[[str], Any]], AbstractContextManager[Store]]]] = {
    POSTGRESQL: on_postgresql,
    ZOOKEEPER: on_zookeeper,
}
on_each_store = pytest.mark.parametrize("store", [*STORES], indirect=True)
"""For tests of what every shared store promises."""

"""The stores that nodes share, each as an empty place on a server that all tests use, and a way there that can be disturbed."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
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


class Store(NamedTuple):
    """An empty place that nodes may share."""

    kind: str
    url: str
    proxy: Proxy
    """Stands before one server of it."""
    through: str
    """The same place by way of the proxy, and by nothing else."""
    commit: bytes
    """What is in each request to commit something, of a node that takes part."""
    until: bytes
    """How the answer to it ends."""
    begin: bytes
    """What is in the request to begin a node's term."""
    connections: int
    """How many connections a node has."""

    def lose_answer(self) -> Trap:
        """Let the next commit by way of the proxy happen, and nobody hear of it."""
        return self.proxy.lose_answer(self.commit, self.until)

    def lose_request(self) -> Trap:
        """Let the next commit by way of the proxy never be heard of."""
        return self.proxy.lose_request(self.commit)


@contextmanager
def on_postgresql(fixture: Callable[[str], Any]) -> Iterator[Store]:
    """Give an empty database; it is dropped afterwards."""
    server: PostgresServer = fixture("postgres")
    url = server.create_database()
    try:
        with Proxy(server.port) as proxy:
            yield Store(
                POSTGRESQL,
                url,
                proxy,
                proxy.through(url),
                commit=b"COMMIT",
                until=READY,
                begin=b'"counter":0,',
                connections=2,
            )
    finally:
        server.drop_database(url)


@contextmanager
def on_zookeeper(fixture: Callable[[str], Any]) -> Iterator[Store]:
    """Give a node of an ensemble of three that is not there yet."""
    ensemble: Ensemble = fixture("ensemble")
    chroot = f"/system{next(_NUMBERS)}"
    with Proxy(ensemble.ports[0]) as proxy:
        through = proxy.through(f"zookeeper://127.0.0.1:{ensemble.ports[0]}{chroot}")
        yield Store(
            ZOOKEEPER,
            ensemble.url(chroot),
            proxy,
            through,
            commit=b"/journals/",
            until=b"",  # whatever comes next: with that connection, all answers are lost that are on their way
            begin=b"/terms/",
            connections=1,
        )


STORES: Final[Mapping[str, Callable[[Callable[[str], Any]], AbstractContextManager[Store]]]] = {
    POSTGRESQL: on_postgresql,
    ZOOKEEPER: on_zookeeper,
}
on_each_store = pytest.mark.parametrize("store", [*STORES], indirect=True)
"""For tests of what every shared store promises."""

"""Limits of connections for each port."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.server.process import ConnectionLimits, connection_limits
from mainspring.server.settings import LimitSettings, ListenSettings, ServerSettings, TcpAddress, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = TcpAddress("127.0.0.1", 0)
ALL = ListenSettings(http=HERE, gearman_http=HERE)


@contextlib.contextmanager
def open_files(soft: int) -> Iterator[None]:
    original = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, original[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, original)


def test_each_http_port_has_an_eighth_at_most() -> None:
    with open_files(2000):
        alone = connection_limits(ServerSettings())
        assert alone[:3] == (0, 0, 0)
        all_of_them = connection_limits(ServerSettings(listen=ALL))
        assert all_of_them == ConnectionLimits(250, 250, 0, alone.gearman - 500)
        pem = TlsSettings(Path("a"), Path("b"))
        secured = connection_limits(ServerSettings(listen=ListenSettings(http=HERE, gearman_http=HERE, tls=pem)))
        assert secured == ConnectionLimits(125, 125, 125, alone.gearman - 750)
    with open_files(100):
        assert connection_limits(ServerSettings(listen=ALL))[:2] == (12, 12)


def test_a_limit_on_connections_is_lowered_to_the_available_descriptors() -> None:
    with open_files(2000):
        room = connection_limits(ServerSettings()).gearman
        assert room < 2000
        for wanted, given in ((7, 7), (5000, room)):
            assert connection_limits(ServerSettings(limits=LimitSettings(max_connections=wanted))).gearman == given

"""A node with its ports."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging
from mainspring.server.serving import Server
from mainspring.server.settings import Address, ListenSettings, ServerSettings, TcpAddress, UnixAddress, parse_store
from mainspring.server.sockets import PortError

if TYPE_CHECKING:
    from pathlib import Path


async def announced(*addresses: Address) -> tuple[str, list[str]]:
    """Return the address that a node announces to others, and the addresses on which it listens."""
    settings = ServerSettings(store=parse_store("memory://"), listen=ListenSettings(gearman=addresses))
    server = Server(settings, start_logging(LogSettings(enabled=False)))
    listening = await server.start()
    try:
        return server.address, [f"{port.host}:{port.port}" for port in listening]
    finally:
        await server.stop()


def test_other_nodes_get_the_address_of_a_tcp_port(tmp_path: Path) -> None:
    private = UnixAddress(str(tmp_path / "workers.sock"))
    address, (_, listening) = asyncio.run(announced(private, TcpAddress("127.0.0.1", 0)))
    assert address == listening != ""
    assert asyncio.run(announced(private))[0] == ""
    assert asyncio.run(announced(TcpAddress("::1", 0)))[0].startswith("[::1]:")


def test_a_server_removes_its_own_socket_file_only(tmp_path: Path) -> None:
    path = tmp_path / "workers.sock"
    asyncio.run(announced(UnixAddress(str(path))))
    assert not path.exists()

    async def replaced() -> None:
        settings = ServerSettings(
            store=parse_store("memory://"), listen=ListenSettings(gearman=(UnixAddress(str(path)),))
        )
        server = Server(settings, start_logging(LogSettings(enabled=False)))
        await server.start()
        path.rename(tmp_path / "moved.sock")  # so that the new file gets another inode
        path.touch()
        await server.stop()

    asyncio.run(replaced())
    assert path.exists()


def test_a_node_starts_without_a_default_port_that_is_taken() -> None:
    """An address that the user has set has to be free."""

    async def faces(*, is_default: bool) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            http = TcpAddress("127.0.0.1", taken.getsockname()[1])
            listen = ListenSettings(gearman=(), http=http, http_is_default=is_default)
            settings = ServerSettings(store=parse_store("memory://"), listen=listen)
            server = Server(settings, start_logging(LogSettings(enabled=False)))
            opened = await server.start()
            assert await server.sign_in_link() is None
            await server.stop()
            return [port.face for port in opened]

    assert asyncio.run(faces(is_default=True)) == []
    with pytest.raises(PortError):
        asyncio.run(faces(is_default=False))

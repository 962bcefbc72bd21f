from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mainspring.server.settings import TcpAddress, UnixAddress
from mainspring.server.sockets import PortError, bind, bound_address


def test_port_0_becomes_a_free_port() -> None:
    (opened,) = bind(TcpAddress("127.0.0.1", 0))
    with opened:
        address = bound_address(opened)
        assert isinstance(address, TcpAddress)
        assert address.port > 0
        socket.create_connection((address.host, address.port)).close()


def test_a_port_in_use_is_named() -> None:
    (opened,) = bind(TcpAddress("127.0.0.1", 0))
    with opened, pytest.raises(PortError, match=r"cannot listen on 127\.0\.0\.1:\d+: something listens there already"):
        bind(bound_address(opened))


def test_unavailable_addresses_are_refused() -> None:
    with pytest.raises(PortError, match="no such address"):
        bind(TcpAddress("192.0.2.1", 0))
    with pytest.raises(PortError, match="name cannot be resolved"):
        bind(TcpAddress("no-such-host.invalid", 0))


def test_all_addresses_of_a_name_get_the_same_port() -> None:
    opened = bind(TcpAddress("localhost", 0))
    try:
        assert len({one.getsockname()[1] for one in opened}) == 1
    finally:
        for one in opened:
            one.close()


def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "m.sock"))
    (opened,) = bind(address)
    with opened:
        assert bound_address(opened) == address
        with pytest.raises(PortError, match="already"):
            bind(address)
    (rebound,) = bind(address)  # the stale file of a dead server is no obstacle
    rebound.close()
    with pytest.raises(PortError, match="create it"):
        bind(UnixAddress(str(tmp_path / "missing" / "m.sock")))
    assert Path(address.path).exists()


def test_a_path_that_cannot_be_a_socket_is_explained(tmp_path: Path) -> None:
    link, file, long = tmp_path / "link.sock", tmp_path / "file.sock", tmp_path / ("x" * 120)
    link.symlink_to(tmp_path / "nowhere")
    file.touch()
    for path, reason in (
        (link, r"it is a symbolic link to .*/nowhere, which does not exist; remove the link"),
        (file, r"a file that is no socket has this path; remove it"),
        (long, r"the path has \d+ bytes, and that of a socket has at most \d+; choose a shorter one"),
    ):
        with pytest.raises(PortError, match=reason):
            bind(UnixAddress(str(path)))
    assert link.is_symlink()

"""The ports of a node that cannot bind all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mainspring.access.caller import Grant, Role
from mainspring.server.ports import Listening, Ports
from mainspring.server.settings import ListenSettings, ServerSettings, TcpAddress, UnixAddress
from mainspring.server.sockets import PortError, bind, bound_address

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.access.caller import Caller
    from mainspring.server.settings import Address


def free_address() -> Address:
    """Return an address on which nothing listens."""
    (opened,) = bind(TcpAddress("127.0.0.1", 0))
    with opened:
        return bound_address(opened)


@pytest.mark.parametrize("taken", ["gearman", "http", "gearman_http"])
def test_a_port_that_is_taken_leaves_no_other_open(taken: str, tmp_path: Path) -> None:
    file, gearman, http = tmp_path / "m.sock", free_address(), free_address()
    (holder,) = bind(TcpAddress("127.0.0.1", 0))
    with holder:
        here = bound_address(holder)
        listen = ListenSettings(
            gearman=(UnixAddress(str(file)), gearman, *([here] if taken == "gearman" else [])),
            http=here if taken == "http" else http,
            gearman_http=here if taken == "gearman_http" else None,
        )
        with pytest.raises(PortError, match="something listens there already"):
            Ports(ServerSettings(listen=listen)).bind()
    assert not file.exists()
    for address in (gearman, http):
        for opened in bind(address):
            opened.close()


def test_a_socket_in_the_file_system_may_have_a_namespace(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "m.sock"
        listen = ListenSettings(gearman=(UnixAddress(str(file), "team", Role.OPERATOR),))
        ports = Ports(ServerSettings(listen=listen))
        ports.bind()
        opened: asyncio.Queue[tuple[str | None, Caller]] = asyncio.Queue()

        def peer(namespace: str | None, caller: Caller) -> asyncio.Protocol:
            opened.put_nowait((namespace, caller))
            return asyncio.Protocol()

        await ports.listen_gearman(peer)
        _, writer = await asyncio.open_unix_connection(file)
        namespace, caller = await asyncio.wait_for(opened.get(), 10)
        assert (namespace, caller.grants) == ("team", (Grant(Role.OPERATOR, "team"),))
        assert ports.opened == [Listening("gearman", f"unix:{file}", 0, "team")]
        writer.close()
        await ports.close_for_jobs()
        await ports.close_for_monitoring()

    asyncio.run(test())

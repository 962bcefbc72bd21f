from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.access.caller import Role
from mainspring.errors import SettingsError
from mainspring.server.settings import (
    TcpAddress,
    UnixAddress,
    is_local,
    parse_address,
    parse_addresses,
    parse_gearman_addresses,
)

if TYPE_CHECKING:
    from mainspring.server.settings import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4730", TcpAddress("127.0.0.1", 4730)),
        ("127.0.0.1", TcpAddress("127.0.0.1", 4730)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:4731", TcpAddress("::1", 4731)),
        ("[::1]", TcpAddress("::1", 4730)),
        ("::1", TcpAddress("::1", 4730)),
        ("unix:/run/m.sock", UnixAddress("/run/m.sock")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":4730", "host:port", "host:99999", "a:b:c", "[::1", "unix:", "host:-1", "http://x"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_address(text)


def test_a_port_can_be_required() -> None:
    with pytest.raises(SettingsError, match="has no port"):
        parse_address("127.0.0.1", default_port=None)


def test_lists_of_addresses() -> None:
    assert parse_addresses("127.0.0.1:1, [::1]:2") == (TcpAddress("127.0.0.1", 1), TcpAddress("::1", 2))
    assert parse_addresses("none") == ()
    with pytest.raises(SettingsError):
        parse_addresses(",")


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("localhost", True),
        ("unix:/x", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.5", False),
        ("no-such-host.invalid", False),
    ],
)
def test_local_addresses_are_recognized(text: str, local: bool) -> None:
    assert is_local(parse_address(text)) is local


@pytest.mark.parametrize(("others", "local"), [([], True), (["192.0.2.7"], False)])
def test_a_name_is_local_if_all_of_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch, others: list[str], local: bool
) -> None:
    found = [(None, None, 0, "", (address, 0)) for address in ("127.0.0.1", *others)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    assert is_local(parse_address("node.example:4730")) is local


def test_the_text_of_an_address_parses_to_the_same_address() -> None:
    for text in ("127.0.0.1:4730", "[::1]:4731", "unix:/run/m.sock"):
        assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1/team", TcpAddress("127.0.0.1", 1, "team")),
        ("unix/team:/run/m.sock", UnixAddress("/run/m.sock", "team")),
        ("127.0.0.1:1/team=admin", TcpAddress("127.0.0.1", 1, "team", Role.ADMIN)),
        ("unix/team=viewer:/run/m.sock", UnixAddress("/run/m.sock", "team", Role.VIEWER)),
        ("127.0.0.1:1/team=", None),
        ("127.0.0.1:1/team=root", None),
        ("unix/team=Boss:/run/m.sock", None),
        ("unix/team:rel:ative", UnixAddress("rel:ative", "team")),
        ("unix:/run/team", UnixAddress("/run/team")),
        ("unix/team", None),
        ("unix/team:", None),
        ("unix/TEAM:/run/m.sock", None),
        ("unix/:/run/m.sock", None),
        ("127.0.0.1:1/", None),
    ],
)
def test_addresses_with_namespaces(text: str, address: Address | None) -> None:
    if address is None:
        with pytest.raises(SettingsError):
            parse_gearman_addresses(text)
        return
    assert parse_gearman_addresses(f"{text}, unix:/x") == (address, UnixAddress("/x"))
    assert str(address) == text


def test_addresses_of_other_ports_have_no_namespace() -> None:
    for text in ("127.0.0.1:1/team", "unix/team:/run/m.sock"):
        with pytest.raises(SettingsError):
            parse_address(text)

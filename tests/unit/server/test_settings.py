from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.access.proxy import parse_networks
from mainspring.errors import SettingsError
from mainspring.server.settings import (
    FleetSettings,
    ListenSettings,
    ServerSettings,
    TcpAddress,
    TlsSettings,
    default_node_name,
    parse_address,
    parse_store,
)

if TYPE_CHECKING:
    from typing import Any


def listening(*addresses: str, **more: Any) -> ServerSettings:
    return ServerSettings(listen=ListenSettings(gearman=tuple(parse_address(text) for text in addresses), **more))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///mainspring.db", Path("mainspring.db")),
        ("sqlite:////var/lib/jobs.db", Path("/var/lib/jobs.db")),
        ("sqlite:///a%20b.db", Path("a b.db")),
    ],
)
def test_sqlite_stores(url: str, path: Path) -> None:
    settings = parse_store(url)
    assert (settings.engine, settings.path, settings.url) == ("sqlite", path, url)


def test_an_absolute_store_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = parse_store("sqlite:///a%20b.db").absolute()
    assert absolute.path == tmp_path / "a b.db"
    assert parse_store(absolute.url).path == absolute.path
    assert parse_store("memory://").absolute().url == "memory://"


def test_memory_store() -> None:
    assert parse_store("memory://").path is None


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("jobs.db", "sqlite:///jobs.db"),
        ("sqlite://jobs.db", "sqlite:///FILE"),
        ("sqlite:///", "names no file"),
        ("memory://x", "memory://"),
        ("mysql://host/db", "postgresql://"),
    ],
)
def test_invalid_stores_are_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        parse_store(url)


def test_an_address_beyond_loopback_needs_tls_and_certificates() -> None:
    listening("127.0.0.1:1", "[::1]:1").check()
    with pytest.raises(SettingsError, match="--insecure"):
        listening("127.0.0.1:1", "0.0.0.0:1").check()
    with pytest.raises(SettingsError, match="--tls-client-ca"):
        listening("0.0.0.0:1", tls=TlsSettings(Path("c"), Path("k"))).check()
    listening("0.0.0.0:1", tls=TlsSettings(Path("c"), Path("k"), Path("ca"))).check()
    listening("0.0.0.0:1", insecure=True).check()


def test_the_rule_holds_for_http_too() -> None:
    for face in ("http", "gearman_http"):
        with pytest.raises(SettingsError, match=r"10\.0\.0\.5:80"):
            listening("127.0.0.1:1", **{face: TcpAddress("10.0.0.5", 80)}).check()


def test_looks_at_other_nodes_do_not_load_the_database() -> None:
    for look in (0.0, 0.1, 60.0):
        ServerSettings(fleet=FleetSettings(look=look)).check()
    with pytest.raises(SettingsError, match="every 50ms loads the database: give at least 100ms, or 0s"):
        ServerSettings(fleet=FleetSettings(look=0.05)).check()


def test_two_faces_need_two_ports() -> None:
    address = TcpAddress("127.0.0.1", 8080)
    with pytest.raises(SettingsError, match="another port"):
        listening("127.0.0.1:1", http=address, gearman_http=address).check()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("sqlite:////var/jobs.db", "sqlite:////var/jobs.db"),
        ("postgresql://me@a,b:5433/jobs?schema=x", "postgresql://me@a,b:5433/jobs?schema=x"),
        ("postgresql://me:secret@a,b:5433/jobs", "postgresql://me:***@a,b:5433/jobs"),
        (
            "postgresql://a/jobs?password=secret&sslpassword=secret&schema=x",
            "postgresql://a/jobs?password=***&sslpassword=***&schema=x",
        ),
    ],
)
def test_a_store_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert parse_store(url).shown == shown


@pytest.mark.parametrize(
    ("host", "name"),
    [("web1.example.org", "web1"), ("_höst", "h-st"), ("", "node"), ("a" * 64, "a" * 32), ("...", "node")],
)
def test_node_name_of_a_host(host: str, name: str) -> None:
    assert default_node_name(host) == name


def test_settings_cannot_be_changed() -> None:
    settings = ServerSettings()
    with pytest.raises(AttributeError):
        settings.name = "x"  # type: ignore[misc,assignment]
    assert replace(settings, banner="x").banner == "x"


def test_trusted_proxies_and_the_rights_of_their_users_belong_together() -> None:
    settings = ServerSettings(listen=ListenSettings(proxies=parse_networks("10.0.0.0/8")))
    with pytest.raises(SettingsError, match="give both"):
        settings.check()

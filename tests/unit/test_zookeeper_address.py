"""Addresses of ensembles: what they say, and what is wrong with others."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.stores import ZOOKEEPER_CHROOT, ZooKeeperAddress, parse_zookeeper


def test_hosts_and_chroot() -> None:
    address = parse_zookeeper("zookeeper://h1:2182,h2,[::1]:99/fleet/jobs/")
    assert address == ZooKeeperAddress(
        hosts=(("h1", 2182), ("h2", 2181), ("::1", 99)),
        chroot="/fleet/jobs",
        user=None,
        password="",
        is_open=True,
        shown="zookeeper://h1:2182,h2,[::1]:99/fleet/jobs",
    )


def test_the_chroot_has_a_default() -> None:
    assert parse_zookeeper("zookeeper://h").chroot == ZOOKEEPER_CHROOT
    assert parse_zookeeper("zookeeper://h").shown == f"zookeeper://h{ZOOKEEPER_CHROOT}"
    assert parse_zookeeper("zookeeper://h/").chroot == "/"
    assert parse_zookeeper("zookeeper://h/a%20b").chroot == "/a b"


def test_credentials_are_kept_and_not_shown() -> None:
    address = parse_zookeeper("zookeeper://me:s%40:e%2Fcret@h:1/x")
    assert (address.user, address.password) == ("me", "s@:e/cret")
    assert address.shown == "zookeeper://me@h:1/x"
    assert "cret" not in address.shown
    assert not address.is_open
    assert parse_zookeeper("zookeeper://me:secret@h/x?acl=world").is_open
    assert not parse_zookeeper("zookeeper://me:secret@h/x?acl=creator").is_open


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/x", r"postgresql:// is not an address of ZooKeeper: write zookeeper://host"),
        ("zookeeper:///x", "names no host"),
        ("zookeeper://h1,,h2/x", "comma too many"),
        ("zookeeper://h1:port/x", "'h1:port' is not a host"),
        ("zookeeper://h1:0/x", "number from 1 to 65535"),
        ("zookeeper://h1:65536/x", "number from 1 to 65535"),
        ("zookeeper://[::1/x", "cannot be read: Invalid IPv6 URL; write"),
        ("zookeeper://::1/x", r"write .*brackets"),
        ("zookeeper://h/a//b", "cannot be a node"),
        ("zookeeper://h/a/../b", "cannot be a node"),
        ("zookeeper://h/a%0Ab", "cannot be a node"),
        ("zookeeper://h/zookeeper/x", "choose another chroot"),
        ("zookeeper://me@h/x", "without user and password"),
        ("zookeeper://@h/x", "without user and password"),
        ("zookeeper://:secret@h/x", "without user and password"),
        ("zookeeper://a%3Ab:secret@h/x", "no colon"),
        ("zookeeper://h/x?acl=all", "known are creator and world"),
        ("zookeeper://h/x?acl=creator", "needs credentials"),
        ("zookeeper://h/x?timeout=3", "timeout= is not an option"),
        ("zookeeper://h/x?acl", "cannot be read"),
        ("zookeeper://h/x#y", "%23"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        parse_zookeeper(url)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=60))
@example("//[/")
@example("//u:p@[::1/")
@example("//h:١٢")
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        address = parse_zookeeper(f"zookeeper:{text}")
    except SettingsError:
        return
    assert address.hosts
    assert address.chroot.startswith("/")

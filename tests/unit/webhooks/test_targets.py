"""The URLs and addresses to which webhooks are sent."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.webhooks.targets import METADATA, Policy, Target, check_addresses, parse_target, refusal

LOOPBACK = ip_network("127.0.0.0/8")
INSIDE = [
    "http://127.0.0.1/",
    "http://127.0.0.1:8080/",
    "http://127.1/",
    "http://127.255.255.254/",
    "http://0.0.0.0/",
    "http://0/",
    "http://0.1.2.3/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0X7F.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.01/",
    "http://127.0x0.0.1/",
    "http://127.0.0.1./",
    "http://256.256.256.256/",
    "http://4294967297/",
    "http://0x/",
    "http://1.2.3.4.5/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://100.127.255.255/",
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://169.254.0.1/",
    "http://168.63.129.16/",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://192.0.2.1/",
    "http://198.18.0.1/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[::]/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b::ffff:7f00:1]/",
    "http://[64:ff9b:1::10.0.0.1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:0808:0808::1]/",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "http://[2001:470::5efe:10.0.0.1]/",
    "http://[2001:470::200:5efe:10.0.0.1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://[100::1]/",
    "http://[5f00::1]/",
    "http://[4000::1]/",
]
"""URLs with an address in their host that is none of a public receiver."""


@pytest.mark.parametrize("url", INSIDE)
def test_no_spelling_of_an_inner_address_is_permitted(url: str) -> None:
    with pytest.raises(UsageError):
        check_addresses([parse_target(url).host])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "//hooks.example.com/",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "gopher://hooks.example.com/_x",
        "https:///path",
        "https://",
        "https:/hooks.example.com/",
        "https:hooks.example.com",
        "https://user@hooks.example.com/",
        "https://user:password@hooks.example.com/",
        "https://hooks.example.com@127.0.0.1/",
        "https://@hooks.example.com/",
        "https://hooks.example.com\\@127.0.0.1/",
        "https://127.0.0.1\\.example.com/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:65536/",
        "https://hooks.example.com:/",
        "https://hooks.example.com:+80/",
        "https://hooks.example.com:80:80/",
        "https://hooks.example.com:22/",
        "https://hooks.example.com:25/",
        "https://hooks.example.com:6667/",
        "https://hooks.example.com/#part",
        "https://hooks.example.com/#",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/a\r\nx: y",
        "https://hooks.example.com/\x00",
        " https://hooks.example.com/",
        "https://hooks.example.com/\n",
        "https://hooks.exa\tmple.com/",
        "https://hööks.example.com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://127。0。0。1/",
        "https://%31%32%37.0.0.1/",
        "https://hooks..example.com/",
        "https://.example.com/",
        "https://-hooks.example.com/",
        "https://" + "a" * 64 + ".example.com/",
        "https://" + "a." * 127 + "com/",
        "https://[::1/",
        "https://::1/",
        "https://[::1]x/",
        "https://[fe80::1%25eth0]/",
        "https://[127.0.0.1]/",
        "https://[v1.x]/",
        "https://hooks.example.com/" + "a" * 2048,
    ],
)
def test_other_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(url)
    assert len(url) < 10 or url not in str(caught.value)


def test_a_user_in_a_url_is_refused_with_another_way() -> None:
    with pytest.raises(UsageError, match="no user and no password: use a header"):
        parse_target("https://user:password@hooks.example.com/")


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://hooks.example.com", Target("https", "hooks.example.com", 443, "/"), "hooks.example.com"),
        (
            "HTTPS://Hooks.Example.COM:443/A/b?c=%20d&e=",
            Target("https", "hooks.example.com", 443, "/A/b?c=%20d&e="),
            "hooks.example.com",
        ),
        (
            "http://hooks.example.com.:8080/x?",
            Target("http", "hooks.example.com", 8080, "/x?"),
            "hooks.example.com:8080",
        ),
        (
            "http://hooks.example.com:443?a=/b",
            Target("http", "hooks.example.com", 443, "/?a=/b"),
            "hooks.example.com:443",
        ),
        ("https://8.8.8.8/", Target("https", "8.8.8.8", 443, "/"), "8.8.8.8"),
        (
            "https://[2606:4700:0::1111]:8443/",
            Target("https", "2606:4700::1111", 8443, "/"),
            "[2606:4700::1111]:8443",
        ),
        (
            "https://xn--hks-sna.example.com/",
            Target("https", "xn--hks-sna.example.com", 443, "/"),
            "xn--hks-sna.example.com",
        ),
        ("http://receiver:3000/", Target("http", "receiver", 3000, "/"), "receiver:3000"),
        ("https://0x7f.example.com/", Target("https", "0x7f.example.com", 443, "/"), "0x7f.example.com"),
    ],
)
def test_a_url_is_read_into_its_parts(url: str, target: Target, authority: str) -> None:
    read = parse_target(url)
    assert read == target
    assert read.authority == authority


def test_only_an_address_in_a_url_is_an_address() -> None:
    assert parse_target("https://8.8.8.8/").address == IPv4Address("8.8.8.8")
    assert parse_target("https://[2606:4700::1111]/").address == IPv6Address("2606:4700::1111")
    assert parse_target("https://receiver/").address is None


def test_a_nodes_settings_choose_ports() -> None:
    some = Policy(ports=frozenset({25}))
    assert parse_target("http://hooks.example.com:25/", some).port == 25
    with pytest.raises(UsageError):
        parse_target("https://hooks.example.com/", some)


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
        "64:ff9b::808:808",
        "::ffff:8.8.8.8",
    ],
)
def test_public_addresses_are_permitted(text: str) -> None:
    assert refusal(ip_address(text)) == ""


@given(st.ip_addresses())
def test_no_address_is_permitted_that_python_finds_special(address: IPv4Address | IPv6Address) -> None:
    inner = getattr(address, "ipv4_mapped", None) or address
    if inner.is_private or inner.is_loopback or inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        assert refusal(address) != ""


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "64:ff9b::"]))
def test_an_inner_ipv4_address_is_judged_as_itself(address: IPv4Address, prefix: str) -> None:
    assert refusal(IPv6Address(int(IPv6Address(prefix)) | int(address))) == refusal(address)


def test_settings_permit_networks() -> None:
    assert refusal(ip_address("127.0.0.1")) == "loopback"
    assert refusal(ip_address("127.0.0.1"), [LOOPBACK]) == ""
    assert refusal(ip_address("::ffff:127.0.0.1"), [LOOPBACK]) == ""
    assert refusal(ip_address("10.0.0.1"), [LOOPBACK]) == "private"
    assert refusal(ip_address("64:ff9b::127.0.0.1"), [LOOPBACK]) == "loopback", "a translator is not in this network"


@pytest.mark.parametrize("address", sorted(METADATA, key=str))
def test_metadata_is_permitted_by_its_own_address_alone(address: IPv4Address | IPv6Address) -> None:
    assert refusal(address) == "a cloud's metadata"
    assert refusal(address, [ip_network("0.0.0.0/0"), ip_network("::/0")]) == "a cloud's metadata"
    assert refusal(address, [ip_network(address)]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        "2001:470:64::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "::168.63.129.16",
        "fd00:ec2::254%eth0",
    ],
)
def test_no_wide_network_permits_metadata_in_another_form(text: str) -> None:
    assert refusal(ip_address(text), [ip_network("0.0.0.0/0"), ip_network("::/0")]) == "a cloud's metadata"


def test_one_inner_address_refuses_the_host_and_is_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        check_addresses(["8.8.8.8", "10.1.2.3"])
    assert "private" in str(caught.value)
    assert "10.1" not in str(caught.value)


def test_a_host_without_addresses_is_refused() -> None:
    with pytest.raises(UsageError):
        check_addresses([])


def test_each_address_is_there_once() -> None:
    assert check_addresses(["8.8.8.8", "8.8.4.4", "8.8.8.8"]) == (IPv4Address("8.8.8.8"), IPv4Address("8.8.4.4"))

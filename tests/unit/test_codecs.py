"""Codecs: the prefix of encoded payloads, and what is refused."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import App, CodecError, LostKeyError, UsageError, Zlib
from mainspring.codecs import JSON_KEY, PREFIX, Codecs, described, described_json, unwrapped, wrapped

if TYPE_CHECKING:
    from mainspring.codecs import PayloadContext


class Masking:
    """Encodes with a random mask: the same data in another way each time."""

    def __init__(self, name: str = "mask", key: str = "k1", *, strict: bool = False) -> None:
        self.name = name
        self.key = key
        self.keys = [key]
        self.strict = strict

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        mask = bytes(8) if context.repeatable else os.urandom(8)
        return mask + bytes(one ^ mask[place % 8] for place, one in enumerate(data))

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        if context.key not in self.keys:
            raise LostKeyError(context.key)
        return bytes(one ^ data[place % 8] for place, one in enumerate(data[8:]))


def test_a_payload_returns_as_it_was_and_names_its_codec_and_key() -> None:
    codecs = Codecs(Masking())
    first, second = (codecs.encode(b'["secret"]', "arguments", "f") for _ in range(2))
    assert first != second
    assert b"secret" not in first
    assert described(first) == "encoded (codec mask, key k1, 18 bytes)"
    assert codecs.decode(first, "arguments") == codecs.decode(second, "arguments") == b'["secret"]'


def test_a_repeatable_payload_has_the_same_bytes() -> None:
    codecs = Codecs(Masking())
    assert codecs.encode(b"1", "arguments", repeatable=True) == codecs.encode(b"1", "arguments", repeatable=True)


@given(st.binary(max_size=60))
def test_no_bytes_are_mistaken_for_encoded_ones(data: bytes) -> None:
    for content in (data, PREFIX + data, wrapped("mask", "k1", data), wrapped("-", "", data)):
        for codecs in (Codecs(Masking()), Codecs(Zlib()), Codecs(Zlib(smallest=0))):
            assert codecs.decode(codecs.encode(content, "result"), "result") == content


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)))
def test_no_json_begins_like_an_encoded_payload(value: Any) -> None:
    assert unwrapped(msgspec.json.encode(value)) is None


def test_a_published_value_stays_json() -> None:
    codecs = Codecs(Masking())
    stored = codecs.encode_json(b'{"card":4711}', "value", "stage")
    seen = msgspec.json.decode(stored)
    assert list(seen) == [JSON_KEY]
    assert described_json(seen).startswith("encoded (codec mask, key k1, ")
    assert codecs.decode_json(seen, "value") == {"card": 4711}
    assert codecs.decode(stored, "result") == b'{"card":4711}'


@pytest.mark.parametrize(
    "value", [1, {}, {"a": 1}, {JSON_KEY: 1}, {JSON_KEY: "x"}, {JSON_KEY: "eA=="}, {JSON_KEY: "", "a": 1}]
)
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert not described_json(value)
    assert Codecs(Masking()).decode_json(value, "value") == value


def test_a_value_that_looks_encoded_is_not_decoded() -> None:
    value = {JSON_KEY: msgspec.json.decode(Codecs(Masking()).encode_json(b"1", "value"))[JSON_KEY]}
    stored = Codecs(Zlib()).encode_json(msgspec.json.encode(value), "value")
    assert Codecs([Zlib(), Masking()]).decode_json(msgspec.json.decode(stored), "value") == value


def test_a_lost_key_is_named() -> None:
    payload = Codecs(Masking(key="old")).encode(b"1", "result")
    with pytest.raises(LostKeyError, match="key 'old' of codec 'mask'") as lost:
        Codecs(Masking(key="new")).decode(payload, "result")
    assert (lost.value.key, lost.value.codec) == ("old", "mask")


@pytest.mark.parametrize(("codecs", "there"), [(Codecs(), "no codec"), (Codecs(Zlib()), "zlib")])
def test_a_codec_that_the_app_lacks_is_named(codecs: Codecs, there: str) -> None:
    with pytest.raises(LostKeyError, match=f"codec 'mask' and key 'k1', and the App has {there}"):
        codecs.decode(Codecs(Masking()).encode(b"1", "result"), "result")


def test_the_first_codec_encodes_and_all_decode() -> None:
    codecs = Codecs([Masking("new"), Masking("old")])
    assert described(codecs.encode(b"1", "result")).startswith("encoded (codec new")
    assert codecs.decode(Codecs(Masking("old")).encode(b"2", "result"), "result") == b"2"


def test_a_strict_codec_takes_neither_plain_payloads_nor_those_of_others() -> None:
    codecs = Codecs([Masking(strict=True), Zlib()])
    for payload in (b"[1]", wrapped("-", "", b"[1]"), wrapped("zlib", "", zlib.compress(b"[1]"))):
        with pytest.raises(CodecError, match=r"the arguments of f .* strict"):
            codecs.decode(payload, "arguments", "f")
    with pytest.raises(CodecError, match="strict"):
        codecs.decode_json({"a": 1}, "value")
    assert codecs.decode(b"", "arguments") == b""  # a call without arguments


def test_empty_payloads_stay_empty() -> None:
    assert Codecs(Masking()).encode(b"", "result") == b""


def test_errors_of_a_codec_are_explained() -> None:
    class Broken(Masking):
        def encode(self, data: bytes, context: PayloadContext) -> bytes:
            raise ValueError("no entropy")

        def decode(self, data: bytes, context: PayloadContext) -> bytes:
            del data, context
            return "text"  # type: ignore[return-value] # as a codec of users may

    with pytest.raises(CodecError, match="codec mask cannot encode 3 bytes with key k1: ValueError: no entropy"):
        Codecs(Broken()).encode(b"[1]", "arguments")
    with pytest.raises(CodecError, match="codec mask: decode has returned str, and not bytes"):
        Codecs(Broken()).decode(wrapped("mask", "k1", b""), "arguments")


@pytest.mark.parametrize(
    ("given_codec", "error"),
    [
        (object(), "codec is <object"),
        (Zlib, "codec is <class"),
        (Masking(""), "a codec's name is ''"),
        (Masking("-"), "reserved"),
        (Masking(key="k" * 101), "the key's name of codec mask"),
        ([Zlib(), Zlib()], "two codecs have the name 'zlib'"),
    ],
)
def test_a_value_that_is_no_codec_is_refused(given_codec: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        App(codec=given_codec)


def test_the_identity_has_the_keys() -> None:
    assert Codecs().identity() == ""
    codec = Masking()
    before = Codecs(codec).identity()
    codec.keys.append("k0")
    assert Codecs(codec).identity() != before


def test_zlib_compresses_large_payloads() -> None:
    codecs, large = Codecs(Zlib()), b'["%b"]' % (b"a" * 5000)
    assert len(codecs.encode(large, "result")) < 200
    assert codecs.decode(codecs.encode(large, "result"), "result") == large
    assert codecs.encode(b"[1]", "result") == b"[1]"
    noise = os.urandom(2000)
    assert codecs.encode(noise, "result") is noise


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (zlib.compress(bytes(10_000)), r"more than 5,000 bytes"),
        (zlib.compress(b"abc")[:-3], "its end is missing"),
        (b"abc", "is damaged"),
    ],
)
def test_zlib_refuses_bombs_and_damage(data: bytes, error: str) -> None:
    with pytest.raises(CodecError, match=error):
        Codecs(Zlib(largest=5000)).decode(wrapped("zlib", "", data), "arguments")


def test_zlib_takes_a_payload_of_the_largest_size() -> None:
    codecs = Codecs(Zlib(largest=5000))
    assert codecs.decode(wrapped("zlib", "", zlib.compress(bytes(5000))), "arguments") == bytes(5000)

"""Secrets of tokens, sessions and links."""

from __future__ import annotations

import base64
import hashlib

import pytest

from mainspring.access.caller import Kind, digest_of, secret_of

RANDOM = bytes(range(32))


@pytest.mark.parametrize("kind", Kind)
def test_a_secret_is_one_word_and_its_digest_is_its_sha256(kind: Kind) -> None:
    secret = secret_of(kind, RANDOM)
    assert len(secret) == len(kind) + 48
    assert secret.removeprefix(kind).isascii()
    assert digest_of(kind, secret) == hashlib.sha256(secret.encode()).digest()


def test_a_secret_of_one_kind_is_none_of_another() -> None:
    for kind in Kind:
        for other in Kind:
            assert (digest_of(other, secret_of(kind, RANDOM)) is None) == (kind is not other)
            assert digest_of(other, other + secret_of(kind, RANDOM).removeprefix(kind)) is None or kind is other


def test_a_forged_checksum_is_refused() -> None:
    forged = Kind.TOKEN + base64.urlsafe_b64encode(RANDOM + b"\0\0\0\0").decode()
    assert digest_of(Kind.TOKEN, forged) is None


def test_any_changed_character_is_refused() -> None:
    secret = secret_of(Kind.TOKEN, RANDOM)
    for at in range(3, len(secret)):
        other = "A" if secret[at] != "A" else "B"
        assert digest_of(Kind.TOKEN, secret[:at] + other + secret[at + 1 :]) is None


@pytest.mark.parametrize(
    "text", ["", "ms_", "ms_\n", "Bearer ms_", secret_of(Kind.TOKEN, RANDOM) + "\n", "ms_" + "é" * 48, "ms_" + "=" * 48]
)
def test_other_texts_are_no_secrets(text: str) -> None:
    assert digest_of(Kind.TOKEN, text) is None

"""A codec that encrypts payloads by AES-GCM of `cryptography`, with keys that can be changed."""

from __future__ import annotations

import hmac
import os
import zlib
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mainspring import CodecError, LostKeyError, PayloadContext

if TYPE_CHECKING:
    from collections.abc import Mapping

NONCE = 12
"""Bytes."""


class Encryption:
    """Encrypts with ``key``, and decrypts with all ``keys``: names with 32 bytes each. It compresses before.

    With ``strict``, workers and clients refuse payloads that are not encrypted. Use it when all programs that submit have the
    codec.
    """

    name = "aes-gcm"

    def __init__(self, keys: Mapping[str, bytes], key: str, *, strict: bool = False) -> None:
        self.keys = dict(keys)
        self.key = key
        self.strict = strict
        self.keys[key]  # raises KeyError at the start if it is missing, and not at the first payload

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the nonce and the ciphertext."""
        secret = self.keys[context.key]
        nonce = os.urandom(NONCE)
        if context.repeatable:  # the same bytes for the same data: its nonce is a keyed digest of it
            nonce = hmac.digest(hmac.digest(secret, b"nonce", "sha256"), data, "sha256")[:NONCE]
        return nonce + AESGCM(secret).encrypt(nonce, zlib.compress(data), context.key.encode())

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the plain payload. Raises LostKeyError and CodecError."""
        secret = self.keys.get(context.key)
        if secret is None:
            raise LostKeyError(context.key)
        try:
            packed = AESGCM(secret).decrypt(data[:NONCE], data[NONCE:], context.key.encode())
        except InvalidTag:
            raise CodecError(f"the {context.kind} was changed, or encrypted with another key {context.key!r}") from None
        return zlib.decompress(packed)


def from_file(path: str = "keys.txt") -> Encryption:
    """Return the codec for a file with a key on each line, ``NAME BASE64``: the last one encrypts."""
    pairs = [line.split() for line in Path(path).read_text("utf-8").splitlines()]
    return Encryption({name: b64decode(text) for name, text in pairs}, pairs[-1][0])

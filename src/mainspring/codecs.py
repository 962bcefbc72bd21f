"""Codecs: what an App does to the bytes of payloads before they leave its processes, such as encryption and compression.

Only clients and workers of an App have its codec. Nodes, stores, pages and other programs see encoded payloads, whose prefix
names the codec and the key, so that a reader finds the right one, and people see which key is missing:

====================  ==========================================================
part of the prefix    content
====================  ==========================================================
`PREFIX`              no JSON begins with its first byte
one byte, name        the number of bytes of the codec's name, and the name
one byte, name        the same of the key; empty for a codec without keys
====================  ==========================================================

Published values, and results that come by completion tokens, are JSON: there it is an object with the only key `JSON_KEY`,
and all of this as base64. Empty payloads stay empty: they are results without a value, and calls without arguments.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from mainspring.errors import CodecError, LostKeyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PREFIX: Final = b"\x00mainspring-payload-1\x00"
JSON_KEY: Final = "mainspring:encoded"
_JSON_BEGINS: Final = b'{"%b":"' % JSON_KEY.encode()
NAME_LIMIT: Final = 100
"""Bytes of the name of a codec or of a key."""

Kind: TypeAlias = Literal["arguments", "result", "signal", "value", "step", "side effect", "data"]


class PayloadContext(NamedTuple):
    """The facts about a payload that a codec gets.

    A reader may know less than the writer did: a job that is looked up by its handle has no function's name. So ``kind`` and
    ``name`` are for choices and logs. Do not bind the encoded bytes to them.
    """

    kind: Kind
    name: str = ""
    """The function, workflow, step, signal or published value; empty if it is not known."""
    key: str = ""
    """To decode: the name of the key in the prefix. To encode: that of the codec's ``key``."""
    repeatable: bool = False
    """Whether a server compares the encoded bytes with those of a repeated request, as with a ``request_key``: a codec that
    encodes the same data in another way each time has such requests refused."""


@runtime_checkable
class Codec(Protocol):
    """Encodes payloads. It is called from any thread, and on event loops: it must not wait for anything.

    Further attributes are read if they exist: ``strict`` (bool): read payloads of strict codecs alone; ``keys``: the names of all
    keys that it can decode with. Workers with another set of keys are given parked runs again.
    """

    @property
    def name(self) -> str:
        """The name of the codec, which stands in each payload: 1 to 100 bytes."""

    @property
    def key(self) -> str:
        """The name of the key that ``encode`` uses now, which stands in each payload; empty for none. It is no secret."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the encoded form of a payload. The same object means that this payload stays as it is."""

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the payload of an encoded form. Raises LostKeyError if it does not have ``context.key``."""


class Encoded(NamedTuple):
    """An encoded payload without its prefix."""

    codec: str
    key: str
    data: bytes


def wrapped(codec: str, key: str, data: bytes) -> bytes:
    """Return encoded data with its prefix."""
    names = [text.encode() for text in (codec, key)]
    return b"".join([PREFIX, *(bytes([len(name)]) + name for name in names), data])


def unwrapped(payload: bytes) -> Encoded | None:
    """Return the parts of an encoded payload, also of one in JSON; None for another one."""
    if payload.startswith(_JSON_BEGINS):
        try:
            inner = _of_json(msgspec.json.decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if inner is None else unwrapped(inner)
    if not payload.startswith(PREFIX):
        return None
    place, names = len(PREFIX), []
    for _ in range(2):
        size = payload[place] if place < len(payload) else -1
        name = payload[place + 1 : place + 1 + size]
        if size < 0 or size > NAME_LIMIT or len(name) < size:
            return None
        try:
            names.append(name.decode())
        except UnicodeDecodeError:
            return None
        place += 1 + size
    return Encoded(names[0], names[1], payload[place:]) if names[0] else None


def described(payload: bytes) -> str:
    """Return how people see an encoded payload; empty for another one, which is shown as it is."""
    found = unwrapped(payload)
    if found is None:
        return ""
    key = f", key {found.key}" if found.key else ""
    return f"encoded (codec {found.codec}{key}, {len(found.data):,} bytes)"


def described_json(value: Any) -> str:
    """Return how people see an encoded published value, given as JSON's types; empty for another one."""
    payload = _of_json(value)
    return "" if payload is None else described(payload)


def _of_json(value: Any) -> bytes | None:
    """Return the encoded payload in an object; None for another value."""
    if not isinstance(value, dict) or len(value) != 1 or not isinstance(text := value.get(JSON_KEY), str):
        return None
    try:
        payload = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return payload if payload.startswith(PREFIX) and unwrapped(payload) is not None else None


class Codecs:
    """The codecs of an App: the first one encodes, and payloads of all of them are decoded. Without any it encodes nothing.

    Raises UsageError for a value that is no codec, or for a wrong name.
    """

    def __init__(self, given: Codec | Sequence[Codec] | None = None) -> None:
        listed: list[Any] = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
        self._by_name: dict[str, Codec] = {}
        for codec in listed:
            if isinstance(codec, type) or not isinstance(codec, Codec):
                raise UsageError(
                    f"codec is {codec!r}: give an object with name, key, encode(data, context) and decode(data, context), or"
                    " several, the first of which encodes"
                )
            if _checked(codec.name, "a codec's name", least=1) in self._by_name:
                raise UsageError(f"two codecs have the name {codec.name!r}: payloads could not tell them apart")
            _checked(codec.key, f"the key's name of codec {codec.name}")
            self._by_name[codec.name] = codec
        self._first: Codec | None = listed[0] if listed else None
        self._stricts = {codec.name for codec in listed if getattr(codec, "strict", False)}
        self._strict = bool(self._stricts)
        """Then only payloads of strict codecs are read: another one may be of anybody."""

    def __bool__(self) -> bool:
        return self._first is not None

    @property
    def is_strict(self) -> bool:
        """Whether payloads that are not encoded are refused."""
        return self._strict

    def identity(self) -> str:
        """Return a text that differs if another set of keys can be decoded; empty without codecs."""
        parts = []
        for codec in self._by_name.values():
            keys: Iterable[str] = getattr(codec, "keys", ())
            parts.append((codec.name, codec.key, sorted(map(str, keys))))
        return repr(parts) if parts else ""

    def encode(self, data: bytes, kind: Kind, name: str = "", *, repeatable: bool = False) -> bytes:
        """Return a payload as it leaves the process. Raises CodecError."""
        codec = self._first
        if codec is None or not data:
            return data
        key = codec.key
        context = PayloadContext(kind, name, key, repeatable)
        encoded = self._call(codec, codec.encode, "encode", data, context)
        if encoded is data and self._strict:
            raise CodecError(
                f"codec {codec.name} has left {len(data):,} bytes as they are, and the App's codec is strict"
            )
        if encoded is data:
            return data if unwrapped(data) is None else wrapped(_VERBATIM, "", data)
        return wrapped(codec.name, _checked(key, f"the key's name of codec {codec.name}"), encoded)

    def decode(self, payload: bytes, kind: Kind, name: str = "") -> bytes:
        """Return a payload as functions get it.

        Raises LostKeyError if the App does not have the codec or the key, and CodecError if the payload is damaged, or is not
        encoded and a codec is strict.
        """
        found = unwrapped(payload)
        if self._strict and payload and (found is None or found.codec not in self._stricts):
            what = f"{kind} of {name}" if name else kind
            how = "that are not encoded" if found is None else f"of codec {found.codec}"
            raise CodecError(
                f"the {what} has {len(payload):,} bytes {how}, and the App's codec is strict: submit with an App that has this"
                " codec, or leave out strict"
            )
        if found is None:
            return payload
        if found.codec == _VERBATIM and not found.key:
            return found.data
        codec = self._by_name.get(found.codec)
        if codec is None:
            raise LostKeyError(found.key, found.codec, self._names())
        return self._call(codec, codec.decode, "decode", found.data, PayloadContext(kind, name, found.key))

    def encode_json(self, data: bytes, kind: Kind, name: str = "", *, repeatable: bool = False) -> bytes:
        """Return JSON as it leaves the process, as JSON. Raises CodecError."""
        encoded = self.encode(data, kind, name, repeatable=repeatable)
        if encoded is data:
            return data
        return msgspec.json.encode({JSON_KEY: b64encode(encoded).decode()})

    def decode_json(self, value: Any, kind: Kind, name: str = "") -> Any:
        """Return a value of JSON's types as it was before ``encode_json``. Raises as ``decode``."""
        payload = _of_json(value)
        if payload is not None:
            return msgspec.json.decode(self.decode(payload, kind, name))
        if self._strict:
            self.decode(b"null", kind, name)  # refuses it
        return value

    def _call(
        self,
        codec: Codec,
        call: Callable[[bytes, PayloadContext], bytes],
        verb: str,
        data: bytes,
        context: PayloadContext,
    ) -> bytes:
        try:
            found = call(data, context)
        except LostKeyError as error:
            raise LostKeyError(error.key, codec.name) from error
        except CodecError:
            raise
        except Exception as error:
            key = f" with key {context.key}" if context.key else ""
            raise CodecError(
                f"codec {codec.name} cannot {verb} {len(data):,} bytes{key}: {type(error).__name__}: {error}"
            ) from error
        given: object = found
        if not isinstance(given, bytes):
            raise CodecError(f"codec {codec.name}: {verb} has returned {type(given).__name__}, and not bytes")
        return found

    def _names(self) -> str:
        return ", ".join(self._by_name)


NO_CODECS: Final = Codecs()

_VERBATIM: Final = "-"
"""The name of the codec of payloads that stay as they are, and must not be taken for encoded ones."""


def _checked(text: object, what: str, least: int = 0) -> str:
    if not isinstance(text, str) or not least <= len(text.encode()) <= NAME_LIMIT or (text and not text.isprintable()):
        raise UsageError(f"{what} is {text!r}: give {least} to {NAME_LIMIT} bytes of printable text")
    if text == _VERBATIM and least:
        raise UsageError(f"{what} is {text!r}, which is reserved: give another one")
    return text


class Zlib:
    """A codec that compresses payloads from ``smallest`` bytes on, if that makes them smaller.

    ``level`` is that of zlib, 1 to 9. A payload of more than ``largest`` bytes is not decompressed: a small one could otherwise
    fill the memory. Raises UsageError for a wrong level.
    """

    name = "zlib"
    key = ""

    def __init__(self, level: int = 6, *, smallest: int = 1024, largest: int = 256 * 2**20) -> None:
        if not 1 <= level <= 9:
            raise UsageError(f"level is {level}: zlib has the levels 1 to 9")
        self._level = level
        self._smallest = smallest
        self._largest = largest

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the compressed payload; the same one if it is small, or would not become smaller."""
        del context
        if len(data) < self._smallest:
            return data
        packed = zlib.compress(data, self._level)
        return packed if len(packed) < len(data) else data

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the payload. Raises CodecError if it is damaged, or too large."""
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(data, self._largest)
        except zlib.error as error:
            raise CodecError(f"codec zlib: the {context.kind} is damaged: {error}") from error
        if unpacker.unconsumed_tail:
            raise CodecError(
                f"codec zlib: the {context.kind} has more than {self._largest:,} bytes when it is decompressed: give"
                " Zlib(largest=…) if that is right"
            )
        if not unpacker.eof:
            raise CodecError(f"codec zlib: the {context.kind} is damaged: its end is missing")
        return found

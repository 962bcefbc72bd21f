"""Small pictures: PNG with a palette of 256 colours."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from itertools import accumulate
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOURS: Final = 256
RGB: Final = 2
PALETTE: Final = 3
SUB: Final = 1
"""The filter of rows of which each byte is a difference to that of the pixel before it."""
UP: Final = 2
"""The filter of rows of which each byte is a difference to that above it."""


def with_palette(png: bytes) -> bytes:
    """Return an RGB picture of a browser with its most frequent colours alone; others become the nearest of these.

    Bright ones count more: small marks keep their colour, and shades of letters make room.
    """
    chunks = _chunks(png)
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, kind) == (8, RGB), "this is no picture of a browser"
    pixels = _pixels(zlib.decompress(chunks[b"IDAT"]), 3 * width, height)
    colours = [pixels[at : at + 3] for at in range(0, len(pixels), 3)]
    counts = Counter(colours)
    palette = sorted(counts, key=lambda one: counts[one] * (1 + max(one) - min(one)), reverse=True)[:COLOURS]
    place = {colour: min(range(len(palette)), key=lambda at: _distance(palette[at], colour)) for colour in counts}
    places = bytes(place[colour] for colour in colours)
    rows = b"".join(b"\0" + places[at : at + width] for at in range(0, len(places), width))
    head = struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in parts)


def _chunks(png: bytes) -> dict[bytes, bytes]:
    """Return the data of all chunks by name; that of several of a name together."""
    found: dict[bytes, bytes] = {}
    at = len(SIGNATURE)
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        found[name] = found.get(name, b"") + png[at + 8 : at + 8 + size]
        at += size + 12
    return found


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", len(data), name) + data + struct.pack(">I", zlib.crc32(name + data))


def _pixels(rows: bytes, width: int, height: int) -> bytes:
    """Undo the filters of rows with a ``width`` in bytes."""
    found = bytearray()
    above = bytearray(width)
    for number in range(height):
        start = number * (width + 1)
        kind, row = rows[start], bytearray(rows[start + 1 : start + 1 + width])
        if kind == SUB:
            for channel in range(len("RGB")):
                row[channel::3] = bytes(one & 255 for one in accumulate(row[channel::3]))
        elif kind == UP:
            row = bytearray((one + other) & 255 for one, other in zip(row, above, strict=True))
        elif kind:
            for at in range(width):
                left, corner = (row[at - 3], above[at - 3]) if at >= len("RGB") else (0, 0)
                row[at] = (row[at] + _predicted(kind, left, above[at], corner)) % 256
        found += row
        above = row
    return bytes(found)


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    """Return what a filter of the PNG specification predicts."""
    guess = left + up - corner
    paeth = min((left, up, corner), key=lambda one: abs(guess - one))
    return (0, left, up, (left + up) // 2, paeth)[kind]


def _distance(one: bytes, other: bytes) -> int:
    (red, green, blue), (other_red, other_green, other_blue) = one, other
    return (red - other_red) ** 2 + (green - other_green) ** 2 + (blue - other_blue) ** 2

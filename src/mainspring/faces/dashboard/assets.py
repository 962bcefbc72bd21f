"""Files that pages need: style, scripts, icon. Their addresses contain a digest, so browsers keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

PATH: Final = "/assets/"
_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
HTMX: Final = "htmx-2.0.11.min.js"
"""A vendored copy (Zero-Clause BSD): nothing is loaded from other hosts."""
HTMX_SHA256: Final = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
NAMES: Final = ("style.css", "mainspring.js", "icon.svg", HTMX)


class Asset(NamedTuple):
    """A file as it is sent."""

    kind: bytes
    digest: str
    body: bytes
    zipped: bytes


class Assets:
    """All files. ``extra`` is text that is appended to a file, such as the generated colours to the style."""

    def __init__(self, extra: dict[str, str] | None = None) -> None:
        folder = files("mainspring.faces.dashboard") / "static"
        self._assets: dict[str, Asset] = {}
        for name in NAMES:
            body = (folder / name).read_bytes() + (extra or {}).get(name, "").encode()
            digest = hashlib.sha256(body).hexdigest()[:16]
            kind = _TYPES["." + name.rpartition(".")[2]]
            self._assets[name] = Asset(kind, digest, body, gzip.compress(body, 9, mtime=0))

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{PATH}{self._assets[name].digest}/{name}"

    def answer(self, path: str, accepted: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
        """Return the headers and the body for a path below `PATH`, or None. An old digest gets the new file."""
        digest, _, name = path.removeprefix(PATH).partition("/")
        asset = self._assets.get(name)
        if asset is None:
            return None
        kept = b"public, max-age=31536000, immutable" if digest == asset.digest else b"no-store"
        headers = {b"content-type": asset.kind, b"cache-control": kept, b"vary": b"accept-encoding"}
        if b"gzip" in accepted:
            return headers | {b"content-encoding": b"gzip"}, asset.zipped
        return headers, asset.body

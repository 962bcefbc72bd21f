"""Cursors of lists: where the next page begins, bound to the list and its filter.

A route whose inputs have a field ``cursor`` gets the position there, and returns the next position in `Items`. Only this module
knows the form that clients see: a cursor of another list or of another filter is refused, and does not skip items silently.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from mainspring.faces.rest.problems import Fault, HttpError

if TYPE_CHECKING:
    from mainspring.faces.rest.replies import Items

FIELD: Final = "cursor"
_DIGEST: Final = 9
"""Bytes; a multiple of three, so that base64 needs no padding between digest and position."""


def position(inputs: Any, path: str) -> Any:
    """Return the inputs with the position in place of the cursor. Raises HttpError for a cursor of another list."""
    given = inputs.cursor
    if given is None:
        return inputs
    try:
        raw = base64.b64decode(given.encode() + b"=" * (-len(given) % 4), b"-_", validate=True)
        text = raw[_DIGEST:].decode()
    except ValueError:  # also for text that is not UTF-8
        raise _wrong("it is no cursor of this node: take it from next in the previous page") from None
    if raw[:_DIGEST] != _digest(inputs, path, text):
        raise _wrong("it belongs to another list or to another filter, or is incomplete: begin without one")
    return msgspec.structs.replace(inputs, **{FIELD: text})


def number(text: str) -> int:
    """Return the position in a list whose positions are numbers. Raises HttpError."""
    if not text.isdecimal() or len(text) > 18:
        raise _wrong("it is no place in this list: take it from next in the previous page")
    return int(text)


def seal(page: Items[Any], inputs: Any, path: str) -> Items[Any]:
    """Return a page with a cursor in place of its next position."""
    if page.next is None:
        return page
    raw = _digest(inputs, path, page.next) + page.next.encode()
    return msgspec.structs.replace(page, next=base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


def link(page: Items[Any], path: str, query: bytes) -> str | None:
    """Return the value of ``Link`` for the next page; None if there is none."""
    if page.next is None:
        return None
    pairs = [pair for pair in parse_qsl(query.decode("ascii"), keep_blank_values=True) if pair[0] != FIELD]
    return f'<{path}?{urlencode([*pairs, (FIELD, page.next)])}>; rel="next"'


def _digest(inputs: Any, path: str, text: str) -> bytes:
    """Return a digest of the list, its filter, and a position in it."""
    criteria = msgspec.structs.asdict(inputs) | {FIELD: text, "limit": None}
    return hashlib.blake2b(path.encode() + b"\0" + msgspec.json.encode(criteria), digest_size=_DIGEST).digest()


def _wrong(reason: str) -> HttpError:
    return HttpError("invalid", f"the cursor is invalid: {reason}", faults=[Fault(reason, parameter=FIELD)])

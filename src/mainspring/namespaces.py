"""Names of functions, schedules and runs: their keys in namespaces, and the texts of names that may have any bytes.

Different teams use the same names in one store without meeting. In memory, a namespace and a name are one key: the bare name in
the namespace ``default``, else ``namespace, 0x1F, name``. So the default namespace costs nothing, and everything that is kept by
key is kept by namespace as well.

Gearman's clients may name a function with any bytes. Each name has exactly one text in JSON, on pages and in commands, and
each text that is not refused is that of one name. Most names are UTF-8 and are their own text. A byte that is not UTF-8 is a
backslash, an ``x`` and two digits in lower case; backslashes directly before such a byte, or before characters that would read
as one, are doubled. Other backslashes stay single, since names of classes of PHP are common.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from mainspring.errors import UsageError
from mainspring.sizes import Text, about

DEFAULT: Final = "default"
SEPARATOR: Final = b"\x1f"
ANY: Final = ""
"""Stands for all namespaces, in requests that a node makes for itself."""
LIMIT: Final = 63
"""Characters in a namespace."""
_DECISIONS: Final = b"\x1fd\x1f"
"""The functions of decisions begin with it; see ``workflows.model``."""
T = TypeVar("T")
_NAMESPACE: Final = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{LIMIT - 1}}}")


NamespaceName = Annotated[Text, about("The namespace.")]


class Namespaced(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The base of everything in JSON that names functions, schedules or runs of one namespace."""

    namespace: NamespaceName = DEFAULT


def places_left(most: int, taken: int, mine: int, *, spans: bool) -> int:
    """Return how many more of ``most`` places a namespace gets, which has ``mine`` of those that are taken; at most 0: none.

    Callers who may name several namespaces (``spans``) make up as many as they like. So the number of namespaces never counts:
    these callers leave `RESERVE` of all places to those who are bound to one namespace. Each of those has a few in any case.
    """
    free = most - taken
    if spans:
        return min(free - most // RESERVE, _of_share(SHARE, free, mine))
    return max(_of_share(SHARE_OF_BOUND, free, mine), max(most // CERTAIN, 1) - mine)


def _of_share(share: int, free: int, mine: int) -> int:
    """Return how many places a namespace may take while it has fewer than ``share`` for each one that is free."""
    return -((mine - share * free) // (1 + share))


SHARE: Final = 3
"""Places that a namespace may have for each free one: it leaves a quarter of all places to others."""
RESERVE: Final = 8
"""One of so many places is for callers who are bound to one namespace."""
SHARE_OF_BOUND: Final = RESERVE - 1
"""`SHARE` of such callers: so they have places in their namespace, however many somebody else has taken in it."""
CERTAIN: Final = 1000
"""One of so many places is for each namespace with such callers, whatever all others take."""


class Turns(Generic[T]):
    """A queue that serves namespaces in turns, so that much work of one does not delay the others.

    Items of one namespace stay in order.
    """

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}
        self._order: deque[str] = deque()
        """The namespaces with items, the next one first."""

    def __bool__(self) -> bool:
        """Return whether there are items."""
        return bool(self._order)

    def add(self, namespace: str, item: T) -> None:
        """Add an item behind those of its namespace."""
        items = self._items.get(namespace)
        if items is None:
            items = self._items[namespace] = deque()
            self._order.append(namespace)
        items.append(item)

    def pop(self) -> T:
        """Remove and return the next item."""
        namespace = self._order.popleft()
        items = self._items[namespace]
        item = items.popleft()
        if items:
            self._order.append(namespace)
        else:
            del self._items[namespace]
        return item

    def clear(self) -> list[T]:
        """Remove and return all items."""
        items = [item for waiting in self._items.values() for item in waiting]
        self._items.clear()
        self._order.clear()
        return items


def check(namespace: str) -> str:
    """Return a namespace. Raises UsageError if it is none."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise UsageError(
            f"{namespace!r} is no namespace: use 1 to {LIMIT} of the characters a-z, 0-9, '_', '.' and '-', and begin with a"
            " letter or a digit"
        )
    return namespace


def prefix(namespace: str) -> bytes:
    """Return the bytes before all names of a namespace, in their keys: none in the default namespace."""
    return b"" if namespace == DEFAULT else namespace.encode() + SEPARATOR


def key(namespace: str, name: bytes) -> bytes:
    """Return the key of a name in a namespace.

    A name of the default namespace that contains the separator, which only old stores have, gets a key that says ``default``, so
    that it is no key of another namespace. The functions of decisions contain their namespace, and are keys themselves.
    """
    if SEPARATOR not in name:
        return prefix(namespace) + name
    if name.startswith(b"%b%b\x1f" % (_DECISIONS, namespace.encode())):
        return name
    return namespace.encode() + SEPARATOR + name


def split(key: bytes) -> tuple[str, bytes]:
    """Return the namespace and the name of a key."""
    namespace, separator, name = key.partition(SEPARATOR)
    if not separator:
        return DEFAULT, key
    if namespace:
        return namespace.decode(), name
    return key[len(_DECISIONS) :].partition(SEPARATOR)[0].decode(), key


def namespace_of(key: bytes) -> str:
    """Return the namespace of a key."""
    return split(key)[0] if SEPARATOR in key else DEFAULT


def name_of(key: bytes) -> bytes:
    """Return the name of a key."""
    return split(key)[1] if SEPARATOR in key else key


def key_of_text(namespace: str, name: str) -> str:
    """Return the key of a name that is text, such as that of a schedule.

    Raises UsageError for a name that looks like a key, and for one with NUL, which PostgreSQL's texts cannot contain.
    """
    if "\0" in name:
        raise UsageError(f"{name!r} contains the character NUL: leave it out")
    if "\x1f" in name:
        raise UsageError(f"{name!r} contains the character U+001F, which separates namespaces from names: leave it out")
    return name if namespace == DEFAULT else f"{namespace}\x1f{name}"


def split_text(key: str) -> tuple[str, str]:
    """Return the namespace and the name of a key that is text."""
    namespace, separator, name = key.partition("\x1f")
    return (namespace, name) if separator else (DEFAULT, key)


_AMBIGUOUS: Final = re.compile("(\\\\+)(?=x[89a-f][0-9a-f]|[\udc80-\udcff])")
_BYTE: Final = re.compile("[\udc80-\udcff]")
_ESCAPE: Final = re.compile(r"(\\+)x([89a-f][0-9a-f])")


def name_text(name: bytes) -> str:
    """Return a name as text."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = name.decode("utf-8", "surrogateescape")
    else:
        if "\\x" not in text:
            return text
    return _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:x}", _AMBIGUOUS.sub(r"\1\1", text))


def name_bytes(text: str) -> bytes:
    """Return the name that `name_text` shows as this text.

    Raises UsageError for a second spelling of a name: permissions are checked by text, so a name has one.
    """
    if "\\x" not in text:
        return text.encode()
    name = _ESCAPE.sub(_literal, text).encode("utf-8", "surrogateescape")
    if (shown := name_text(name)) != text:
        raise UsageError(
            f"the name {text} is spelled {shown}: only bytes that are not UTF-8 are written as \\x and two digits"
        )
    return name


def _literal(found: re.Match[str]) -> str:
    """Return the characters for an escape: a lone surrogate stands for a byte."""
    backslashes, digits = found.groups()
    kept = backslashes[: len(backslashes) // 2]
    return kept + (chr(0xDC00 + int(digits, 16)) if len(backslashes) % 2 else f"x{digits}")

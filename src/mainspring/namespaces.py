"""Namespaces: names of functions, schedules and runs that different teams use in one store without meeting.

In memory, a namespace and a name are one key: the bare name in the namespace ``default``, else ``namespace, 0x1F, name``. So
the default namespace costs nothing, and everything that is kept by key is kept by namespace as well.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from mainspring.errors import UsageError

DEFAULT: Final = "default"
SEPARATOR: Final = b"\x1f"
LIMIT: Final = 63
"""Characters in a namespace."""
_NAMESPACE: Final = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{LIMIT - 1}}}")


class Namespaced(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The base of everything in JSON that names functions, schedules or runs of one namespace."""

    namespace: str = DEFAULT


def check(namespace: str) -> str:
    """Return a namespace. Raises UsageError if it is none."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise UsageError(
            f"{namespace!r} is no namespace: use 1 to {LIMIT} of the characters a-z, 0-9, '_', '.' and '-', and begin with a"
            " letter or a digit"
        )
    return namespace


def key(namespace: str, name: bytes) -> bytes:
    """Return the key of a name in a namespace.

    A name of the default namespace that contains the separator, which only old stores have, gets a key that says ``default``, so
    that it is no key of another namespace. The functions of decisions, which begin with the separator, contain their namespace.
    """
    if namespace == DEFAULT and (SEPARATOR not in name or name.startswith(SEPARATOR)):
        return name
    return namespace.encode() + SEPARATOR + name


def split(key: bytes) -> tuple[str, bytes]:
    """Return the namespace and the name of a key."""
    namespace, separator, name = key.partition(SEPARATOR)
    if not separator or not namespace:
        return DEFAULT, key
    return namespace.decode(), name

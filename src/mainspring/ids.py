"""Names of things: node ids, terms, job ids, the handles made of them, and hash slots.

A job's id is chosen before it is stored: ``term * TERM_SPAN + counter``. A term is used by one run of one node only, so
that ids are unique without asking the store, rise with time on a node, and are not used again after a restart.
"""

from __future__ import annotations

import itertools
import re
import zlib
from types import MappingProxyType
from typing import TYPE_CHECKING, NewType

from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NodeId = NewType("NodeId", str)
Term = NewType("Term", int)
JobId = NewType("JobId", int)

TERM_SPAN = 10**12
"""Ids of one term: in decimal, so that both parts of a handle can be read by eye."""

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def node_id(name: str) -> NodeId:
    """Check a node's name: up to 32 letters, digits, dots, dashes and underscores.

    Raises SettingsError for any other text. (Gearman's C library has room for handles of 63 bytes.)
    """
    if not _NODE_NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name for a node: use 1 to 32 letters, digits, '.', '-' and '_', a letter or digit first"
        )
    return NodeId(name)


def job_ids(term: Term) -> Callable[[], int]:
    """Return a function that gives the next id of a term at each call."""
    return itertools.count(term * TERM_SPAN + 1).__next__


class Handles:
    """Job ids to handles and back.

    A handle names the node that took the job, which is the node of the id's term, so that it stays the same wherever and
    whenever it is told.
    """

    def __init__(self, nodes: Mapping[int, str] = MappingProxyType({})) -> None:
        self._nodes = nodes
        self._prefixes: dict[int, bytes] = {}

    def learn(self, nodes: Mapping[int, str]) -> None:
        """Take the nodes' names from another mapping from now on; what was told of the terms known so far stays true."""
        self._nodes = nodes

    def of(self, job_id: int) -> bytes:
        """Return a job's handle."""
        term = job_id // TERM_SPAN
        prefix = self._prefixes.get(term)
        if prefix is None:
            node = self._nodes.get(term)
            if node is None:
                return b"H:unknown:%d" % job_id  # not remembered: anybody may ask for any number
            prefix = self._prefixes[term] = b"H:%b:" % node.encode()
        return b"%b%d" % (prefix, job_id)

    @staticmethod
    def parse(handle: bytes) -> JobId | None:
        """Return the id that a handle names; None where it is no handle of ours."""
        parts = handle.split(b":")
        if len(parts) != 3 or parts[0] != b"H" or not parts[2].isdigit() or len(parts[2]) > 18:
            return None
        return JobId(int(parts[2]))


SLOTS = 1024
"""Hash slots, by which nodes can share work without talking: enough for even shares, few enough to list them in a claim."""

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples of it, modulo 2**64, stay apart from each other."""


def slot_of(namespace: str, function: bytes, unique: bytes, job_id: int) -> int:
    """Return the hash slot of a job, from 0 to SLOTS - 1.

    It comes from namespace, function and unique, and of a job without a unique from its id. It is stored, and nodes of
    different versions have to agree about it: it never changes.

    The golden ratio spreads what follows on each other (ids, the checksums of ``user-1``, ``user-2``, …): any hundred jobs in
    a row are shared evenly, by whatever ranges of slots. The checksum alone would give all of them to one half of the slots.
    """
    number = job_id
    if unique:
        number = 0
        for part in (namespace.encode(), function, unique):
            # with its length, so that ("ab", "c") and ("a", "bc") are different
            number = zlib.crc32(b"%d:%b" % (len(part), part), number)
    return (number * _GOLDEN & 0xFFFF_FFFF_FFFF_FFFF) >> 54

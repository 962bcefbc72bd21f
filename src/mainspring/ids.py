"""Identifiers: node ids, terms, job ids, handles, and hash slots.

A node chooses a job's id before it stores the job: ``term * TERM_SPAN + counter``. Each run of a node has its own term. So ids
are unique without a request to the store, rise with time on a node, and are never reused after a restart.
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
"""The number of ids of one term: a power of ten, so that people can read both parts of a handle."""

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def node_id(name: str) -> NodeId:
    """Return a node's name: up to 32 letters, digits, dots, dashes and underscores.

    Raises SettingsError for other text. (Gearman's C library allows handles of at most 63 bytes.)
    """
    if not _NODE_NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid name for a node: use 1 to 32 letters, digits, '.', '-' and '_', a letter or digit first"
        )
    return NodeId(name)


def job_ids(term: Term) -> Callable[[], int]:
    """Return a function that returns the next id of a term at each call."""
    return itertools.count(term * TERM_SPAN + 1).__next__


class Handles:
    """Converts job ids to handles and back.

    A handle contains the name of the node that accepted the job: the node of the id's term. So every node always converts an id
    to the same handle.
    """

    def __init__(self, nodes: Mapping[int, str] = MappingProxyType({})) -> None:
        self._nodes = nodes
        self._prefixes: dict[int, bytes] = {}

    def use_names(self, nodes: Mapping[int, str]) -> None:
        """Look up the nodes' names in another mapping from now on. Terms that were looked up before keep their names."""
        self._nodes = nodes

    def node(self, term: int) -> str:
        """Return the name of the node of a term; empty if it is unknown."""
        return self._nodes.get(term, "")

    def of(self, job_id: int) -> bytes:
        """Return a job's handle."""
        term = job_id // TERM_SPAN
        prefix = self._prefixes.get(term)
        if prefix is None:
            node = self._nodes.get(term)
            if node is None:
                return b"H:unknown:%d" % job_id  # not cached: clients can send any number
            prefix = self._prefixes[term] = b"H:%b:" % node.encode()
        return b"%b%d" % (prefix, job_id)

    @staticmethod
    def parse(handle: bytes) -> JobId | None:
        """Return the id in a handle; None if it is not a handle of Mainspring."""
        parts = handle.split(b":")
        if len(parts) != 3 or parts[0] != b"H" or not parts[2].isdigit() or len(parts[2]) > 18:
            return None
        return JobId(int(parts[2]))


SLOTS = 1024
"""Hash slots, by which nodes share jobs without messages: enough for even shares, few enough to list them in a claim."""

_GOLDEN_RATIO = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples, modulo 2**64, are spread evenly."""


def slot_of(namespace: str, function: bytes, unique: bytes, job_id: int) -> int:
    """Return the hash slot of a job, from 0 to SLOTS - 1.

    It is computed from namespace, function and unique, or from the id if the job has no unique. It is stored, and nodes of
    different versions must compute the same slot: this function never changes.

    The golden ratio spreads consecutive numbers (ids, the checksums of ``user-1``, ``user-2``, …): any hundred consecutive jobs
    are spread evenly over all ranges of slots. The checksum alone would put all of them into one half of the slots.
    """
    number = job_id
    if unique:
        number = 0
        for part in (namespace.encode(), function, unique):
            # with its length, so that ("ab", "c") and ("a", "bc") differ
            number = zlib.crc32(b"%d:%b" % (len(part), part), number)
    return (number * _GOLDEN_RATIO & 0xFFFF_FFFF_FFFF_FFFF) >> 54

"""A node's HTTP port: what the HTTP API, the pages and monitoring share, and the figures for monitoring.

The figures are separate from the pages, so that a node without an HTTP port loads no HTTP server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a node, by labels."""

    name: str
    """Begins with ``mainspring_``; a counter's ends in ``_total``."""

    kind: Literal["counter", "gauge"]
    help: str
    """One sentence with the unit."""

    samples: Sequence[tuple[Mapping[str, str], float]]
    """Labels and value. Some samples may have a label that others lack, such as the namespace."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of durations, by labels."""

    name: str
    help: str
    """As in Measure."""

    bounds: Sequence[float]
    """Upper bounds in seconds, ascending."""

    samples: Sequence[tuple[Mapping[str, str], Sequence[int], float]]
    """Labels; the number of durations between each bound and the previous one, and above the last one; the sum in seconds."""

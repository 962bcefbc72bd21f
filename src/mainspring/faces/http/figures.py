"""A node's figures, as they are shown to monitoring. Apart from the pages: a node without an HTTP port loads no HTTP server."""

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
    """Labels and value; all samples have the same labels' names."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many durations were up to which bounds, by labels: a histogram of Prometheus."""

    name: str
    help: str
    """As in Measure."""

    bounds: Sequence[float]
    """Upper bounds in seconds, rising."""

    samples: Sequence[tuple[Mapping[str, str], Sequence[int], float]]
    """Labels; how many durations were up to each bound and above the one before, then those above; the sum in seconds."""

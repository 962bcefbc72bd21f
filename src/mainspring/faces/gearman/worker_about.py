"""The descriptions that workers give of themselves."""

from __future__ import annotations

from typing import NamedTuple


class About(NamedTuple):
    """A worker's description of itself."""

    version: str = ""
    """Its version of Mainspring; empty if it has not declared it."""
    stops: bool = False
    """Whether it stops on request."""

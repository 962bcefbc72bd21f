"""The version of this installation, and whether its core is compiled."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def version() -> str:
    """Return the installed version; ``unknown`` if the package runs from its source and is not installed.

    The result is cached: the look-up takes 2 ms, and a node of a fleet needs it many times a second.
    """
    from importlib import metadata  # noqa: PLC0415 - slow to load, and most commands do not show it

    try:
        return metadata.version("mainspring")
    except metadata.PackageNotFoundError:
        return "unknown"


def core() -> str:
    """Return ``compiled`` if the core was built with ``MAINSPRING_COMPILE=1``, otherwise ``pure Python``."""
    found = importlib.util.find_spec("mainspring.jobs.assignment")
    return "compiled" if found is not None and not (found.origin or "").endswith(".py") else "pure Python"

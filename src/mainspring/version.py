"""What this installation is."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def version() -> str:
    """Return the installed version; ``unknown`` where the package runs from its source without being installed.

    It is looked up once: that takes two milliseconds, and a node of a fleet says its version many times a second.
    """
    from importlib import metadata  # noqa: PLC0415 - slow to load, and most commands do not show it

    try:
        return metadata.version("mainspring")
    except metadata.PackageNotFoundError:
        return "unknown"


def core() -> str:
    """Say what the hot core is: ``compiled`` where it was built with ``MAINSPRING_COMPILE=1``, otherwise ``pure Python``."""
    found = importlib.util.find_spec("mainspring.jobs.serving")
    return "compiled" if found is not None and not (found.origin or "").endswith(".py") else "pure Python"

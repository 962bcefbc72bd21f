"""The version that this is."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return the installed version; ``unknown`` where the package runs from its source without being installed."""
    try:
        return importlib.metadata.version("mainspring")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

"""The nursery of a fleet's nodes: what they need for PostgreSQL is imported once as well, and there are defects of fleets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def never_fence() -> None:
    """Plant a defect that the tests must find: a node that cannot reach the store holds its lease for valid for ever."""
    from mainspring.nodes.lease import Lease

    Lease.ended = lambda self, now: False  # type: ignore[method-assign]


def nursery() -> ModuleType:
    """Return the program that this one adds to: it is no part of a package."""
    spec = importlib.util.spec_from_file_location("nursery", Path(__file__).with_name("nursery.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    import mainspring.engines.postgres.engine  # noqa: F401

    program: Any = nursery()
    program.PLANTS["fencing"] = never_fence
    program.main()

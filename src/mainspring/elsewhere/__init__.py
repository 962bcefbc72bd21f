"""Work that runs elsewhere, ready made: programs on the worker's host, HTTP services and Dask.

The names below are imported at their first use: a worker loads what its App uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.elsewhere.dask_tasks import DaskError, DaskMeta, DaskWork
    from mainspring.elsewhere.http_service import HttpMeta, HttpRefusedError, HttpServiceError, HttpWork
    from mainspring.elsewhere.processes import Command, Ended, OtherHostError, ProcessError, ProcessMeta, Subprocess

_MODULES = {
    "mainspring.elsewhere.dask_tasks": ("DaskError", "DaskMeta", "DaskWork"),
    "mainspring.elsewhere.http_service": ("HttpMeta", "HttpRefusedError", "HttpServiceError", "HttpWork"),
    "mainspring.elsewhere.processes": (
        "Command",
        "Ended",
        "OtherHostError",
        "ProcessError",
        "ProcessMeta",
        "Subprocess",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Command",
    "DaskError",
    "DaskMeta",
    "DaskWork",
    "Ended",
    "HttpMeta",
    "HttpRefusedError",
    "HttpServiceError",
    "HttpWork",
    "OtherHostError",
    "ProcessError",
    "ProcessMeta",
    "Subprocess",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)

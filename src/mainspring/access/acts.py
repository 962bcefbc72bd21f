"""Acts of callers, as the audit has them."""

from __future__ import annotations

from typing import Any

import msgspec


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """One act of a caller, or an attempt that was refused."""

    what: str
    """The name of the request, such as ``jobs.cancel``."""
    who: str
    """The name of the caller."""
    object: str = ""
    """The name or the handle of the object."""
    namespace: str = ""
    """Empty for objects outside of all namespaces, such as nodes."""
    token: str = ""
    """The id of the caller's token; empty without one."""
    address: str = ""
    request: str = ""
    before: Any = None
    """The value before, in JSON's types; None if the act does not replace one."""
    after: Any = None
    reason: str = ""
    refused: str = ""
    """Why the caller may not do it; empty for an act."""

"""Acts of callers, as the audit has them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from mainspring.hidden_secrets import hide_in


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

    def __post_init__(self) -> None:
        """Hide secrets, which clients may have put into wrong places; also those in rows of earlier versions."""
        for name in ("what", "who", "object", "namespace", "before", "after", "reason", "refused"):
            value = getattr(self, name)
            if value and (hidden := hide_in(value)) != value:
                force_setattr(self, name, hidden)

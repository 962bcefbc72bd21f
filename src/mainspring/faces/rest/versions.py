"""ETags of objects with a revision. They say which revision the client has, and also whether it has the whole answer.

A write applies to a revision. A read with ``If-None-Match`` compares more: the counts and times of an object change without a new
revision.
"""

from __future__ import annotations

from typing import Any, Final

from mainspring.api.request import write
from mainspring.faces.rest.conditional import tag_of

SEPARATOR: Final = "-"


def version_of(answer: Any) -> str:
    """Return the version of an answer with a ``revision``."""
    return f"{answer.revision}{SEPARATOR}{tag_of(write(answer)).decode()[1:-1]}"


def revision_in(version: str | None) -> str | None:
    """Return the revision of a version from ``If-Match``; None for any."""
    return None if version is None else version.partition(SEPARATOR)[0]

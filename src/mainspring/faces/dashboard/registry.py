"""The pages: a path, and the function that makes the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from mainspring.access.roles import Permission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mainspring.faces.dashboard.visit import Response, Visit

_PARAMETER: Final = re.compile(r"\\{([a-z_]+)\\}")


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page. ``path`` may have parameters in braces: one encoded segment each, so ``/`` in names is ``%2F``."""

    path: str
    handler: Callable[[Visit], Awaitable[Response]]
    post: Callable[[Visit, Mapping[str, str]], Awaitable[Response]] | None = None
    """Answers a form that is sent to the page's own path, for forms that are more than one `Action`."""
    menu: str = ""
    """Its words in the menu; empty: it is not in the menu."""
    permission: Permission = Permission.READ
    """The menu shows the page to those who have it. The API decides about the page."""
    needs: str = ""
    """A thing that the store has to keep, by its word in `tokens.Identity.lacks`; empty: every store will do."""


class Table:
    """Finds the page for a path."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self.pages = tuple(pages)
        self._fixed = {page.path: page for page in self.pages if "{" not in page.path}
        self._patterns = [
            (re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", re.escape(page.path))), page)
            for page in self.pages
            if "{" in page.path
        ]

    def find(self, path: str) -> tuple[Page, dict[str, str]] | None:
        """Return the page for an encoded path, with its parameters. A path with a slash at its end is that without."""
        path = path.rstrip("/") or "/"
        page = self._fixed.get(path)
        if page is not None:
            return page, {}
        for pattern, candidate in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return candidate, {name: _decoded(value) for name, value in match.groupdict().items()}
        return None


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "surrogateescape")

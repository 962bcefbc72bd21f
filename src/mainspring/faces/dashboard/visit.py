"""One request for a page: its caller, its namespace, the wishes of its viewer, and the page that answers it.

A `Page` is a path, and the function that makes the answer.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from mainspring import namespaces
from mainspring.access.caller import EVERY_NAMESPACE, Grant, Permission, Role
from mainspring.faces.dashboard.calls import NONE, Problem, RefusedError, encode_query, segment
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mainspring.api.access import Identity
    from mainspring.faces.dashboard.calls import Calls
    from mainspring.faces.dashboard.rendering import Templates, ViewSettings

T = TypeVar("T")

PART_TIME: Final = 2.0
"""Seconds after which a page is shown without a part."""
LATE: Final = Problem("", "A part is late", 503, f"It took longer than {PART_TIME:.0f} s. Load the page again.")
DEFAULT_SERVER: Final = "127.0.0.1:4730"
"""The server that commands use without an option."""
NAMESPACE: Final = "namespace"
"""The field of a query for the namespace; without it, the namespace is ``default``."""
HTML: Final = b"text/html; charset=utf-8"


class Response(NamedTuple):
    """An answer to a browser."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes = b""


class Place(NamedTuple):
    """Where pages are: the address of the node for the browser, and the path under which a proxy shows it."""

    origin: str
    prefix: str


class Offered(Protocol):
    """An `actions.Action`, which imports this module."""

    @property
    def permission(self) -> Permission:
        """Its permission."""

    @property
    def needs(self) -> str:
        """As of `registry.Page`."""

    @property
    def of_all_functions(self) -> bool:
        """Whether a grant for some functions is not enough."""


class Visit:
    """A request. ``parameters`` are those of the page's path, ``query`` the fields after the question mark."""

    def __init__(
        self,
        *,
        path: str,
        parameters: Mapping[str, str],
        query: Mapping[str, list[str]],
        calls: Calls,
        identity: Identity,
        settings: ViewSettings,
        place: Place,
        templates: Templates,
        now: float,
        notice: str = "",
    ) -> None:
        self.path = path
        self.parameters = parameters
        self.query = query
        self.calls = calls
        self.identity = identity
        self.settings = settings
        self.place = place
        self.now = now
        """Seconds since 1970, by the clock of the node: pages show ages by it and not by that of the browser."""
        self.notice = notice
        """The result of the action that led here."""
        self.namespace = self.field(NAMESPACE) or namespaces.DEFAULT
        self.missing: dict[str, Problem] = {}
        """The parts that a page is shown without, and the reasons."""
        self._templates = templates
        self._grants = [
            Grant(Role[spec.role.upper()], spec.namespace, tuple(spec.functions), spec.payloads)
            for spec in identity.grants
        ]

    @property
    def server(self) -> str:
        """The server for commands, as that of this node; empty: they use it without an option."""
        server = self.identity.server or ""
        return "" if server == DEFAULT_SERVER else server

    @property
    def options(self) -> str:
        """The options of commands for this node and this namespace, with a space before each."""
        server = f" --server {self.server}" if self.server else ""
        return server + ("" if self.namespace == namespaces.DEFAULT else f" --namespace {self.namespace}")

    @property
    def now_iso(self) -> str:
        """The time of this page."""
        return dt.datetime.fromtimestamp(self.now, dt.UTC).isoformat(timespec="seconds")

    def in_seconds(self, seconds: float) -> str:
        """Return the time of this page and some seconds."""
        return dt.datetime.fromtimestamp(self.now + seconds, dt.UTC).isoformat(timespec="seconds")

    def field(self, name: str) -> str:
        """Return one field of the query; empty if it is missing."""
        return self.query.get(name, [""])[0].strip()

    def fields(self, name: str) -> list[str]:
        """Return all values of a field of the query."""
        return [value.strip() for value in self.query.get(name, []) if value.strip()]

    def may(self, permission: Permission, function: str | None = None) -> bool:
        """Return whether to show what needs a permission. The API decides, again, about each call."""
        return any(grant.permits(permission, self.namespace, function) for grant in self._grants)

    def may_everywhere(self, permission: Permission) -> bool:
        """Return whether to show what needs a permission in all namespaces, for all functions."""
        return any(grant.permits(permission, EVERY_NAMESPACE, None) for grant in self._grants if not grant.functions)

    def has(self, needs: str) -> bool:
        """Return whether the store of the node keeps what a page or an action needs; empty: it needs nothing."""
        return needs not in self.identity.lacks

    def offers(self, action: Offered, function: str | None = None) -> bool:
        """Return whether to show an action: the store can do it, and the viewer may."""
        if not self.has(action.needs):
            return False
        return any(
            grant.permits(action.permission, self.namespace, function)
            for grant in self._grants
            if not (grant.functions and action.of_all_functions)
        )

    def url(self, path: str, /, query: Mapping[str, Any] | None = None, **parameters: str) -> str:
        """Return the address of a page; ``parameters`` replace those in braces. By default it is in this namespace."""
        filled = path.format(**{name: segment(value) for name, value in parameters.items()})
        given = query or {}
        namespace = given.get(NAMESPACE) or self.namespace
        text = encode_query({**given, NAMESPACE: None if namespace == namespaces.DEFAULT else namespace})
        return self.place.prefix + filled + (f"?{text}" if text else "")

    def first_page_of(self, namespace: str) -> str:
        """Return the address of the overview of a namespace."""
        text = "" if namespace == namespaces.DEFAULT else "?" + encode_query({NAMESPACE: namespace})
        return f"{self.place.prefix}/{text}"

    def here(self, **changes: Any) -> str:
        """Return the address of this page with other fields in its query; None removes a field. A cursor never stays."""
        query: dict[str, Any] = {**self.query, "cursor": None, NAMESPACE: None, **changes}
        return self.url(self.path.replace("{", "{{").replace("}", "}}"), query)

    def api_address(self, path: str, parameters: Mapping[str, str] = NONE) -> str:
        """Return the whole address of a call."""
        return self.place.origin + self.place.prefix + self.calls.path(path, parameters)

    def api_path(self, path: str, parameters: Mapping[str, str] = NONE, *, query: Mapping[str, Any] = NONE) -> str:
        """Return the path of a call, for links and streams."""
        text = encode_query(query)
        return self.place.prefix + self.calls.path(path, parameters) + (f"?{text}" if text else "")

    def live(self, **subjects: Any) -> str:
        """Return the path of the stream with some subjects, for the block ``stream`` of a template."""
        return self.api_path(f"{N}/live", query=subjects)

    def render(self, template: str, /, *, code: int = 200, **values: Any) -> Response:
        """Return a page."""
        names = {"visit": self, "url": self.url, "here": self.here}
        return Response(code, {b"content-type": HTML}, self._templates.render(template, names | values))

    async def optional(self, call: Awaitable[T], part: str = "") -> T | Problem:
        """Return the answer to a call, or the reason for its absence: for parts that a page can do without.

        The templates find the reason in ``missing``, under the name of the part. A late part does not hold up the others.
        """
        try:
            async with asyncio.timeout(PART_TIME):
                return await call
        except RefusedError as refused:
            problem = refused.problem
        except TimeoutError:
            problem = LATE
        self.missing[part] = problem
        return problem

    def redirect(self, address: str) -> Response:
        """Return an answer that leads the browser to another page of this node."""
        return Response(303, {b"location": address.encode("ascii", "replace")})

    def problem(self, problem: Problem, back: str = "", form: object = None, current: str = "") -> Response:
        """Return the page of a refusal: what was wrong, and what to do.

        ``back`` is the page of a refused form, ``form`` an `actions.RefusedForm` that can be corrected, and ``current`` the
        object as another change has left it.
        """
        return self.render("problem.html", code=problem.status, problem=problem, back=back, form=form, current=current)


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

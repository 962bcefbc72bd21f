"""The ASGI application of the pages, in front of the HTTP API, which it calls: files, pages, and forms.

The addresses of files (style, scripts, icon) contain a digest, so browsers keep them for ever.
"""

from __future__ import annotations

import gzip
import hashlib
import secrets
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, parse_qsl, quote

import msgspec
import structlog

from mainspring import appearance
from mainspring.access.proxy import is_of_this_site
from mainspring.api.access import Identity
from mainspring.faces.dashboard import actions, rendering
from mainspring.faces.dashboard.actions import FormError
from mainspring.faces.dashboard.calls import Calls, Problem, RefusedError
from mainspring.faces.dashboard.pages import ACTIONS, PAGES
from mainspring.faces.dashboard.rendering import MenuEntry, Templates
from mainspring.faces.dashboard.visit import HTML, NAMESPACE, Place, Response, Table, Visit
from mainspring.faces.web.exchange import (
    HEADERS,
    LOGIN,
    ROOT,
    IncompleteBodyError,
    LongBodyError,
    read_body,
    send_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from mainspring.faces.dashboard.actions import Action
    from mainspring.faces.dashboard.calls import Answer

ASSETS_PATH: Final = "/assets/"
_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
HTMX: Final = "htmx-2.0.11.min.js"
"""A vendored copy (Zero-Clause BSD): nothing is loaded from other hosts."""
HTMX_SHA256: Final = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
ASSET_NAMES: Final = ("style.css", "mainspring.js", "icon.svg", HTMX)


class Asset(NamedTuple):
    """A file as it is sent."""

    kind: bytes
    digest: str
    body: bytes
    zipped: bytes


class Assets:
    """All files. ``extra`` is text that is appended to a file, such as the generated colours to the style."""

    def __init__(self, extra: dict[str, str] | None = None) -> None:
        folder = files("mainspring.faces.dashboard") / "static"
        self._assets: dict[str, Asset] = {}
        for name in ASSET_NAMES:
            body = (folder / name).read_bytes() + (extra or {}).get(name, "").encode()
            digest = hashlib.sha256(body).hexdigest()[:16]
            kind = _TYPES["." + name.rpartition(".")[2]]
            self._assets[name] = Asset(kind, digest, body, gzip.compress(body, 9, mtime=0))

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{ASSETS_PATH}{self._assets[name].digest}/{name}"

    def answer(self, path: str, accepted: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
        """Return the headers and the body for a path below `PATH`, or None. An old digest gets the new file."""
        digest, _, name = path.removeprefix(ASSETS_PATH).partition("/")
        asset = self._assets.get(name)
        if asset is None:
            return None
        kept = b"public, max-age=31536000, immutable" if digest == asset.digest else b"no-store"
        headers = {b"content-type": asset.kind, b"cache-control": kept, b"vary": b"accept-encoding"}
        if b"gzip" in accepted:
            return headers | {b"content-encoding": b"gzip"}, asset.zipped
        return headers, asset.body


API: Final = "/api/"
NO_PAGES: Final = frozenset({LOGIN, "/logout"})
"""Paths that the API answers, besides its own."""
SETTINGS: Final = "/settings/view"
NOTICE: Final = "mainspring-notice"
"""The cookie that names a done action, until the next page reports it. It holds no words: others could choose them."""
NOTICE_LIFE: Final = 30
"""Seconds."""
FORM_LIMIT: Final = 2 << 20
"""Bytes of a form."""
MOST_FIELDS: Final = 2000
FORBIDDEN: Final = 403
"""The status of a call that its caller may not make. Some fields need a further permission."""
CHANGED: Final = 412
"""The status of a call that came after another change."""
_LONGEST_NEXT: Final = 4096
"""Letters: browsers refuse answers with very long headers."""
STRICT: Final = HEADERS | {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    b"cross-origin-opener-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"vary": b"cookie",
    b"x-robots-tag": b"noindex",
}

_CROSS_SITE: Final = Problem(
    "",
    "The form comes from another site",
    403,
    "Forms of other sites change nothing: open the page here, and send its form.",
)

log = structlog.get_logger("mainspring.pages")


@lru_cache(maxsize=1)
def all_assets() -> Assets:
    """Return the files of the pages."""
    return Assets({"style.css": appearance.style()})


class Dashboard:
    """The pages. ``api`` is the HTTP API of the node, ``prefix`` the path under which a proxy shows it, ``now`` a clock."""

    def __init__(self, api: ASGIApp, *, now: Callable[[], float], version: str, prefix: str = "") -> None:
        self._api = api
        self._now = now
        self._prefix = prefix
        self._table = Table(PAGES)
        self._actions = {action.key: action for action in ACTIONS}
        self._assets = all_assets()
        self._templates = Templates(
            asset=lambda name: prefix + self._assets.path(name),
            menu=[
                MenuEntry(page.path, page.menu, page.permission, page.needs) for page in self._table.pages if page.menu
            ],
            version=version,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        path = self._path(scope)
        if path in NO_PAGES or path.startswith(API):
            await self._api(scope, receive, send)
            return
        if path.startswith(ASSETS_PATH):
            found = self._assets.answer(path, headers.get(b"accept-encoding", b""))
            await _send(send, Response(404, {}) if found is None else Response(200, *found), scope["method"])
            return
        try:
            response = await self._answer(scope, receive, path, headers)
        except Exception:
            request = secrets.token_hex(8)
            log.exception("a page failed", request=request, path=path[:200])
            response = self._unknown_visitor(
                Problem(
                    "",
                    "The node has a defect",
                    500,
                    "The node's log has the reason: look there for the request's id.",
                    request,
                )
            )
        await _send(send, response, scope["method"])

    def _path(self, scope: Scope) -> str:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("latin-1")
        # A proxy may remove the prefix, or pass it on.
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            path = path[len(self._prefix) :]
        return path or "/"

    async def _answer(self, scope: Scope, receive: Receive, path: str, headers: dict[bytes, bytes]) -> Response:
        method = scope["method"]
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=MOST_FIELDS)
        except ValueError:
            detail = f"The address has more than {MOST_FIELDS} fields: use fewer."
            return self._unknown_visitor(Problem("", "The address cannot be read", 400, detail))
        namespace = query.get(NAMESPACE, [""])[0].strip() or "default"
        calls = Calls(self._api, scope, namespace, self._prefix)
        try:
            identity = await calls.get(Identity, f"{ROOT}/whoami")  # it checks the host, too
        except RefusedError as refused:
            return self._refused_visitor(refused, scope, path, headers)
        if not is_of_this_site(method, headers):  # some forms make no call that the API would check
            return self._unknown_visitor(_CROSS_SITE)
        cookies = _cookies(headers.get(b"cookie", b""))
        visit = Visit(
            path=path,
            parameters={},
            query=query,
            calls=calls,
            identity=identity,
            settings=rendering.read_settings(
                cookies.get(rendering.SETTINGS_COOKIE, ""), cookies.get(rendering.ZONE_COOKIE, "")
            ),
            place=Place(_origin(scope, headers), self._prefix),
            templates=self._templates,
            now=self._now(),
            notice=self._noticed(cookies.get(NOTICE, "")),
        )
        try:
            response = await self._visited(visit, method, receive)
        except RefusedError as refused:
            is_form = method == "POST"
            problem = refused.problem
            if problem.is_unsupported and not is_form:  # an address from elsewhere: no menu and no link has it
                problem = msgspec.structs.replace(problem, status=404)
            response = visit.problem(problem, visit.here() if is_form else "")
        except FormError as error:
            response = visit.problem(_wrong(error))
        if visit.notice and response.status == 200:
            gone = {b"set-cookie": self._cookie(visit, NOTICE, "", 0)}
            response = response._replace(headers={**response.headers, **gone})
        return response

    async def _visited(self, visit: Visit, method: str, receive: Receive) -> Response:
        if method == "POST" and visit.path.startswith(actions.PATH):
            action = self._actions.get(visit.path.removeprefix(actions.PATH))
            if action is not None:
                return await self._act(visit, action, await _form(receive))
        elif method == "POST" and visit.path == SETTINGS:
            return self._set_view(visit, await _form(receive))
        elif (found := self._table.find(visit.path)) is not None:
            page, visit.parameters = found
            if method == "POST" and page.post is not None:
                return await page.post(visit, await _form(receive))
            if method in {"GET", "HEAD"}:
                return await page.handler(visit)
        return visit.problem(Problem("", "There is no such page", 404, f"There is no page {visit.path[:200]}."))

    async def _act(self, visit: Visit, action: Action, form: dict[str, str]) -> Response:
        """Do what a form asks for, and show the page that follows. A refused form is shown again, with what was typed."""
        parameters = action.parameters(form)
        following = self._next(visit, form)
        headers = (
            {b"if-match": f'"{form.get(actions.VERSION, "")}"'.encode("latin-1", "replace")}
            if action.if_match
            else None
        )
        try:
            body = action.body(form)
            answer = await visit.calls.send(action.method, action.path, parameters, body=body, headers=headers)
        except RefusedError as refused:
            problem, faults = refused.problem, refused.problem.fields
        except FormError as error:
            problem, faults = _wrong(error), {error.field: str(error)}
        else:
            return self._done(visit, action, parameters, answer, following)
        version = form.get(actions.VERSION, "")
        refused_form = None
        current = ""
        if problem.status == CHANGED and action.current is not None:
            found = await visit.optional(action.current(visit, parameters))
            current = found if isinstance(found, str) else ""
        if problem.status == 404:  # the page of an object that is gone would say the same
            following = self._above(visit, following)
        if problem.status in action.correctable and (action.fields or problem.status != FORBIDDEN):
            refused_form = actions.RefusedForm(
                action.permitted(visit.may, form, visit.may_everywhere), parameters, version, form, faults
            )
        return visit.problem(problem, following, refused_form, current)

    def _done(
        self, visit: Visit, action: Action, parameters: dict[str, str], answer: Answer, following: str
    ) -> Response:
        if action.then is not None:
            following = action.then(visit, parameters, answer)
        noticed = self._cookie(visit, NOTICE, f"{action.key}.{action.outcome(answer.body)}", NOTICE_LIFE)
        return Response(303, {b"location": _ascii(following), b"set-cookie": noticed})

    def _noticed(self, value: str) -> str:
        """Return the sentence for a cookie's value, which has the names of an action and of its outcome."""
        key, _, outcome = value.partition(".")
        action = self._actions.get(key)
        return "" if action is None else action.notice(outcome)

    def _set_view(self, visit: Visit, form: dict[str, str]) -> Response:
        changed = rendering.settings_of_form(form, visit.settings)
        cookie = self._cookie(visit, rendering.SETTINGS_COOKIE, changed.cookie(), rendering.COOKIE_LIFE)
        return Response(303, {b"location": _ascii(self._next(visit, form)), b"set-cookie": cookie})

    def _cookie(self, visit: Visit, name: str, value: str, seconds: int) -> bytes:
        secure = "; Secure" if visit.place.origin.startswith("https:") else ""
        path = self._prefix or "/"
        return _ascii(f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")

    def _next(self, visit: Visit, form: dict[str, str]) -> str:
        """Return the path of the page that a form belongs to: never that of another site."""
        path = form.get(actions.NEXT, "")
        return path if self._is_ours(path) and len(path) <= _LONGEST_NEXT else visit.url("/")

    def _is_ours(self, path: str) -> bool:
        """Return whether a path leads to this node: with two slashes at its begin, it would lead to another site."""
        begins_here = path.startswith(self._prefix + "/") and not path.startswith(("//", "/\\"))
        return begins_here and path.isprintable() and path.isascii()

    def _above(self, visit: Visit, address: str) -> str:
        """Return the address of the list that has the object of a page; that of the page itself, if it is of no object."""
        found = self._table.find(address.removeprefix(self._prefix).partition("?")[0])
        if found is None or not found[1]:
            return address
        return visit.url(found[0].path.partition("/{")[0])

    def _unknown_visitor(self, problem: Problem, *, is_form: bool = False) -> Response:
        """Return the page of a problem without anything that depends on the visitor; ``is_form``: a form was not even read."""
        body = self._templates.render("bare_problem.html", {"problem": problem, "is_form": is_form})
        return Response(problem.status, {b"content-type": HTML}, body)

    def _refused_visitor(
        self, refused: RefusedError, scope: Scope, path: str, headers: Mapping[bytes, bytes]
    ) -> Response:
        is_form = scope["method"] not in {"GET", "HEAD"}
        if refused.status != 401:
            return self._unknown_visitor(refused.problem, is_form=is_form)
        following = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        if is_form:
            following = "/"
        elif headers.get(b"sec-fetch-site") == b"cross-site" and self._is_ours(self._prefix + following):
            # A browser that follows a link of another site leaves out the session's cookie. This page opens the same address
            # again, as a page of this site.
            body = self._templates.render("again.html", {"address": self._prefix + following})
            return Response(200, {b"content-type": HTML}, body)
        target = f"{self._prefix}{LOGIN}?{actions.NEXT}={quote(following, safe='')}"
        return Response(303, {b"location": target.encode("ascii")})


def _wrong(error: FormError) -> Problem:
    return Problem("", "A field of the form is wrong", 422, str(error))


async def _form(receive: Receive) -> dict[str, str]:
    """Return the fields of a form; of several with one name, the last. Raises FormError."""
    try:
        body = await read_body(receive, FORM_LIMIT)
    except IncompleteBodyError:
        raise FormError("The form is incomplete: send it again.") from None
    except LongBodyError:
        raise FormError(f"The form is longer than {FORM_LIMIT} bytes: use the API or a command.") from None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise FormError("The form cannot be read: send it as application/x-www-form-urlencoded.") from None
    return dict(pairs)


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "replace")


def _cookies(header: bytes) -> dict[str, str]:
    """Return the cookies of a request; of several with one name the first, which has the longest path."""
    pairs = (part.strip().partition("=") for part in reversed(header.decode("latin-1").split(";")))
    return {name: value for name, _, value in pairs}


def _origin(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """Return the node's address as the browser sees it; it is shown only, and decides nothing."""
    scheme = headers.get(b"x-forwarded-proto", scope["scheme"].encode()).decode("latin-1")
    return f"{'https' if scheme == 'https' else 'http'}://{headers.get(b'host', b'').decode('latin-1')}"


async def _send(send: Send, response: Response, method: str) -> None:
    pairs: dict[bytes, Any] = STRICT | dict(response.headers)
    pairs[b"content-length"] = str(len(response.body)).encode()
    await send_answer(send, response.status, pairs.items(), b"" if method == "HEAD" else response.body)

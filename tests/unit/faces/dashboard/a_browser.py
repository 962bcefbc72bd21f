"""The pages without a server, on a node in memory, and a browser without a script."""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode

import msgspec
from tests.unit.faces.rest.a_client import Client, MemoryAccess
from tests.unit.faces.rest.a_server import whole_node
from tests.unit.faces.rest.test_live_routes import event
from tests.unit.faces.rest.test_streams import Reader

from mainspring.api.access import GrantSpec, Identity
from mainspring.faces.dashboard.app import Dashboard
from mainspring.faces.rest.streams import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send
    from tests.unit.faces.rest.a_client import Answer

    from mainspring.access.caller import Caller, Role
    from mainspring.server.build import Built

MOST_SHAPES = 500
"""Of a drawing."""
NO_SHAPES = {"g", "title", "desc", "defs", "lineargradient", "stop"}
"""Elements of a drawing that are none; the reader writes tags in small letters."""
_NUMBER = re.compile(r"\d[\d.:\N{NARROW NO-BREAK SPACE}]*")
VOID = {"meta", "link", "input", "br", "img", "hr", "wbr"}


class Element:
    """An element of a page."""

    def __init__(self, tag: str, attributes: Mapping[str, str | None], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = {name: value or "" for name, value in attributes.items()}
        self.parent = parent
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        """The text in it, with single spaces."""
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Return all elements in it with a tag and attributes; ``class_`` is one of its classes."""
        wanted_class = attributes.pop("class_", None)
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            fits = all(child.attributes.get(name) == value for name, value in attributes.items())
            has_class = wanted_class is None or wanted_class in child.attributes.get("class", "").split()
            if child.tag == tag and fits and has_class:
                found.append(child)
            found += child.all(tag, **attributes, **({} if wanted_class is None else {"class_": wanted_class}))
        return found

    def one(self, tag: str, **attributes: str) -> Element:
        """Return the only such element."""
        found = self.all(tag, **attributes)
        assert len(found) == 1, f"{len(found)} elements {tag} {attributes}"
        return found[0]


class _Reader(HTMLParser):
    """Builds a tree, and refuses pages whose elements do not nest, or have the same id."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {}, None)
        self._open = self.root
        self._ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs), f"inline code or style: {attrs}"
        element = Element(tag, dict(attrs), self._open)
        if "id" in element.attributes:
            assert element.attributes["id"] not in self._ids, f"two elements have the id {element.attributes['id']}"
            self._ids.add(element.attributes["id"])
        self._open.children.append(element)
        if tag not in VOID:
            self._open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.children.append(Element(tag, dict(attrs), self._open))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.tag == tag, f"</{tag}> ends <{self._open.tag}> {self._open.attributes}"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.children.append(data)


@dataclass
class Shown:
    """A page as a browser gets it."""

    answer: Answer
    root: Element

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def main(self) -> Element:
        return self.root.one("main")

    @property
    def title(self) -> str:
        return self.root.one("head").one("title").text

    def rows(self, number: int = 0) -> list[list[str]]:
        """Return the texts of a table's body."""
        body = self.main.all("tbody")[number]
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for row in body.children
            if isinstance(row, Element)
        ]


class Browser:
    """Opens pages, follows links and sends forms."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self.cookies: dict[str, str] = {}
        self.sent: list[Any] = []
        """The bodies of calls, if the API gives fixed answers."""

    @property
    def behind_a_removing_proxy(self) -> Browser:
        """Another browser, which reaches the same node through a proxy that removes the prefix."""
        return Browser(self._client, "")

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Call the API as an administrator, below the namespace ``default``, and return the answer's JSON."""
        answer = await self._client.send(method, f"{self._prefix}/api/v1/namespaces/default/{path}", body, **options)
        assert answer.status < 300, answer.body
        return answer.json

    async def raw(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Call the API as an administrator, by a whole path, and return the answer."""
        return await self._client.send(method, path, body, headers=list(headers.items()))

    async def done(self, operation: str) -> None:
        """Return once an operation on many jobs has ended."""
        path, tag = f"{self._prefix}/api/v1/namespaces/default/operations/{operation}?wait=5", ""
        while True:
            sent = [("if-none-match", tag)] if tag else []
            answer = await self._client.get(path, headers=sent, connected=True)
            if answer.status == 200 and answer.json["state"] != "running":
                return
            tag = answer.headers["etag"]

    async def submit(self, function: str, **job: Any) -> str:
        """Submit a job and return its handle."""
        return str((await self.call("POST", "jobs", {"function": function, **job}))["handle"])

    def permit(self, token: str, role: Role, namespace: str) -> None:
        """Add a caller with a role in one namespace."""
        self._client.access.add(token, role, namespace)

    def admit(self, token: str, caller: Caller) -> None:
        """Add a caller with any grants."""
        self._client.access.callers[token] = caller

    async def open(self, path: str, **options: Any) -> Shown:
        """Return a page."""
        headers = [*self._sent(), *options.pop("more", ())]
        answer = await self._client.get(self._prefix + path, headers=headers, **options)
        self._keep(answer)
        return _shown(answer)

    async def event(self, path: str, name: str, token: str = "admin") -> Any:
        """Return the data of the first event of a name in a stream."""
        reader = Reader(self._client, path, token)
        await reader.begin()
        found = await event(reader, name)
        reader.left.set()
        await reader.task
        return found

    async def send(self, path: str, fields: Mapping[str, str], **options: Any) -> Answer:
        """Send a form to a path that begins with the prefix, and return the answer."""
        headers = [
            *self._sent(),
            ("sec-fetch-site", options.pop("site", "same-origin")),
            ("content-type", "application/x-www-form-urlencoded"),
            *options.pop("more", ()),
        ]
        answer = await self._client.send(
            "POST", path, urlencode(fields, errors="surrogatepass").encode(), headers=headers, **options
        )
        self._keep(answer)
        return answer

    async def send_raw(self, path: str, body: bytes, headers: list[tuple[str, str]]) -> Answer:
        """Send a form with these headers alone."""
        return await self._client.send("POST", path, body, headers=headers, token=None)

    async def post(self, path: str, fields: Mapping[str, str], **options: Any) -> Shown:
        """Send a form to a page, and return the page that follows."""
        answer = await self.send(self._prefix + path, fields, **options)
        if answer.status != 303:
            return _shown(answer)
        return await self.open(answer.headers["location"].removeprefix(self._prefix), **options)

    async def act(self, page: Shown, action: str, fields: Mapping[str, str] | None = None, **options: Any) -> Shown:
        """Send the first form of an action that a page shows, and return the page that follows."""
        path = f"{self._prefix}/actions/{action}"
        form = next(one for one in page.main.all("form") if one.attributes["action"].partition("?")[0] == path)
        filled = {
            one.attributes["name"]: one.attributes.get("value", "")
            for one in form.all("input")
            if one.attributes.get("type") != "checkbox" or "checked" in one.attributes
        }
        for area in form.all("textarea"):
            filled[area.attributes["name"]] = "".join(one for one in area.children if isinstance(one, str))
        for select in form.all("select"):
            chosen = [one for one in select.all("option") if "selected" in one.attributes] or select.all("option")
            filled[select.attributes["name"]] = chosen[0].attributes["value"]
        return await self.post(
            form.attributes["action"].removeprefix(self._prefix), {**filled, **(fields or {})}, **options
        )

    async def paste(self, page: Shown, action: str) -> Answer:
        """Send what the shown ``curl`` line of an action sends."""
        lines = [one.text for one in page.main.one("details", **{"data-action": action}).all("code")]
        program, *words = shlex.split(lines[-1])
        assert program == "curl"
        options, address = list(zip(words[:-1:2], words[1:-1:2], strict=True)), words[-1]
        headers = [tuple(value.split(": ", 1)) for option, value in options if option == "-H"]
        sent = [(name, value) for name, value in headers if name != "Authorization"]
        assert len(sent) == len(headers) - 1
        method, body = dict(options)["-X"], dict(options).get("-d")
        path = "/" + address.split("/", 3)[3]
        return await self._client.send(method, path, None if body is None else body.encode(), headers=sent)

    def _sent(self) -> list[tuple[str, str]]:
        return (
            [("cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))] if self.cookies else []
        )

    def _keep(self, answer: Answer) -> None:
        name, _, rest = answer.headers.get("set-cookie", "").partition("=")
        if name:
            self.cookies[name] = rest.partition(";")[0]
            if not self.cookies[name]:
                del self.cookies[name]


def _shown(answer: Answer) -> Shown:
    reader = _Reader()
    if answer.headers.get("content-type", "").startswith("text/html"):
        reader.feed(answer.body.decode())
        for drawing in reader.root.all("svg", class_="drawing"):
            _check_drawing(drawing, reader.root.one("main"))
    return Shown(answer, reader.root)


def _check_drawing(drawing: Element, page: Element) -> None:
    """Refuse a drawing with too many shapes, with numbers that only it has, or without a box that scrolls it.

    Texts of the class ``scale`` are at its axes.
    """
    inside = _below(drawing)
    shapes = [one for one in inside if one.tag not in NO_SHAPES]
    assert len(shapes) <= MOST_SHAPES, f"a drawing with {len(shapes)} shapes"
    if drawing.attributes["class"] != "drawing":  # small ones, in tables
        return
    links = {one.attributes.get("id") for one in page.all("a")}
    assert all(one.attributes.get("data-link") in {None, *links} for one in inside), "a shape leads nowhere"
    box = drawing.parent
    assert box is not None
    assert box.attributes | {"aria-label": ""} == {"class": "wide", "role": "region", "tabindex": "0", "aria-label": ""}
    assert box.attributes["aria-label"]
    outside = _words_outside(page)
    texts = [
        _words_outside(one) for one in inside if one.tag in {"desc", "text"} and one.attributes.get("class") != "scale"
    ]
    alone = {found for text in texts for found in _numbers(text)} - _numbers(outside)
    assert not alone, f"only the drawing has the numbers {alone}"


def _below(element: Element) -> list[Element]:
    children = [one for one in element.children if isinstance(one, Element)]
    return [*children, *(one for child in children for one in _below(child))]


def _words_outside(element: Element) -> str:
    """Return the text of an element without drawings."""
    return " ".join(
        one if isinstance(one, str) else _words_outside(one)
        for one in element.children
        if isinstance(one, str) or one.tag != "svg"
    )


def _numbers(text: str) -> set[str]:
    return {found.rstrip(".:\N{NARROW NO-BREAK SPACE}") for found in _NUMBER.findall(text)}


@contextlib.asynccontextmanager
async def browsing(
    *, store: str = "memory://", prefix: str = "", through: Callable[[ASGIApp], ASGIApp] = lambda api: api
) -> AsyncIterator[tuple[Browser, Built]]:
    """Yield a browser and the node. Pages open with the token ``admin``, or with ``token=`` for another role.

    ``through`` returns an application in front of the API for the calls of the pages.
    """
    async with whole_node(store, prefix=prefix) as (client, built):
        for name, caller in client.access.callers.items():  # operations would look for their tokens in the store
            client.access.callers[name] = msgspec.structs.replace(caller, token="")
        pages = Dashboard(through(client.app), now=built.clock.wall, version="9.9", prefix=prefix)
        client.app = pages  # type: ignore[assignment]
        yield Browser(client, prefix), built


def browser_of(answers: Mapping[str, Any], now: float) -> Browser:
    """Return a browser of pages whose API gives fixed answers, by the end of the path, to an operator.

    An answer may be a function of the query.
    """
    replies: dict[str, Any] = {"/whoami": Identity("o", None, [GrantSpec("operator")]), **answers}
    for end in ("/workflows", "/nodes"):
        replies.setdefault(end, {"items": []})
    replies.setdefault("/values", {"items": [], "ended": True})

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        path = unquote(scope["path"])
        sent = (await receive())["body"]
        if sent:
            browser.sent.append(msgspec.json.decode(sent))
        answer = next(answer for end, answer in replies.items() if path.endswith(end))
        if callable(answer):
            answer = answer(parse_qs(scope["query_string"].decode()))
        body = msgspec.json.encode(answer)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    pages = Dashboard(api, now=lambda: now, version="9.9")
    browser = Browser(Client(pages, MemoryAccess(), Streams()), "")  # type: ignore[arg-type]
    return browser

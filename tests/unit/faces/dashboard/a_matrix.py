"""Objects of all kinds that pages have actions for, on a node in memory, for each pair of an action and a caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.wires import Wire

from mainspring.api.listeners import DeclaredListener, DeclareListeners
from mainspring.wire.gearman_protocol import EXTENSION, Type, request

from .a_browser import browsing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mainspring.server.build import Built

    from .a_browser import Browser

API = "/api/v1/namespaces/default"
PARKED = {"kind": "mismatch", "message": "the code differs", "recorded": [], "code": [], "at": 0, "builds": []}


def with_other_states(api: ASGIApp) -> ASGIApp:
    """Return an API whose nodes are in each state, whose runs are parked, and whose functions have dead letters."""

    def changed(path: str, content: Any) -> Any:
        if path.endswith("/nodes"):
            (own,) = content["items"]
            states = [
                {**own, "name": f"{own['name']}{number}", "state": state, "lease_left": 9.0}
                for number, state in enumerate(("live", "draining", "dead"))
            ]
            return {**content, "items": states}
        if "/functions/" in path:
            return {**content, "dead_letters": 1}
        return {**content, "parked": PARKED}

    async def through(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_object = ("/workflows/" in path or "/functions/" in path) and path.count("/") == 6
        if scope["method"] != "GET" or not (path.endswith("/nodes") or is_object):
            await api(scope, receive, send)
            return
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await api(scope, receive, keep)
        if sent[0]["status"] == 200:
            body = b"".join(message.get("body", b"") for message in sent[1:])
            sent[0]["headers"] = []
            sent[1:] = [{"type": "http.response.body", "body": msgspec.json.encode(changed(path, json.loads(body)))}]
        for message in sent:
            await send(message)

    return through


@dataclass
class Matrix:
    """A node, and its objects."""

    browser: Browser
    built: Built
    wires: list[Wire] = field(default_factory=list)
    calls: int = 0

    def _connect(self, *packets: bytes) -> Wire:
        life = SimpleNamespace(face=self.built.node.face, loop=asyncio.get_running_loop(), wires=self.wires)
        wire = Wire(life, lambda *_: None)
        self.wires.append(wire)
        for packet in (request(Type.OPTION_REQ, EXTENSION), *packets):
            wire.send(packet)
            wire.deliver()
        return wire

    def declare(self, *types: str) -> None:
        """Connect a worker that makes the decisions of workflows."""
        workflow = json.dumps({"workflow": {"version": "1", "digest": "d"}}).encode()
        self._connect(*(request(Type.REGISTER, one.encode(), workflow) for one in types))

    async def worker(self, function: str, *, is_draining: bool) -> str:
        """Connect a worker, and return its id."""
        for wire in self.wires[1:]:
            wire.end()
        about = json.dumps({"stops": True}).encode()
        self._connect(
            request(Type.REGISTER, function.encode(), b"{}"), request(Type.CALL, b"1", b"worker.describe", about)
        )
        listed = (await self.browser.call("GET", "workers"))["items"]
        found = next(one["id"] for one in listed if one["stops"])
        if is_draining:
            await self.browser.call("POST", f"workers/{found}/drain", {})
        return str(found)

    async def object_of(self, key: str, function: str) -> tuple[str, dict[str, str]]:
        """Make an object on which an action makes sense; return the path of its page and the parameters of the call."""
        self.calls += 1
        kind, _, verb = key.partition("_")
        name = f"{function}{self.calls}"
        call = self.browser.call
        match kind:
            case "jobs" if verb == "submit":
                return "/jobs", {}
            case "workflows" if verb == "start":
                return "/workflows", {}
            case "jobs":
                handle = await self.browser.submit(name)
                if verb in {"retry", "delete"}:
                    await call("POST", f"jobs/{handle}/cancel", {})
                return f"/jobs/{handle}", {"handle": handle}
            case "functions":
                if verb == "acknowledge":
                    await self.browser.submit(name)
                await call("POST", f"functions/{name}/pause", {})
                if verb == "pause":
                    await call("POST", f"functions/{name}/resume", {})
                if verb == "limits_delete":
                    await call("PUT", f"functions/{name}/limits", {"concurrency": 1}, headers=[("if-match", "*")])
                return f"/functions/{name}", {"function": name}
            case "schedules":
                await call("POST", "schedules", {"name": name, "function": name, "cron": "0 0 1 1 *"})
                if verb == "resume":
                    await call("POST", f"schedules/{name}/pause", {})
                return f"/schedules/{name}", {"name": name}
            case "workflows":
                await call("POST", "workflows", {"function": function, "id": name})
                if verb == "resume":
                    await call("POST", f"workflows/{name}/pause", {})
                return f"/workflows/{name}", {"key": name}
            case "operations":
                for unique in "ab":
                    await self.browser.submit(name, unique=unique, delay=1000)
                change = {"action": "cancel", "filter": {"function": name}, "rate": 0.001}
                found = (await call("POST", "operations", change))["id"]
                return f"/operations/{found}", {"id": found}
            case "listeners":
                listener = DeclaredListener(name=name, types=["job.failed"])
                await self.built.api.call(DeclareListeners(app=name, listeners=[listener], functions=[name]))
                if verb == "resume":
                    await call("POST", f"listeners/{name}/pause", {})
                return f"/listeners/{name}", {"name": name}
            case "events":
                await call("PUT", f"events/cursors/{name}", {"type": ["job.failed"]})
                return "/events", {"name": name}
            case "webhooks":
                hook = {"name": name, "url": "http://127.0.0.1:1025/", "types": ["job.failed"]}
                await call("POST", "webhooks", hook)
                if verb == "resume":
                    await call("POST", f"webhooks/{name}/pause", {})
                return f"/webhooks/{name}", {"name": name}
            case "resources":
                await call("PUT", f"resources/{name}", {"total": 2})
                if verb == "free":
                    held = await call("POST", f"resources/{name}/hold", {"duration": 3600})
                    return f"/resources/{name}", {"name": name, "holder": held["holder"]}
                return f"/resources/{name}", {"name": name}
            case "workers":
                found = await self.worker(name, is_draining=verb == "undrain")
                return f"/workers/{found}", {"worker": found}
            case "nodes":
                return "/nodes", {"node": self.built.node.settings.name}
        return "/audit", {}

    async def shown_by_the_api(self, path: str) -> Any:
        """Return the object of a page as the API has it; of an operation, which goes on meanwhile, the state.

        Of the audit it returns the marks: each refused request is in the audit, too.
        """
        of_lists = {"/audit": "marks", "/events": "events/cursors"}
        shown = await self.browser.call("GET", of_lists.get(path, path.removeprefix("/")))
        if path.startswith("/operations"):
            return shown["state"]
        if path == "/nodes":  # heartbeats go on meanwhile
            return [{name: one[name] for name in one if name != "beats"} for one in shown["items"]]
        # Unknown in the first two seconds of a node, and how far a listener or a webhook is.
        passing = {"registered", "delivered", "behind"}
        return {name: shown[name] for name in shown if name not in passing}


@contextlib.asynccontextmanager
async def matrix(*types: str, through: Callable[[ASGIApp], ASGIApp] = with_other_states) -> AsyncIterator[Matrix]:
    """Yield a node with workflows of some types."""
    async with browsing(through=through) as (browser, built):
        node = Matrix(browser, built)
        node.declare(*types)
        yield node
        for wire in [*node.wires]:
            wire.end()

"""Secrets that clients send appear in no answer, log, audit or metric."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mainspring.api.access import CreateToken, GrantSpec, ListActs, RevokeToken
from mainspring.faces.rest.app import RestApp
from mainspring.faces.rest.security import Doorkeeper, Hosts, Login
from mainspring.faces.rest.streams import Streams
from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging

from .a_client import Client, MemoryAccess
from .a_server import ALL_ROUTES, whole_node

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from .a_client import Answer

FORM = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")]


async def answers(client: Client, headers: list[tuple[str, str]]) -> list[Answer]:
    """Return the answers of all routes, with and without a defect in the API."""
    found = []
    for route in ALL_ROUTES:
        path = route.path.replace("{namespace}", "default").replace("{", "").replace("}", "")
        sent = [*headers, ("if-match", "*"), ("sec-fetch-site", "same-origin")]
        answer = client.send(route.method, path, route.example, token=None, headers=sent)
        found.append(await asyncio.wait_for(answer, 20))
    return found


def test_a_secret_appears_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def defect(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    async def test() -> None:
        async with whole_node() as (_, built):
            streams = Streams()
            app = RestApp(
                built.api,
                ALL_ROUTES,
                Doorkeeper(built.access, Hosts()),
                Login(built.access),
                built.access.replies,
                streams,
            )
            client, call = Client(app, MemoryAccess(), streams), built.api.call
            created = await call(CreateToken("canary", [GrantSpec("admin", "*", payloads=True)]))
            viewer = await call(CreateToken("view", [GrantSpec("viewer", "default")]))
            session = await built.access.sign_in(viewer.token)
            link = await built.access.new_link()
            assert session is not None
            secrets = [created.token, viewer.token, session, link]
            seen: list[Answer] = []
            for headers in (
                [("authorization", f"Bearer {viewer.token}")],
                [("cookie", f"mainspring={session}")],
                [("authorization", f"Bearer {link}")],
                [("authorization", f"Basic {created.token}")],
                [("authorization", f"Bearer {created.token}"), ("authorization", "x")],
                [("authorization", f"Bearer {created.token}")],
            ):
                seen += await answers(client, headers)
            with monkeypatch.context() as broken:
                broken.setattr(built.api, "call", defect)
                seen += await answers(client, [("authorization", f"Bearer {created.token}")])
                assert 500 in {one.status for one in seen}
            assert await built.access.caller_of_token(created.token) is not None, "no route has revoked it"
            await call(RevokeToken("canary"))
            seen += await answers(client, [("authorization", f"Bearer {created.token}")])
            for field, value in (("token", created.token), ("token", link), ("link", session)):
                form = urlencode({field: value}).encode()
                seen.append(await client.send("POST", "/login", form, token=None, headers=FORM))
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            acts = await call(ListActs(everywhere=True, limit=1000))
            places = {
                "answers": "".join(f"{one.headers} {one.body!r}" for one in seen),
                "log": (tmp_path / "node.log").read_text(),
                "audit": repr(acts),
                "metrics": repr(built.metrics.figures()),
            }
            assert "a request failed" in places["log"]
            assert {"sign_in", "tokens.revoke"} <= {act.what for act in acts.items}
            for secret in secrets:
                body = secret.partition("_")[2]
                assert [name for name, content in places.items() if body in content] == []

    sink = start_logging(LogSettings(level="debug", file=tmp_path / "node.log"))
    try:
        asyncio.run(test())
    finally:
        sink.close()

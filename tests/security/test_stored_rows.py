"""Rows that callers cause have a limit in number: by those that may only read, and by workers that come and go."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from mainspring.access.proxy import TooManySignInsError
from mainspring.access.service import MINUTE, SIGN_INS_PER_MINUTE
from mainspring.api.handlers.registry import READS
from mainspring.faces.rest.routes import ROUTES
from mainspring.faces.web.exchange import ROOT
from mainspring.wire.gearman_protocol import Type
from mainspring.workflows import definitions
from tests.unit.access.test_service import run
from tests.unit.faces.gearman.a_face import Node
from tests.unit.faces.gearman.test_decide_packets import ORDER
from tests.unit.faces.rest.a_client import serving

if TYPE_CHECKING:
    from tests.unit.access.test_service import Fleet


def test_a_request_that_only_reads_keeps_no_answer() -> None:
    async def check() -> None:
        async with serving() as (client, node):
            body = {"name": "nightly", "every": 60, "count": 1000}
            key = [("Idempotency-Key", "k")]
            groups = node.commits.groups
            for _ in range(2):
                path = f"{ROOT}/namespaces/default/schedules/preview"
                answer = await client.send("POST", path, body, token="viewer", headers=key)
                assert answer.status == 200
                assert "idempotency-replayed" not in answer.headers
            assert node.commits.groups == groups

    asyncio.run(check())
    kept = [route for route in ROUTES if route.method == "POST" and route.permission in READS]
    assert kept
    assert all(route.request.only_reads for route in kept), "else a caller that may only read fills the store"


def test_a_token_begins_few_sessions_a_minute() -> None:
    async def check(fleet: Fleet) -> None:
        secret, _ = await fleet.token()
        other, _ = await fleet.token("other")
        for _ in range(SIGN_INS_PER_MINUTE):
            assert await fleet.a.sign_in(secret)
        with pytest.raises(TooManySignInsError, match="begun 60 sessions in a minute: use one of them, or try again"):
            await fleet.a.sign_in(secret)
        assert await fleet.a.sign_in(other)
        assert await fleet.a.sign_in("wrong") is None
        fleet.clock.now += MINUTE
        assert await fleet.a.sign_in(secret)

    run(check)


def test_too_many_sign_ins_are_refused_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with serving() as (client, _):

            async def refuse(_: str) -> None:
                raise TooManySignInsError("too many")

            monkeypatch.setattr(client.access, "sign_in", refuse)
            form = [("Content-Type", "application/x-www-form-urlencoded"), ("Sec-Fetch-Site", "same-origin")]
            refused = await client.send("POST", "/login", b"token=admin", token=None, headers=form)
            assert refused.status == 429, refused.body
            assert (refused.status, refused.problem, refused.headers["retry-after"]) == (429, "too-many-requests", "60")

    asyncio.run(check())


def test_workers_that_come_and_go_store_no_more_versions_than_their_namespace_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(definitions, "MOST_OF_NAMESPACE", 3)
    node = Node(workflows=True)

    def register(version: str, namespace: str | None = None) -> list[tuple[str, list[str]]]:
        worker = node.connect(extended=True, namespace=namespace)
        options = {"workflow": {"version": version, "digest": "d"}}
        worker.request(Type.REGISTER, ORDER, json.dumps(options).encode())
        node.commit()
        received: list[tuple[str, list[str]]] = worker.received()
        worker.wire.end()
        node.commit()
        return received

    assert [register(str(number)) for number in range(3)] == [[], [], []]
    ((name, (code, message)),) = register("4")
    assert (name, code) == ("ERROR", "TOO_MANY_FUNCTIONS")
    assert message.startswith("the namespace default has 3 versions of workflows, and may have 3: remove some")
    assert register("1") == [], "a version that exists registers as before"
    assert register("1", "other") == []

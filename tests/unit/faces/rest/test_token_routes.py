"""Routes about tokens, rights, the audit and marks, on a whole node."""

from __future__ import annotations

import asyncio

from mainspring.access.caller import Caller, Grant, Role

from .a_server import whole_node

TOKENS = "/api/v1/tokens"
N = "/api/v1/namespaces/default"


def test_a_token_is_created_shown_rotated_and_revoked() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            grants = [{"role": "operator", "functions": ["pay*"]}]
            body = {"name": "ci", "grants": grants, "expires_at": "2999-01-01T00:00:00Z"}
            created = await client.send("POST", TOKENS, body)
            assert created.status == 201
            secret, token = created.json["token"], created.json["id"]
            assert created.json["expires_at"] == "2999-01-01T00:00:00.000000Z"
            caller = await built.access.caller_of_token(secret)
            assert caller is not None
            assert caller.grants == (Grant(Role.OPERATOR, "default", ("pay*",)),)
            listed = await client.get(TOKENS)
            assert [one["id"] for one in listed.json["items"]] == [token]
            shown = await client.get(f"{TOKENS}/{token}")
            assert secret.encode() not in listed.body + shown.body
            rotated = await client.send("POST", f"{TOKENS}/{token}/rotate")
            assert rotated.json["token"] != secret
            assert await built.access.caller_of_token(secret) is None
            assert (await client.send("DELETE", f"{TOKENS}/{token}?reason=leaked")).status == 200
            assert (await client.send("DELETE", f"{TOKENS}/{token}")).problem == "token-not-found"
            assert await built.access.caller_of_token(rotated.json["token"]) is None
            acts = (await client.get(f"{N}/audit")).json["items"]
            assert [one["what"] for one in acts] == ["tokens.revoke", "tokens.rotate", "tokens.create"]
            assert [one["reason"] for one in acts] == ["leaked", "", ""]
            assert secret not in str(acts)

    asyncio.run(test())


def test_a_node_keeps_no_answer_with_a_secret() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            body = {"name": "ci", "grants": [{"role": "viewer"}]}
            refused = await client.send("POST", TOKENS, body, headers=[("idempotency-key", "k1")])
            assert (refused.status, refused.problem) == (400, "malformed")
            assert (await client.get(TOKENS)).json["items"] == []

    asyncio.run(test())


def test_nobody_grants_more_than_he_has() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            client.access.callers["ann"] = Caller("ann", (Grant(Role.ADMIN),), token="ann")
            for grant in ({"role": "viewer", "namespace": "*"}, {"role": "viewer", "payloads": True}):
                answer = await client.send("POST", TOKENS, {"name": "x", "grants": [grant]}, token="ann")
                assert answer.status == 403
            assert (await client.send("POST", TOKENS, {"name": "x", "grants": []}, token="ann")).status == 422

    asyncio.run(test())


def test_the_audit_and_marks_have_pages() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            for number in range(3):
                assert (await client.send("POST", f"{N}/marks", {"label": f"v{number}"})).status == 201
            for path, key in ((f"{N}/marks", "label"), (f"{N}/audit", "object")):
                first = (await client.get(f"{path}?limit=2")).json
                if key == "object":
                    assert first["searched_to"] == first["items"][-1]["at"]
                second = (await client.get(f"{path}?limit=2&cursor={first['next']}")).json
                assert [one[key] for one in (*first["items"], *second["items"])] == ["v2", "v1", "v0"]
                assert (await client.get(f"{path}?cursor=x")).status == 422

    asyncio.run(test())


def test_callers_see_their_own_rights() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            me = (await client.get("/api/v1/whoami", token="viewer")).json
            assert me["name"] == "viewer"
            assert [grant["role"] for grant in me["grants"]] == ["viewer"]
            roles = (await client.get("/api/v1/roles", token="viewer")).json["items"]
            assert [one["role"] for one in roles] == ["viewer", "operator", "developer", "admin"]
            assert (await client.get("/api/v1/namespaces", token="viewer")).status == 200

    asyncio.run(test())

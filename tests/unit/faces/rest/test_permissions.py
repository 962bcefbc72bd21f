"""The matrix of permissions: each operation of OpenAPI, each role, in the caller's namespace and in another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.audit import REFUSALS_PER_MINUTE, UNKNOWN_PER_MINUTE
from mainspring.access.caller import Caller, Grant, Permission, Role
from mainspring.api.access import ListActs
from mainspring.api.nodes import ShowStatus as Status
from mainspring.api.submitting import Submit
from mainspring.faces.rest.routes import document

from .a_server import ALL_ROUTES, whole_node

if TYPE_CHECKING:
    from .a_client import Client

OWN, OTHER = "default", "other"
NEEDED = {
    Permission.SIGNED_IN: Role.VIEWER,
    Permission.READ: Role.VIEWER,
    Permission.OPERATE: Role.OPERATOR,
    Permission.DEVELOP: Role.DEVELOPER,
    Permission.ADMIN: Role.ADMIN,
}
"""The weakest role with a permission; `Permission.PAYLOADS` is granted apart."""


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    described = document(ALL_ROUTES, version="1.0")
    return [
        (method.upper(), path, one) for path, methods in described["paths"].items() for method, one in methods.items()
    ]


def is_allowed(operation: dict[str, Any], path: str, namespace: str, caller: Caller) -> bool:
    """Return what the document promises: whether the caller may use an operation in a namespace."""
    permission = Permission(operation["x-permission"])
    if permission in {Permission.SIGNED_IN, Permission.BY_TOKEN}:
        return True
    (grant,) = caller.grants
    if operation.get("x-in-all-namespaces"):
        return False
    if "{namespace}" in path and namespace != OWN:
        return False
    if permission is Permission.PAYLOADS:
        return grant.payloads
    return grant.role >= NEEDED[permission]


async def status_of(client: Client, method: str, path: str, operation: dict[str, Any], token: str | None) -> int:
    body = None
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        body = content.get("application/json", {}).get("example", {})
    headers = [("if-match", "*"), ("prefer", "wait=0")]
    answer = await asyncio.wait_for(client.send(method, path, body, token=token, headers=headers), 20)
    return answer.status


def test_each_operation_is_for_the_callers_that_its_permission_allows() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            wrong = []
            tokens = {}
            for role in Role:
                for payloads in (False, True):
                    name = f"{role.name}{'+payloads' * payloads}"
                    client.access.callers[name] = Caller(name, (Grant(role, OWN, payloads=payloads),), token=name)
                    tokens[name] = client.access.callers[name]
            for method, path, operation in operations():
                for namespace in (OWN, OTHER):
                    target = path.replace("{namespace}", namespace).replace("{", "").replace("}", "")
                    for name, caller in tokens.items():
                        expected = is_allowed(operation, path, namespace, caller)
                        status = await status_of(client, method, target, operation, name)
                        if (status != 403) != expected or status in (401, 500):
                            wrong.append((method, path, namespace, name, status))
                    # A completion token is a credential of its own: without one there is nothing.
                    unknown = 404 if operation["x-permission"] == Permission.BY_TOKEN.value else 401
                    assert await status_of(client, method, target, operation, None) == unknown
            assert wrong == []

    asyncio.run(test())


def test_a_grant_for_some_functions_opens_no_other_ones() -> None:
    """Requests that name a function in the path are refused for functions that the caller's patterns exclude."""

    async def test() -> None:
        async with whole_node() as (client, _):
            grant = Grant(Role.ADMIN, OWN, functions=("pay*",), payloads=True)
            client.access.callers["pay"] = Caller("pay", (grant,), token="pay")
            wrong = []
            for method, path, operation in operations():
                if "/functions/{function}" not in path:
                    continue
                target = path.replace("{namespace}", OWN).replace("{function}", "other")
                status = await status_of(client, method, target, operation, "pay")
                if status not in (403, 404):
                    wrong.append((method, path, status))
            assert wrong == []

    asyncio.run(test())


def test_a_grant_for_some_functions_hides_the_jobs_of_others() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            grant = Grant(Role.ADMIN, OWN, functions=("pay*",), payloads=True)
            client.access.callers["pay"] = Caller("pay", (grant,), token="pay")
            foreign = (await built.api.call(Submit(b"other", b"1"))).handle
            own = (await built.api.call(Submit(b"payroll", b"1"))).handle
            wrong = []
            for method, path, operation in operations():
                if "/jobs/{handle}" not in path or path.endswith("/stream"):
                    continue
                target = path.replace("{namespace}", OWN)
                status = await status_of(client, method, target.replace("{handle}", foreign), operation, "pay")
                allowed = await status_of(client, method, target.replace("{handle}", own), operation, "pay")
                if status not in (403, 404) or allowed == 403:
                    wrong.append((method, path, status, allowed))
            assert wrong == []
            listed = await client.get(f"/api/v1/namespaces/{OWN}/jobs", token="pay")
            assert {job["function"] for job in listed.json["items"]} == {"payroll"}

    asyncio.run(test())


def test_objects_of_other_namespaces_do_not_exist() -> None:
    """Each operation on one object gets the object of another namespace, and answers as if there were none."""

    async def test() -> None:
        async with whole_node() as (client, _):
            team = f"/api/v1/namespaces/{OTHER}"
            job = await client.send("POST", f"{team}/jobs", {"function": "pay", "args": [1]})
            assert job.status == 201, job.body
            schedule = {"name": "nightly", "function": "pay", "cron": "0 3 * * *"}
            assert (await client.send("POST", f"{team}/schedules", schedule)).status == 201
            operation = {"action": "cancel", "filter": {"function": "none"}, "reason": "test"}
            begun = await client.send("POST", f"{team}/operations", operation)
            assert begun.status == 202, begun.body
            names = {
                "{handle}": job.json["handle"],
                "{name}": "nightly",
                "{id}": begun.json["id"],
                "{schedule}": "nightly",
            }
            grant = Grant(Role.ADMIN, OWN, payloads=True)
            client.access.callers["own"] = Caller("own", (grant,), token="own")
            checked, wrong = 0, []
            for method, path, described in operations():
                target = path
                for name, value in names.items():
                    target = target.replace(name, value)
                if target == path or "{namespace}" not in path or method == "PUT":
                    continue
                status = await status_of(client, method, target.replace("{namespace}", OWN), described, "own")
                checked += 1
                if status not in (404, 422):
                    wrong.append((method, path, status))
            assert wrong == []
            assert checked > 25
            assert (await client.get(f"{team}/jobs/{job.json['handle']}")).json["state"] == "pending"
            assert (await client.get(f"{team}/schedules/nightly")).status == 200
            for kind in ("jobs", "schedules", "operations"):
                assert (await client.get(f"/api/v1/namespaces/{OWN}/{kind}")).json["items"] == []

    asyncio.run(test())


@pytest.mark.parametrize("namespace", [OWN, OTHER])
def test_names_that_look_like_keys_are_refused(namespace: str) -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            base = f"/api/v1/namespaces/{namespace}"
            plain = {"name": "a", "function": "f", "cron": "0 3 * * *"}
            foreign = "/api/v1/namespaces/other/schedules"  # a parent in another namespace, which has to stay there
            assert (await client.send("POST", foreign, {**plain, "name": "b"})).status == 201
            for wrong in (
                {"name": "other\x1fa"},
                {"function": "other\x1ff"},
                {"cron": None, "parents": ["other\x1fb"]},
            ):
                schedule = {key: value for key, value in {**plain, **wrong}.items() if value is not None}
                answer = await client.send("POST", f"{base}/schedules", schedule)
                assert answer.status == 422, (wrong, answer.body)
            assert (await client.send("POST", f"{base}/jobs", {"function": "other\x1ff"})).status == 422
            assert (await client.get(f"{base}/schedules/other%1Fa")).status in (404, 422)
            assert (await client.send("POST", f"{base}/schedules", plain)).status == 201

    asyncio.run(test())


def test_refusals_are_in_the_audit() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            jobs = f"/api/v1/namespaces/{OWN}/jobs"
            assert (await client.send("POST", f"{jobs}/H:n:1/cancel", {}, token="viewer")).status == 403
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            (act,) = (await built.api.call(ListActs(what="jobs.cancel"))).items
            assert (act.who, act.object, act.namespace, act.address) == ("viewer", "H:n:1", OWN, "127.0.0.1")
            assert act.refused is not None
            assert "operate" in act.refused
            assert act.request

    asyncio.run(test())


def test_a_refused_submit_is_in_the_audit_with_its_function() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            client.access.callers["pay"] = Caller("pay", (Grant(Role.DEVELOPER, OWN, ("pay*",)),), token="pay")
            path = f"/api/v1/namespaces/{OWN}/jobs"
            assert (await client.send("POST", path, {"function": "mail"}, token="pay")).status == 403
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            (act,) = (await built.api.call(ListActs(who="pay"))).items
            assert (act.what, act.object) == ("jobs.submit", "mail")

    asyncio.run(test())


def test_refused_streams_are_in_the_audit() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            client.access.callers["pay"] = Caller("pay", (Grant(Role.VIEWER, OWN, ("pay*",)),), token="pay")
            handle = (await built.api.call(Submit(b"mail", b"1"))).handle
            path = f"/api/v1/namespaces/{OWN}/jobs/{handle}/stream"
            assert (await client.get(path, token="pay")).status == 403
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            (act,) = (await built.api.call(ListActs(who="pay"))).items
            assert (act.object, act.namespace) == (handle, OWN)

    asyncio.run(test())


def test_an_operation_on_handles_counts_those_of_its_namespace() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            handles = [(await built.api.call(Submit(b"f", b"1", namespace=one))).handle for one in (OWN, OTHER)]
            for namespace, handle in zip((OWN, OTHER), handles, strict=True):
                body = {"action": "cancel", "handles": handles, "dry_run": True}
                answer = await client.send("POST", f"/api/v1/namespaces/{namespace}/operations", body)
                assert (answer.json["matched"], answer.json["sample"][0]["handle"]) == (1, handle)

    asyncio.run(test())


def test_wrong_tokens_are_in_the_audit_and_do_not_displace_other_refusals() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            jobs = f"/api/v1/namespaces/{OWN}/jobs"
            for _ in range(REFUSALS_PER_MINUTE + 1):
                assert (await client.get(jobs, token="ms_secret")).status == 401
            assert (await client.get(jobs, token=None)).status == 401
            assert (await client.send("POST", f"{jobs}/H:n:1/cancel", {}, token="viewer")).status == 403
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            acts = (await built.api.call(ListActs(everywhere=True))).items
            signs = [act for act in acts if act.what == "sign_in"]
            assert len(signs) == UNKNOWN_PER_MINUTE
            assert {(act.who, act.address, act.namespace) for act in signs} == {("", "127.0.0.1", None)}
            assert "secret" not in str(acts)
            assert [act.who for act in acts if act.what == "jobs.cancel"] == ["viewer"]

    asyncio.run(test())


def test_a_wrong_token_for_a_session_is_in_the_audit() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            form = [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")]
            for field in ("token=ms_secret", "link=msl_secret", "token=viewer"):
                await client.send("POST", "/login", field.encode(), token=None, headers=form)
            committed = asyncio.Event()
            built.node.commits.when_idle(committed.set)
            await committed.wait()
            signs = (await built.api.call(ListActs(everywhere=True, what="sign_in"))).items
            assert [(act.who, act.address) for act in signs] == [("", "127.0.0.1")] * 2
            assert "secret" not in str(signs)

    asyncio.run(test())


def test_the_status_shows_the_functions_of_one_namespace() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            await built.api.call(Submit(b"pay", b"1"))
            await built.api.call(Submit(b"mail", b"1"))
            await built.api.call(Submit(b"cart", b"1", namespace=OTHER))
            client.access.callers["pay"] = Caller("pay", (Grant(Role.VIEWER, OWN, ("pay*",)),), token="pay")
            for token, functions in (("admin", ["mail", "pay"]), ("pay", ["pay"])):
                shown = (await client.get("/api/v1/status", token=token)).json
                assert sorted(one["function"] for one in shown["functions"]) == functions
            (team,) = (await built.api.call(Status(namespace=OTHER))).functions
            assert team.function == "cart"

    asyncio.run(test())


@pytest.mark.parametrize(
    ("grant", "status"),
    [(Grant(Role.VIEWER, OWN), 403), (Grant(Role.VIEWER, "*", ("pay*",)), 403), (Grant(Role.VIEWER, "*"), 200)],
)
def test_pages_about_all_namespaces_are_for_callers_with_all_of_them(grant: Grant, status: int) -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            client.access.callers["t"] = Caller("t", (grant,), token="t")
            scope = {
                "type": "http",
                "method": "GET",
                "scheme": "http",
                "path": "/metrics",
                "query_string": b"",
                "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer t")],
            }
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            async def page(_scope: Any, _receive: Any, answer: Any) -> None:
                await answer({"type": "http.response.start", "status": 200})

            async def receive() -> Any:
                raise AssertionError

            await client.app.guard(scope, receive, send, page)
            assert sent.pop(0)["status"] == status
            scope["headers"] = [(b"host", b"evil.example"), (b"authorization", b"Bearer t")]
            sent.clear()
            await client.app.guard(scope, receive, send, page)
            assert sent[0]["status"] == 421

    asyncio.run(test())


def without_registered(shown: Any) -> Any:
    """Return an answer without the fact that a node has only some seconds after its start: which functions have workers."""
    if isinstance(shown, dict):
        return {key: without_registered(value) for key, value in shown.items() if key != "registered"}
    return [without_registered(one) for one in shown] if isinstance(shown, list) else shown


def test_jobs_elsewhere_change_no_answer() -> None:
    """Jobs in another namespace change the answer of no GET for callers of one namespace."""

    async def test() -> None:
        async with whole_node() as (client, built):
            grant = Grant(Role.VIEWER, OWN, payloads=True)
            client.access.callers["own"] = Caller("own", (grant,), token="own")
            handle = (await built.api.call(Submit(b"pay", b"1"))).handle
            (node,) = (await client.get("/api/v1/nodes")).json["items"]
            names = {"{namespace}": OWN, "{handle}": handle, "{function}": "pay", "{node}": node["name"]}

            async def answers() -> dict[str, Any]:
                found: dict[str, Any] = {}
                for method, path, operation in operations():
                    target = path
                    for name, value in names.items():
                        target = target.replace(name, value)
                    if method == "GET" and "{" not in target and not path.endswith(("/stream", "/timeline", "/live")):
                        answer = await client.get(target, token="own")
                        if answer.status == 200 and not operation.get("x-in-all-namespaces"):
                            shown = answer.json if "json" in answer.headers["content-type"] else answer.body
                            found[path] = without_registered(shown)
                del found["/api/v1/status"]["uptime"]
                status = found["/api/v1/namespaces/{namespace}/status"]
                del status["oldest_waiting"]["seconds"], status["recent"]["since"], status["recent"]["seconds"]
                del status["failing"]["since"]
                del status["troubled"][0]["oldest_seconds"]
                return found

            before = await answers()
            assert len(before) > 15
            await built.api.call(Submit(b"mail", b"1", namespace=OTHER))
            await built.api.call(Submit(b"pay", b"1", namespace=OTHER))
            after = await answers()
            assert {path: answer for path, answer in after.items() if answer != before[path]} == {}

    asyncio.run(test())


PAYLOADS = (
    "/arguments",
    "/logs",
    "/logs/stream",
    "/logs/text",
    "/payload",
    "/result",
    "/streams",
    "/streams/{name}",
    "/streams/{name}/stream",
    "/values",
    "/values/{name}",
)
"""The ends of the paths of users' data."""
HARMLESS = {("POST", "/schedules/preview")}
"""Requests that change nothing although their method could."""
MAKING = {
    ("POST", "/jobs"),
    ("POST", "/jobs/batch"),
    ("POST", "/jobs/{handle}/clone"),
    ("POST", "/schedules"),
    ("PUT", "/schedules/{name}"),
    ("PATCH", "/schedules/{name}"),
    ("DELETE", "/schedules/{name}"),
    ("PUT", "/functions/{function}/limits"),
    ("DELETE", "/functions/{function}/limits"),
    ("POST", "/workflows"),
    ("POST", "/schedules/{name}/adopt"),
    ("DELETE", "/listeners/{name}"),
    ("PUT", "/resources/{name}"),
    ("PUT", "/events/cursors/{name}"),
    ("POST", "/events/cursors/{name}/move"),
    ("DELETE", "/events/cursors/{name}"),
}
"""Requests of developers."""
OF_ADMINISTRATORS = {
    ("POST", "/webhooks"),
    ("PATCH", "/webhooks/{name}"),
    ("DELETE", "/webhooks/{name}"),
    ("POST", "/webhooks/{name}/rotate"),
}
"""Requests of administrators of a namespace: events leave the network of the node by them."""


def test_no_permission_is_weaker_than_the_deeds_of_its_operation() -> None:
    """The matrix compares the routes with their own permissions; this compares the permissions with the roles' meaning."""
    wrong = []
    for method, path, one in operations():
        permission, place = Permission(one["x-permission"]), path.partition("/namespaces/{namespace}")[2]
        if path.endswith(PAYLOADS):
            allowed = {Permission.PAYLOADS}
        elif path == "/api/v1/completions/{token}":
            allowed = {Permission.BY_TOKEN}
        elif (
            "/tokens" in path
            or "/audit" in path
            or (not place and method != "GET")
            or (method, place) in OF_ADMINISTRATORS
        ):
            allowed = {Permission.ADMIN}
        elif (method, place) in MAKING:
            allowed = {Permission.DEVELOP}
        elif method != "GET" and (method, place) not in HARMLESS:
            allowed = {Permission.OPERATE}
        else:
            allowed = {Permission.READ, Permission.SIGNED_IN}
        if permission not in allowed:
            wrong.append((method, path, permission))
    assert wrong == []


def test_every_operation_declares_a_permission() -> None:
    assert [
        path for _, path, one in operations() if one["x-permission"] not in {item.value for item in Permission}
    ] == []


def test_no_operation_of_a_namespace_is_for_everybody_who_is_signed_in() -> None:
    found = [path for _, path, one in operations() if one["x-permission"] == "signed_in" and "{namespace}" in path]
    assert found == []

"""Completion tokens over HTTP: the token is the only credential, and stands nowhere else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.asking_worker import AskingWorker, found, open_completion, submit, until_state

from mainspring.access.audit import ListActs
from mainspring.callbacks import awaited
from mainspring.jobs.completion_rules import MOST_LATE, new_token
from mainspring.jobs.model import State
from mainspring.private_data import hide_secrets

from .a_server import whole_node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.server.build import Built

    from .a_client import Answer, Client


def run(test: Callable[[Client, Built], Awaitable[None]], store: str = "memory://") -> None:
    async def in_time() -> None:
        async with asyncio.timeout(30), whole_node(store) as (client, built):
            await test(client, built)

    asyncio.run(in_time())


async def post(client: Client, token: str, body: Any) -> Answer:
    return await client.send("POST", f"/api/v1/completions/{token}", body, token=None)


async def acts(built: Built) -> list[Any]:
    return [one.act for one in (await awaited(built.node.service.reads.read(ListActs()))).items]


def test_the_token_is_enough() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        answer = await post(client, token, {"result": {"approved": True}})
        assert answer.status == 200
        assert answer.json == {
            "number": 1,
            "state": "completed",
            "expires_at": answer.json["expires_at"],
            "repeated": False,
        }
        job = await found(built.node, job_id)
        assert (job.state, job.result) == (State.SUCCEEDED, b'{"approved":true}')
        repeated = await post(client, token, {"result": {"approved": True}})
        assert (repeated.status, repeated.json["repeated"]) == (200, True)

    run(test)


def test_an_answer_counts_once_and_others_say_why_they_do_not() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        await post(client, token, {"result": 1})
        other = await post(client, token, {"result": 2})
        assert (other.status, other.problem) == (409, "conflict")
        assert "was completed at 20" in other.json["detail"]
        assert (await open_completion(built.node, job_id)).late == 1
        shown = await client.send(
            "GET", f"/api/v1/namespaces/default/jobs/{built.node.service.handles.of(job_id).decode()}"
        )
        assert shown.json["completion"]["state"] == "completed"
        assert shown.json["completion"]["late_answers"] == 1
        refused = [act for act in await acts(built) if act.refused]
        assert [(act.what, act.who, act.refused) for act in refused] == [
            ("completions.answer", "completion token", "the answer came too late: answered")
        ]

    run(test)


def test_the_holder_of_a_token_does_not_fill_the_audit_with_late_answers() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        await post(client, token, {"result": 0})
        for number in range(1, MOST_LATE + 5):
            assert (await post(client, token, {"result": number})).status == 409
        assert (await open_completion(built.node, job_id)).late == MOST_LATE + 4
        assert len([act for act in await acts(built) if act.refused]) == MOST_LATE
        path = f"/api/v1/namespaces/default/jobs/{built.node.service.handles.of(job_id).decode()}/complete"
        assert (await client.send("POST", path, {"result": 1}, token="operator")).status == 409
        assert len([act for act in await acts(built) if act.refused and act.who == "operator"]) == 1

    run(test)


def test_a_late_answer_is_gone_with_its_reason() -> None:
    async def test(client: Client, built: Built) -> None:
        worker = AskingWorker(built.node)
        cancelled = await submit(built.node)
        _, token = await worker.awaiting()
        await awaited(built.node.service.clients.cancel(cancelled, "enough"))
        late = await post(client, token, {"result": 1})
        assert (late.status, late.problem) == (410, "completion-gone")
        assert "its job is cancelled, since 20" in late.json["detail"]
        await submit(built.node)
        held, token = await worker.awaiting(expires=0.1)
        second = await worker.job()
        assert second.job.id == held.job.id
        late = await post(client, token, {"result": 1})
        assert (late.status, late.problem) == (410, "completion-gone")
        assert "the token expired at 20" in late.json["detail"]

    run(test)


def test_a_heartbeat_keeps_the_attempt_and_its_end_fails_it() -> None:
    async def test(client: Client, built: Built) -> None:
        worker = AskingWorker(built.node)
        job_id = await submit(built.node)
        _, token = await worker.awaiting(heartbeat=0.9)
        for _ in range(4):
            await asyncio.sleep(0.3)
            assert (await post(client, token, {"heartbeat": True})).json["state"] == "open"
        assert (await post(client, token, {"progress": {"done": 1, "total": 4, "text": "reads"}})).status == 200
        handle = built.node.service.handles.of(job_id).decode()
        shown = await client.send("GET", f"/api/v1/namespaces/default/jobs/{handle}")
        assert (shown.json["done"], shown.json["total"], shown.json["text"]) == (1, 4, "reads")
        assert shown.json["awaits_until"] == shown.json["completion"]["expires_at"]
        rows = await client.send("GET", "/api/v1/namespaces/default/jobs")
        assert [row["awaits_until"] for row in rows.json["items"]] == [shown.json["awaits_until"]]
        await worker.job()
        assert b"CompletionSilent" in (await found(built.node, job_id)).error
        late = await post(client, token, {"heartbeat": True})
        assert (late.status, late.problem) == (410, "completion-gone")
        assert "no sign of life came by 20" in late.json["detail"]

    run(test)


def test_a_failure_is_retried_unless_the_answer_forbids_it() -> None:
    async def test(client: Client, built: Built) -> None:
        worker = AskingWorker(built.node)
        for retry in (True, False):
            job_id = await submit(built.node)
            _, token = await worker.awaiting()
            body = {"failure": {"message": "unreadable", "type": "Torn", "retry": retry}}
            assert (await post(client, token, body)).status == 200
            job = await found(built.node, job_id)
            assert (job.state == State.FAILED) != retry
            assert b"Torn" in job.error
            if retry:
                held, token = await worker.awaiting()
                assert held.job.id == job_id
                await post(client, token, {"result": 1})
                await until_state(built.node, job_id, State.SUCCEEDED)

    run(test)


def test_an_unknown_token_opens_nothing_and_is_recorded_without_its_text() -> None:
    async def test(client: Client, built: Built) -> None:
        for token in (new_token(), "msc_" + "A" * 48, "x", "admin"):
            for body in ({"result": 1}, b"no json" * 1000):
                answer = await post(client, token, body)
                assert (answer.status, answer.problem) == (404, "completion-not-found")
                assert token == "x" or token not in answer.body.decode()
        await submit(built.node)  # refusals join the next commit
        assert {(act.what, act.refused) for act in await acts(built)} == {
            ("sign_in", "the completion token is unknown")
        }

    run(test)


def test_the_token_opens_no_other_path() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        handle = built.node.service.handles.of(job_id).decode()
        for method, path in (
            ("GET", f"/api/v1/completions/{token}"),
            ("GET", f"/api/v1/namespaces/default/jobs/{handle}"),
            ("POST", f"/api/v1/namespaces/default/jobs/{handle}/complete"),
            ("POST", f"/api/v1/completions/{token}/x"),
        ):
            for credential in (None, token):
                assert (await client.send(method, path, {}, token=credential)).status in {401, 404}
        assert (await found(built.node, job_id)).state == State.SCHEDULED

    run(test)


def test_the_token_stands_in_no_act_no_row_and_no_page_of_the_job() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        await post(client, token, {"result": 1})
        await post(client, token, {"result": 2})
        handle = built.node.service.handles.of(job_id).decode()
        texts = [str(await acts(built)), str(await open_completion(built.node, job_id))]
        for path in (f"jobs/{handle}", f"jobs/{handle}/attempts", "jobs", "audit", "events"):
            answer = await client.send("GET", f"/api/v1/namespaces/default/{path}")
            texts += [answer.body.decode()]
        assert not [text for text in texts if token in text]
        assert "token 1" in texts[0]
        assert hide_secrets(f"POST /api/v1/completions/{token}") == "POST /api/v1/completions/msc_***"

    run(test)


def test_the_body_has_one_answer_of_limited_size() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        _, token = await AskingWorker(built.node).awaiting()
        bodies: tuple[dict[str, Any], ...] = (
            {},
            {"result": 1, "heartbeat": True},
            {"progress": {"done": -1}},
            {"failure": {}},
            {"other": 1},
        )
        for body in bodies:
            assert (await post(client, token, body)).status == 422
        assert (await post(client, token, b'"' + b"a" * (9 << 20) + b'"')).status == 413
        keyed = await client.send(
            "POST", f"/api/v1/completions/{token}", {"result": 1}, token=None, headers=[("idempotency-key", "k")]
        )
        assert keyed.status in {400, 422}
        assert (await found(built.node, job_id)).state == State.SCHEDULED

    run(test)


def test_an_operator_completes_a_job_by_hand() -> None:
    async def test(client: Client, built: Built) -> None:
        job_id = await submit(built.node)
        path = f"/api/v1/namespaces/default/jobs/{built.node.service.handles.of(job_id).decode()}/complete"
        assert (await client.send("POST", path, {"result": 1}, token="operator")).status == 409
        await AskingWorker(built.node).awaiting()
        assert (await client.send("POST", path, {"result": 1}, token="viewer")).status == 403
        assert (await client.send("POST", path, {}, token="operator")).status == 422
        answer = await client.send("POST", path, {"result": 1, "reason": "by phone"}, token="operator")
        assert (answer.status, answer.json["state"]) == (200, "completed")
        assert (await found(built.node, job_id)).state == State.SUCCEEDED
        (act,) = [act for act in await acts(built) if act.what == "jobs.complete" and not act.refused]
        assert (act.who, act.reason) == ("operator", "by phone")

    run(test)

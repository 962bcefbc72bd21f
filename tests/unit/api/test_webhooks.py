"""Calls about webhooks, without a face, with receivers that the test plays."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Caller, Grant, Role
from mainspring.api.handlers.webhooks import TEST, WebhookCalls, payloads, short_url
from mainspring.api.jobs import CancelJob, ShowJob
from mainspring.api.request import ApiError, Code
from mainspring.api.webhooks import (
    LONGEST_OVERLAP,
    MOST_WEBHOOKS,
    AddWebhook,
    EditWebhook,
    ListWebhooks,
    PauseWebhook,
    RedeliverWebhook,
    RemoveWebhook,
    ResumeWebhook,
    RotateWebhook,
    ShowWebhook,
    TryWebhook,
)
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice
from mainspring.event_log.service import EventLog
from mainspring.subscriptions.service import Deliverer
from mainspring.subscriptions.webhooks import WebhookWorkers
from mainspring.webhooks.answer import Answer, Cause, SendError

from .a_node import Store, opened, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mainspring.access.caller import Act
    from mainspring.api.request import Request
    from mainspring.api.webhooks import WebhookInfo
    from mainspring.webhooks.targets import Target as Receiver

    from .a_node import Node

VIEWER = Caller("viewer", (Grant(Role.VIEWER),))
OPERATOR = Caller("operator", (Grant(Role.OPERATOR),))
DEVELOPER = Caller("developer", (Grant(Role.DEVELOPER, payloads=True),))
ADMIN = Caller("admin", (Grant(Role.ADMIN, payloads=True),))
OF_TEAM = Caller("of team", (Grant(Role.ADMIN, "team"),))
RESTRICTED = Caller("restricted", (Grant(Role.ADMIN, functions=("pay*", "webhook:*")),))
ROOT = Caller("root", (Grant(Role.ADMIN, EVERY_NAMESPACE),))
URL = "https://crm.example/events/a-secret-path?key=also"


class Receivers:
    """All hosts."""

    def __init__(self) -> None:
        self.answers: list[Answer | SendError] = []
        self.got: list[tuple[Receiver, Mapping[str, str], dict[str, Any]]] = []
        self.refused: set[str] = set()
        self.slow: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def check(self, target: Receiver) -> None:
        if target.host in self.refused:
            raise SendError(Cause.REFUSED, "the host has an address to which nothing may be sent: it is private")
        if target.host == "unknown.example":
            raise SendError(Cause.HOST, "the host unknown.example has no address, or its name server fails")

    async def send(self, target: Receiver, headers: Mapping[str, str], body: bytes) -> Answer:
        self.got.append((target, headers, json.loads(body)))
        self.asked.set()
        if self.slow is not None:
            await self.slow.wait()
        answer = self.answers.pop(0) if self.answers else Answer(204, 0.1, "", "thanks")
        if isinstance(answer, SendError):
            raise answer
        return answer

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers, _ in self.got]


class Hooks:
    def __init__(self, node: Node, receivers: Receivers, deliverer: Deliverer, workers: WebhookWorkers) -> None:
        self.node, self.receivers, self.deliverer, self.workers = node, receivers, deliverer, workers
        self.acts: list[Act] = []

    async def call(self, request: Request[Any], caller: Caller = LOCAL) -> Any:
        answer = await self.node.api.call(request, caller=caller)
        self.workers.tick()
        return answer

    async def code(self, request: Request[Any], caller: Caller = LOCAL) -> Code:
        with pytest.raises(ApiError, match=r"\w") as caught:
            await self.call(request, caller)
        return caught.value.problem.code

    async def cancels(self, function: bytes = b"f") -> str:
        handle = await self.node.submit(function)
        await self.node.api.call(CancelJob(handle))
        await self.settle()
        return handle

    async def settle(self) -> None:
        for _ in range(20):
            await self.node.committed()
            await asyncio.sleep(0)

    async def deliveries(self, name: str = "crm") -> list[str]:
        """Return the handles of the deliveries."""
        function = b"webhook:%b" % name.encode()
        jobs = self.node.store.tables.jobs
        return [self.node.service.handles.of(one.id).decode() for one in jobs.values() if one.function == function]


@asynccontextmanager
async def hooked(*, sends: bool = True) -> AsyncIterator[Hooks]:
    store = Store([MemoryBulkSlice(), MemoryScheduleSlice(), MemorySubscriptionSlice()])
    async with opened(store) as node:
        log = EventLog(
            node.commits,
            node.reads,
            node.clock,
            store.interests,
            lambda function: function(),
            first=None,
            retention=3600.0,
            most=10_000,
        )
        deliverer = Deliverer(
            node.commits,
            node.reads,
            node.clock,
            log,
            payloads(node.service.handles, "https://jobs.example"),
            first=None,
            paused=lambda: False,
        )
        log.subscribe_own(deliverer.look)
        receivers = Receivers()
        workers = WebhookWorkers(deliverer, node.service, node.clock, receivers, sends=sends, draw=lambda: 0.5)
        hooks = Hooks(node, receivers, deliverer, workers)

        async def record(act: Act) -> None:
            hooks.acts.append(act)

        node.api.add(WebhookCalls(deliverer, workers, node.service, node.reads, record).handlers)
        yield hooks
        await workers.close()


def add(name: str = "crm", **values: Any) -> AddWebhook:
    return AddWebhook(name=name, **{"url": URL, "types": ["job.cancelled"], **values})


def test_an_event_is_sent_and_the_webhook_shows_how_far_it_is() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            added = await hooks.call(add(headers={"X-Team": "a value"}, tags=[]))
            assert added.secret.startswith("whsec_")
            handle = await hooks.cancels()
            ((target, headers, body),) = hooks.receivers.got
            assert (target.host, headers["x-team"]) == ("crm.example", "a value")
            assert body["type"] == "job.cancelled"
            assert body["data"] == {
                "by": "local",
                "error": "cancelled on request",
                "error_type": "Cancelled",
                "namespace": "default",
                "function": "f",
                "job": handle,
            }
            shown: WebhookInfo = await hooks.call(ShowWebhook("crm"))
            assert (shown.state, shown.delivered, shown.behind, shown.failures) == ("active", "1", 0, 0)
            assert (shown.types, shown.functions, shown.everywhere) == (["job.cancelled"], [], False)
            assert (shown.secrets, shown.overlap_ends_at, shown.headers) == (1, None, ["X-Team"])

    run(test())


def test_secrets_are_shown_once() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            added = await hooks.call(add(headers={"Authorization": "Bearer hidden-value"}), ADMIN)
            rotated = await hooks.call(RotateWebhook("crm"), ADMIN)
            assert added.secret != rotated.secret
            await hooks.call(EditWebhook(name="crm", types=["job.failed"]), ADMIN)
            texts = [
                str(await hooks.call(one, caller))
                for one in (ListWebhooks(), ShowWebhook("crm"))
                for caller in (VIEWER, ADMIN)
            ]
            acts = [str(one) for one in hooks.node.store.tables.acts]
            assert len(acts) == 3
            for text in (*texts, *acts):
                assert "hidden-value" not in text
                assert added.secret not in text
                assert rotated.secret not in text
                assert "whsec_" not in text
            assert [("a-secret-path" in text) for text in texts] == [False, False, False, True]
            assert not any("a-secret-path" in text for text in acts)

    run(test())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example", "https://a.example"),
        ("https://a.example/", "https://a.example/…"),
        ("http://a.example:8080/x/y?z", "http://a.example:8080/…"),
        ("https://a.example?key=1", "https://a.example/…"),
    ],
)
def test_a_short_url_has_neither_path_nor_query(url: str, shown: str) -> None:
    assert short_url(url) == shown


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"url": "ftp://crm.example"}, None),
        ({"url": "https://user@crm.example"}, None),
        ({"url": "https://private.example"}, None),
        ({"types": ["no.such"]}, None),
        ({"types": []}, None),
        ({"functions": [""]}, None),
        ({"headers": {"Host": "other"}}, None),
        ({"format": "template"}, None),
        ({"template": "{{ undefined_name }}"}, None),
        ({"format": "standard", "template": "slack"}, None),
    ],
)
def test_wrong_webhooks_are_refused(values: dict[str, Any], field: str | None) -> None:
    async def test() -> None:
        async with hooked() as hooks:
            hooks.receivers.refused.add("private.example")
            with pytest.raises(ApiError, match=r"\w") as caught:
                await hooks.call(add(**values))
            assert (caught.value.problem.code, caught.value.problem.field) == (Code.INVALID, field)
            assert (await hooks.call(ListWebhooks())).items == []

    run(test())


def test_a_host_without_an_address_may_get_one() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add(url="https://unknown.example"))

    run(test())


def test_an_edit_looks_at_the_new_url_and_at_the_revision() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            first = await hooks.call(add())
            hooks.receivers.refused.add("private.example")
            assert await hooks.code(EditWebhook(name="crm", url="https://private.example")) is Code.INVALID
            edited = await hooks.call(EditWebhook(name="crm", template="slack", revision=first.revision))
            assert (edited.format, edited.template, edited.url) == ("template", "slack", URL)
            assert await hooks.code(EditWebhook(name="crm", tags=["eu"], revision=first.revision)) is Code.CHANGED
            edited = await hooks.call(EditWebhook(name="crm", format="cloudevents", headers={}))
            assert (edited.format, edited.template) == ("cloudevents", "")

    run(test())


def test_a_namespace_has_a_limit_of_webhooks() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            for number in range(MOST_WEBHOOKS):
                await hooks.call(add(f"w{number}"))
            assert await hooks.code(add("one-more")) is Code.CONFLICT
            await hooks.call(add("one-more", namespace="team"))
            assert await hooks.code(add("w0")) is Code.CONFLICT

    run(test())


def test_webhooks_of_two_namespaces_do_not_meet() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add(url="https://default.example"))
            await hooks.call(add(url="https://team.example", namespace="team"))
            await hooks.cancels()
            handle = await hooks.node.submit()
            assert [target.host for target, _, _ in hooks.receivers.got] == ["default.example"]
            assert await hooks.code(ShowWebhook("crm"), OF_TEAM) is Code.FORBIDDEN
            assert await hooks.code(RedeliverWebhook("crm", handle=handle, namespace="team")) is Code.JOB_NOT_FOUND
            assert await hooks.code(add("all", everywhere=True), ADMIN) is Code.FORBIDDEN
            await hooks.call(add("all", everywhere=True, namespace="team", url="https://all.example"), ROOT)
            for refused in (
                EditWebhook(name="all", url="https://mine.example", namespace="team"),
                RotateWebhook("all", namespace="team"),
            ):
                assert await hooks.code(refused, OF_TEAM) is Code.FORBIDDEN
            await hooks.cancels()
            assert sorted(target.host for target, _, _ in hooks.receivers.got[1:]) == ["all.example", "default.example"]

    run(test())


@pytest.mark.parametrize(
    ("request_", "weakest"),
    [
        (add(), ADMIN),
        (EditWebhook(name="crm", types=["job.failed"]), ADMIN),
        (RotateWebhook("crm"), ADMIN),
        (RemoveWebhook("crm"), ADMIN),
        (PauseWebhook("crm"), OPERATOR),
        (ResumeWebhook("crm"), OPERATOR),
        (TryWebhook("crm"), OPERATOR),
        (RedeliverWebhook("crm", since="1"), OPERATOR),
        (ShowWebhook("crm"), VIEWER),
    ],
)
def test_each_request_has_its_weakest_role_and_none_is_for_some_functions(
    request_: Request[Any], weakest: Caller
) -> None:
    async def test() -> None:
        async with hooked() as hooks:
            if not isinstance(request_, AddWebhook):
                await hooks.call(add())
            roles = [VIEWER, OPERATOR, DEVELOPER, ADMIN]
            for caller in roles[: roles.index(weakest)]:
                assert await hooks.code(request_, caller) is Code.FORBIDDEN
            if weakest is not VIEWER:
                assert await hooks.code(request_, RESTRICTED) is Code.FORBIDDEN
            await hooks.call(request_, weakest)

    run(test())


def test_a_test_sends_at_once_and_shows_the_answer() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            tested = await hooks.call(TryWebhook("crm"), DEVELOPER)
            assert (tested.succeeded, tested.status, tested.excerpt, tested.error) == (True, 204, "thanks", None)
            assert (await hooks.call(TryWebhook("crm"), OPERATOR)).excerpt is None
            hooks.receivers.answers = [
                Answer(500, 0.1, "", "no"),
                SendError(Cause.TIMEOUT, "no answer within 20 s", 20.0),
            ]
            refused = await hooks.call(TryWebhook("crm"))
            assert (refused.succeeded, refused.status) == (False, 500)
            late = await hooks.call(TryWebhook("crm"))
            assert (late.succeeded, late.status, late.error, late.seconds) == (
                False,
                None,
                "no answer within 20 s",
                20.0,
            )
            assert {body["type"] for *_, body in hooks.receivers.got} == {TEST}
            assert [act.what for act in hooks.acts] == ["webhooks.test"] * 4
            assert await hooks.deliveries() == []

    run(test())


def test_one_test_of_a_webhook_is_under_way_at_a_time() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            hooks.receivers.slow = asyncio.Event()
            first = asyncio.ensure_future(hooks.call(TryWebhook("crm")))
            await hooks.receivers.asked.wait()
            assert await hooks.code(TryWebhook("crm")) is Code.CONFLICT
            hooks.receivers.slow.set()
            assert (await first).succeeded
        async with hooked(sends=False) as hooks:
            await hooks.call(add())
            assert await hooks.code(TryWebhook("crm")) is Code.CONFLICT
            await hooks.cancels()
            assert hooks.receivers.got == []

    run(test())


def test_events_are_delivered_once_more_under_their_ids() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.cancels()  # before the webhook
            await hooks.call(add(functions=["f", "g"]))
            for function in (b"f", b"other", b"g", b"f"):
                await hooks.cancels(function)
            assert hooks.receivers.ids == ["evt_1", "evt_2", "evt_3"]
            outcome = await hooks.call(RedeliverWebhook("crm", since="0", until="2"))
            await hooks.settle()
            assert (outcome.events, outcome.next, outcome.handle) == (2, None, None)
            assert hooks.receivers.ids[3:] == ["evt_1", "evt_2"]
            (*_, last) = await hooks.deliveries()
            assert (await hooks.call(RedeliverWebhook("crm", handle=last))).events == 1
            await hooks.settle()
            assert hooks.receivers.ids[5:] == ["evt_2"]
            now = datetime.fromtimestamp(hooks.node.clock.wall(), UTC)
            future = now.replace(year=now.year + 20).isoformat().replace("+00:00", "Z")
            assert (await hooks.call(RedeliverWebhook("crm", since=future))).events == 0
            past = now.replace(year=now.year - 20).isoformat().replace("+00:00", "Z")
            assert (await hooks.call(RedeliverWebhook("crm", since=past))).events == 3
            await hooks.settle()
            assert hooks.receivers.ids[6:] == ["evt_1", "evt_2", "evt_3"]
            for wrong in (RedeliverWebhook("crm"), RedeliverWebhook("crm", since="soon")):
                assert await hooks.code(wrong) is Code.INVALID

    run(test())


def test_a_delivery_that_was_given_up_runs_again() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            hooks.receivers.answers = [Answer(500, 0.1, "", "")]
            await hooks.cancels()
            (handle,) = await hooks.deliveries()
            assert await hooks.code(RedeliverWebhook("crm", handle=handle)) is Code.CONFLICT, "it is on its way"
            await hooks.call(CancelJob(handle))
            assert (await hooks.call(RedeliverWebhook("crm", handle=handle))).handle == handle
            await hooks.settle()
            assert hooks.receivers.ids == ["evt_1", "evt_1"]
            assert (await hooks.call(ShowJob(handle))).state == "succeeded"

    run(test())


def test_a_rotation_overlaps() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            rotated = await hooks.call(RotateWebhook("crm", overlap=60.0))
            assert (rotated.secrets, rotated.overlap_ends_at is not None) == (2, True)
            await hooks.call(TryWebhook("crm"))
            hooks.node.clock.advance(61)
            await hooks.call(TryWebhook("crm"))
            signatures = [headers["webhook-signature"].split() for _, headers, _ in hooks.receivers.got]
            assert [len(one) for one in signatures] == [2, 1]
            assert (await hooks.call(ShowWebhook("crm"))).secrets == 1
            for overlap in (-1.0, LONGEST_OVERLAP + 1):
                assert await hooks.code(RotateWebhook("crm", overlap=overlap)) is Code.INVALID

    run(test())


def test_a_paused_webhook_gets_nothing_until_it_is_resumed() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            await hooks.call(add("watch", types=["webhook.*"], url="https://watch.example"))
            paused = await hooks.call(PauseWebhook("crm", "moving"))
            assert (paused.state, paused.paused) == ("paused", "moving")
            await hooks.cancels()
            assert (await hooks.call(ShowWebhook("crm"))).behind == 1
            await hooks.call(ResumeWebhook("crm"))
            await hooks.settle()
            found = [(target.host, body["type"], body["data"].get("reason")) for target, _, body in hooks.receivers.got]
            assert sorted(found, key=str) == [
                ("crm.example", "job.cancelled", None),
                ("watch.example", "webhook.paused", "moving"),
                ("watch.example", "webhook.resumed", None),
            ]

    run(test())


def test_a_removed_webhook_leaves_nothing_to_a_later_one_of_its_name() -> None:
    async def test() -> None:
        async with hooked() as hooks:
            await hooks.call(add())
            hooks.receivers.answers = [Answer(500, 0.1, "", "")]
            await hooks.cancels()
            await hooks.call(RemoveWebhook("crm"))
            await hooks.call(add(url="https://other.example"))
            hooks.node.clock.advance(10)
            hooks.node.service.tick()
            await hooks.settle()
            assert [target.host for target, _, _ in hooks.receivers.got] == ["crm.example"]
            (handle,) = await hooks.deliveries()
            assert (await hooks.call(ShowJob(handle))).state == "failed"
            await hooks.cancels()
            assert hooks.receivers.got[-1][0].host == "other.example"

    run(test())

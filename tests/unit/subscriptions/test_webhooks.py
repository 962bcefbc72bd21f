"""Webhooks at a node in memory, with receivers that the test plays."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from mainspring.event_log.interests import Interest
from mainspring.event_log.types import types_of
from mainspring.jobs.model import Job, State, decode_failure
from mainspring.subscriptions.model import Target, id_of
from mainspring.subscriptions.webhooks import (
    PAUSED_FOR,
    PLACES,
    Webhook,
    WebhookWorkers,
    payload_of,
    subscription_of,
    webhook_of,
)
from mainspring.webhooks.answer import Answer, Cause, SendError
from mainspring.webhooks.backoff import DELAYS, PAUSE_GIVEN_UP
from mainspring.webhooks.bodies import Message
from mainspring.webhooks.sending import check_headers
from mainspring.webhooks.signing import SecretSet, make_secret

from .test_service import EventNode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mainspring.event_log.store import Event
    from mainspring.subscriptions.model import Subscribed, Subscription
    from mainspring.webhooks.targets import Target as Receiver

OK = Answer(204, 0.1, "", "")


def message_of(event: Event, _: Subscription) -> bytes:
    return payload_of(
        Message(number=event.number, type=event.type, at_us=event.at_us, namespace=event.namespace, data=event.fields)
    )


class Receivers:
    """Answers for all hosts, as the test says."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer | SendError | None]] = {}
        """By host, in their order; None: none comes. Without one, the answer is `OK`."""
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[Mapping[str, str]] = []
        self.under_way = 0
        self.refused: set[str] = set()

    async def check(self, target: Receiver) -> None:
        if target.host in self.refused:
            raise SendError(Cause.REFUSED, "the host has an address to which nothing may be sent: it is private")

    async def send(self, target: Receiver, headers: Mapping[str, str], body: bytes) -> Answer:
        check_headers(headers)
        self.bodies.append((target.host, json.loads(body)))
        self.headers.append(headers)
        answers = self.answers.get(target.host)
        answer = answers.pop(0) if answers else OK
        self.under_way += 1
        try:
            if answer is None:
                await asyncio.get_running_loop().create_future()
        finally:
            self.under_way -= 1
        if isinstance(answer, SendError):
            raise answer
        assert answer is not None
        return answer


class HookNode(EventNode):
    def __init__(self) -> None:
        super().__init__(payload_of=message_of)
        self.receivers = Receivers()
        self.webhooks = WebhookWorkers(self.deliverer, self.service, self.clock, self.receivers, draw=lambda: 0.5)

    def hook(self, name: str = "crm", host: str = "crm.example", paused: str = "", **filters: Any) -> None:
        given = {"Authorization": "of the receiver", "Webhook-Id": "forged", "Mainspring-Depth": "0"}
        webhook = Webhook(url=f"https://{host}/events", secrets=SecretSet(make_secret()), headers=given)
        interest = Interest(types_of(["job.failed"]), **filters)
        self.does(self.deliverer.save(subscription_of("default", name, interest, webhook, paused=paused)))
        self.webhooks.tick()

    async def settle(self) -> None:
        """Let the attempts go on as far as they can."""
        for _ in range(5):
            self.commit()
            await asyncio.sleep(0)
        self.commit()

    def jobs(self, name: str = "crm") -> list[Job]:
        found = [self.stored(job_id) for job_id in sorted({*self.history.live, *self.history.ended})]
        return [job for job in found if job.function == b"webhook:%b" % name.encode()]

    def found(self, name: str = "crm") -> Subscribed:
        stored = self.deliverer.find(id_of(Target.WEBHOOK, "default", name))
        assert stored is not None
        return stored

    async def after(self, seconds: float) -> None:
        self.wait(seconds)
        await self.settle()


def in_loop(test: Callable[[HookNode], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def to_end(node: HookNode) -> None:
        try:
            await test(node)
        finally:
            await node.webhooks.close()

    def run() -> None:
        asyncio.run(to_end(HookNode()))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_loop
async def test_an_event_is_sent_once(node: HookNode) -> None:
    node.hook()
    node.fails()
    await node.settle()
    ((host, body),) = node.receivers.bodies
    assert (host, body["type"]) == ("crm.example", "job.failed")
    (headers,) = node.receivers.headers
    assert headers["webhook-id"] == "evt_1"
    assert (headers["mainspring-depth"], headers["authorization"]) == ("1", "of the receiver")
    (job,) = node.jobs()
    assert job.state == State.SUCCEEDED
    assert json.loads(job.result)["status"] == 204
    await node.after(3600)
    assert len(node.receivers.bodies) == 1


@in_loop
async def test_a_failed_attempt_is_repeated_with_the_same_id_at_the_times_of_the_standard(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [
        Answer(500, 0.1, "", "no"),
        SendError(Cause.TIMEOUT, "no answer within 20 s"),
    ]
    node.hook()
    node.fails()
    await node.settle()
    (job,) = node.jobs()
    assert (job.state, decode_failure(job.error).message) == (State.SCHEDULED, "the receiver answered 500")
    await node.after(DELAYS[1] - 0.5)
    assert len(node.receivers.bodies) == 1
    await node.after(1)
    assert len(node.receivers.bodies) == 2
    await node.after(DELAYS[2] + 1)
    assert [headers["webhook-id"] for headers in node.receivers.headers] == ["evt_1"] * 3
    assert node.jobs()[0].state == State.SUCCEEDED


@in_loop
async def test_a_receiver_that_is_gone_pauses_the_webhook(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [Answer(410, 0.1, "", "")]
    node.hook()
    node.fails()
    await node.settle()
    stored = node.deliverer.find(id_of(Target.WEBHOOK, "default", "crm"))
    assert stored is not None
    assert stored.subscription.paused == "the receiver answered 410: it is gone"
    assert node.jobs()[0].state == State.FAILED
    node.fails()
    await node.after(10)
    assert len(node.receivers.bodies) == 1


@in_loop
async def test_a_dead_receiver_delays_no_other(node: HookNode) -> None:
    node.receivers.answers["dead.example"] = [None] * 100
    node.hook("dead", "dead.example")
    node.hook()
    for _ in range(2 * PLACES):
        node.fails()
        await node.settle()
    assert node.receivers.under_way == PLACES
    assert [host for host, _ in node.receivers.bodies].count("crm.example") == 2 * PLACES


@in_loop
async def test_a_dead_receiver_beside_twenty_living_ones_takes_its_own_places_alone(node: HookNode) -> None:
    """The living ones get each event in the turns in which it happens, whatever the dead one has under way."""
    names = [f"living{number}" for number in range(20)]
    node.hook("dead", "dead.example")
    for name in names:
        node.hook(name, f"{name}.example")
    node.receivers.answers["dead.example"] = [None] * 100
    for number in range(1, 3 * PLACES):
        node.fails()
        await node.settle()
        got = [host for host, _ in node.receivers.bodies]
        assert {got.count(f"{name}.example") for name in names} == {number}
        assert got.count("dead.example") == node.receivers.under_way == min(number, PLACES)


@in_loop
async def test_messages_that_are_given_up_in_a_row_pause_the_webhook(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [SendError(Cause.CONNECTION, "no connection to crm.example")] * 1000
    node.hook()
    for _ in range(PAUSE_GIVEN_UP):
        node.fails()
    await node.settle()
    for seconds in DELAYS[1:]:
        assert not node.found().subscription.paused
        await node.after(1.2 * seconds)
    node.deliverer.changed()
    await node.settle()
    assert node.found().subscription.paused == f"{PAUSE_GIVEN_UP} deliveries in a row have failed for good"
    assert {job.state for job in node.jobs()} == {State.FAILED}
    assert len(node.receivers.bodies) == PAUSE_GIVEN_UP * len(DELAYS)


@in_loop
async def test_a_job_without_an_owner_is_no_delivery(node: HookNode) -> None:
    node.hook()
    stray = Job(node.service.table.next_id(), b"webhook:crm", b"{}", state=State.PENDING)
    node.service.intake.submit([stray], lambda *_: None, lambda _: None)
    await node.settle()
    assert node.jobs()[0].state == State.FAILED
    assert node.receivers.bodies == []


@in_loop
async def test_deliveries_of_a_paused_webhook_wait(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [Answer(500, 0.1, "", "")]
    node.hook()
    node.fails()
    await node.settle()
    node.hook(paused="not now")
    await node.after(10)
    assert len(node.receivers.bodies) == 1
    node.hook()
    await node.after(PAUSED_FOR)
    assert len(node.receivers.bodies) == 2


@in_loop
async def test_a_removed_webhook_sends_nothing(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [Answer(500, 0.1, "", "")]
    node.hook()
    node.fails()
    await node.settle()
    node.does(node.deliverer.remove(id_of(Target.WEBHOOK, "default", "crm")))
    await node.after(10)
    assert len(node.receivers.bodies) == 1


@in_loop
async def test_a_cancelled_delivery_stops_its_attempt(node: HookNode) -> None:
    node.receivers.answers["crm.example"] = [None]
    node.hook()
    node.fails()
    await node.settle()
    assert node.receivers.under_way == 1
    (job,) = node.jobs()
    node.cancel(job.id)
    await node.settle()
    assert node.receivers.under_way == 0
    assert node.jobs()[0].state == State.CANCELLED
    node.fails()
    await node.settle()
    assert len(node.receivers.bodies) == 2, "its place is free"


def test_the_receiver_of_a_subscription_is_kept() -> None:
    webhook = Webhook(url="https://crm.example", secrets=SecretSet(make_secret()), headers={"x-team": "a"})
    subscription = subscription_of("default", "crm", Interest(types_of(["job.failed"])), webhook)
    assert webhook_of(subscription) == webhook
    assert "whsec_" not in repr(webhook).replace("whsec_***", "")

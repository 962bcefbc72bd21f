"""Webhooks at a node: each delivery is a job of the webhook's own function, which the node itself runs.

Each webhook has a worker of its own with a few places, so a slow or dead receiver delays no other one.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mainspring.callbacks import awaited
from mainspring.clock import to_us
from mainspring.errors import MainspringError, UsageError
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import WEBHOOK, Options, Retry, failure
from mainspring.namespaces import key
from mainspring.sizes import CANNOT_READ
from mainspring.subscriptions.model import Subscription, Target
from mainspring.webhooks.answer import SendError
from mainspring.webhooks.backoff import DELAYS, PAUSE_GIVEN_UP, Outcome, decide
from mainspring.webhooks.bodies import STANDARD, BodySettings, Message, make_body
from mainspring.webhooks.signing import SecretSet, signed_headers
from mainspring.webhooks.targets import PUBLIC, Policy, parse_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.clock import Clock
    from mainspring.event_log.interests import Interest
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService
    from mainspring.subscriptions.model import Subscribed
    from mainspring.subscriptions.service import Deliverer
    from mainspring.webhooks.answer import Answer
    from mainspring.webhooks.backoff import Decision
    from mainspring.webhooks.targets import Target as Receiver

PREFIX: Final = WEBHOOK.decode()
"""Before the name of a webhook in the name of its function. No client submits to such functions, and no other worker has them."""
PLACES: Final = 4
"""Deliveries of one webhook that a node sends at a time."""
PAUSED_FOR: Final = 300.0
"""Seconds for which a delivery of a paused webhook is postponed."""
RETRY: Final = Retry(max_attempts=len(DELAYS))


class Webhook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The receiver of a webhook, as `Subscription.details`."""

    url: str
    secrets: SecretSet
    body: BodySettings = STANDARD
    headers: dict[str, str] = {}


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Webhook).decode
_encode_message: Final = msgspec.json.Encoder().encode
_decode_message: Final = msgspec.json.Decoder(Message).decode


def subscription_of(namespace: str, name: str, interest: Interest, webhook: Webhook, **more: Any) -> Subscription:
    """Return the subscription of a webhook."""
    return Subscription(
        target=Target.WEBHOOK,
        namespace=namespace,
        name=name,
        interest=interest,
        function=PREFIX + name,
        options=Options(retry=RETRY),
        pause_after=PAUSE_GIVEN_UP,
        details=_encode(webhook),
        **more,
    )


def webhook_of(subscription: Subscription) -> Webhook:
    """Return the receiver of a subscription. Raises UsageError if this version cannot read it."""
    try:
        return _decode(subscription.details)
    except CANNOT_READ as error:
        raise UsageError(f"this version cannot read the webhook {subscription.name}: {error}") from error


def payload_of(message: Message) -> bytes:
    """Return the payload of a delivery."""
    return _encode_message(message)


class Sends(Protocol):
    """Sends messages; `webhooks.sending.Sender` does."""

    async def send(self, target: Receiver, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a message and return the answer, whatever its status. Raises SendError."""


class _Side:
    """The worker of one webhook: `jobs.held.WorkerConnection`."""

    def __init__(self, name: str, run: Callable[[Held], None], stop: Callable[[Held, bytes], None]) -> None:
        self._name = name
        self._run = run
        self._stop = stop

    def wake(self) -> None:
        """Do nothing: the worker gets its jobs as they come."""

    def no_job(self) -> None:
        """Do nothing, for the same reason."""

    def assign(self, held: Held) -> None:
        self._run(held)

    def name(self) -> str:
        return self._name

    def stop(self, held: Held, reason: bytes) -> None:
        self._stop(held, reason)


class WebhookWorkers:
    """The workers of all webhooks at a node, which calls ``tick`` several times a second.

    ``source`` is the address of the node for CloudEvents. ``draw`` returns a random number from 0 to 1.
    """

    def __init__(
        self,
        deliverer: Deliverer,
        jobs: JobService,
        clock: Clock,
        sender: Sends,
        *,
        policy: Policy = PUBLIC,
        source: str = "",
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._deliverer = deliverer
        self._jobs = jobs
        self._clock = clock
        self._sender = sender
        self._policy = policy
        self._source = source
        self._draw = draw
        self._workers: dict[str, Worker] = {}
        """By the ids of their subscriptions."""
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        """The attempts under way, by the handles of their jobs."""

    def tick(self) -> None:
        """Begin the workers of new webhooks, and end those of removed ones."""
        webhooks = {
            one.subscription.id: one.subscription
            for one in self._deliverer.stored()
            if one.subscription.target is Target.WEBHOOK
        }
        for name in self._workers.keys() - webhooks.keys():
            self._jobs.workers.gone(self._workers.pop(name))
        if self._jobs.dispatch.paused:
            return
        for name in webhooks.keys() - self._workers.keys():
            self._begin(webhooks[name])

    def _begin(self, subscription: Subscription) -> None:
        worker = Worker(_Side(subscription.id, lambda held: self._run(worker, held), self._stop))
        self._workers[subscription.id] = worker
        function = key(subscription.namespace, subscription.function.encode())
        self._jobs.workers.register(worker, function, Ability(requeue=True))
        self._jobs.workers.ready(worker, PLACES)

    # ---- attempts ----

    def _run(self, worker: Worker, held: Held) -> None:
        task = asyncio.get_running_loop().create_task(self._attempt(worker, held))
        self._tasks[held.handle] = task
        task.add_done_callback(lambda _: self._tasks.pop(held.handle, None))

    def _stop(self, held: Held, reason: bytes) -> None:
        task = self._tasks.get(held.handle)
        if task is not None:
            task.cancel()
        if held.cancelled and held.worker is not None:
            self._jobs.settling.cancelled(held, held.cancelled)
        del reason

    async def _attempt(self, worker: Worker, held: Held) -> None:
        try:
            await self._deliver(worker, held)
        except MainspringError as error:
            self._fail(worker, held, "WebhookError", str(error), final=False)
        finally:
            self._jobs.workers.ready(worker, 1)

    async def _deliver(self, worker: Worker, held: Held) -> None:
        options = held.job.options
        assert options is not None
        assert options.owner is not None, "deliveries have one"
        stored = self._deliverer.find(options.owner[1].split(":", 2)[2])
        if stored is None:
            self._fail(worker, held, "WebhookRemoved", "the webhook was removed", final=True)
            return
        if stored.subscription.paused:
            if self._has(worker, held):
                self._jobs.settling.snoozed(held, PAUSED_FOR)
            return
        await self._send(worker, held, stored)

    async def _send(self, worker: Worker, held: Held, stored: Subscribed) -> None:
        webhook = webhook_of(stored.subscription)
        message = _decode_message(held.job.payload)
        now_us = to_us(self._clock.wall())
        body = make_body(message, webhook.body, self._source)
        signed = signed_headers(webhook.secrets.at(now_us), message.id, now_us, body.content)
        headers = {**webhook.headers, "content-type": body.content_type, **signed}
        result: Answer | SendError
        try:
            result = await self._sender.send(parse_target(webhook.url, self._policy), headers, body.content)
        except SendError as error:
            result = error
        decision = decide(held.job.attempt + 1, result, to_us(self._clock.wall()), self._draw())
        if decision.outcome is Outcome.DISABLE:
            await self._pause(stored, decision)
        self._settle(worker, held, result, decision)

    async def _pause(self, stored: Subscribed, decision: Decision) -> None:
        paused = msgspec.structs.replace(stored.subscription, paused=decision.why)
        await awaited(self._deliverer.save(paused, stored.version))  # a change of the webhook meanwhile counts more

    def _settle(self, worker: Worker, held: Held, result: Answer | SendError, decision: Decision) -> None:
        if not self._has(worker, held):
            return
        if isinstance(result, SendError) or decision.outcome is not Outcome.DELIVERED:
            kind = "WebhookError" if isinstance(result, SendError) else "WebhookRefused"
            final = decision.outcome is not Outcome.RETRY
            self._jobs.settling.failed(held, failure(kind, decision.why), final=final, delay=decision.seconds)
            return
        answer = {"status": result.status, "seconds": round(result.seconds, 3), "answer": result.excerpt}
        self._jobs.settling.succeeded(held, msgspec.json.encode(answer))

    def _fail(self, worker: Worker, held: Held, kind: str, why: str, *, final: bool) -> None:
        if self._has(worker, held):
            self._jobs.settling.failed(held, failure(kind, why), final=final)

    @staticmethod
    def _has(worker: Worker, held: Held) -> bool:
        """Return whether the job is still this worker's: it may have been cancelled or lost meanwhile."""
        return held.worker is worker and worker.running.get(held.handle) is held

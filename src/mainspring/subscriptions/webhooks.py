"""Webhooks at a node: each delivery is a job of the webhook's own function, which the node itself runs.

Each webhook has a worker of its own with a few places, so a slow or dead receiver delays no other one.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from mainspring.callbacks import Callback, awaited
from mainspring.clock import to_us
from mainspring.errors import ConflictError, MainspringError, StoreError, UsageError
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import WEBHOOK, Options, Retry, failure
from mainspring.jobs.owners import owner
from mainspring.namespaces import key
from mainspring.sizes import CANNOT_READ
from mainspring.subscriptions.model import Subscription, Target, of_owner
from mainspring.webhooks.answer import Cause, SendError
from mainspring.webhooks.backoff import DELAYS, PAUSE_GIVEN_UP, Outcome, decide
from mainspring.webhooks.bodies import STANDARD, BodySettings, Message, make_body
from mainspring.webhooks.sending import DEPTH
from mainspring.webhooks.signing import SecretSet, signed_headers
from mainspring.webhooks.targets import PUBLIC, Policy, parse_target

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mainspring.callbacks import Done, Failed
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
LOOK_UP: Final = 5.0
"""Seconds in which the host of a new webhook is looked up; it is checked again at each attempt."""
T = TypeVar("T")


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


def changed(subscription: Subscription, webhook: Webhook) -> Subscription:
    """Return a subscription with another receiver."""
    return msgspec.structs.replace(subscription, details=_encode(webhook))


class Sends(Protocol):
    """Sends messages; `webhooks.sending.Sender` does."""

    async def check(self, target: Receiver) -> Any:
        """Look up a target. Raises SendError if it has no address, or one that is not permitted."""

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

    ``source`` is the address of the node for CloudEvents. Without ``sends`` it leaves all deliveries to other nodes. ``warm`` is
    called in a thread before the first delivery. ``draw`` returns a random number from 0 to 1.
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
        sends: bool = True,
        warm: Callable[[], object] = lambda: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._deliverer = deliverer
        self._jobs = jobs
        self._clock = clock
        self._sender = sender
        self._policy = policy
        self._source = source
        self._sends = sends
        self._warm: Callable[[], object] | None = warm
        self._warming: asyncio.Future[object] | None = None
        self._draw = draw
        self._workers: dict[str, Worker] = {}
        """By the ids of their subscriptions."""
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        """The attempts under way, by the handles of their jobs."""
        self._others: dict[asyncio.Task[Any], str] = {}
        """Tests and look-ups for requests, with the ids of the webhooks that are tested."""

    def tick(self) -> None:
        """Begin the workers of new webhooks, and end those of removed ones."""
        webhooks = {
            one.subscription.id: one.subscription
            for one in self._deliverer.stored()
            if one.subscription.target is Target.WEBHOOK
        }
        for name in self._workers.keys() - webhooks.keys():
            self._jobs.workers.gone(self._workers.pop(name))
        if self._jobs.dispatch.paused or not self._sends:
            return
        for name in webhooks.keys() - self._workers.keys():
            self._begin(webhooks[name])

    async def close(self) -> None:
        """End what is still under way: the node ends. Its deliveries begin again at another node, or at its next start."""
        self._sends = False
        for worker in self._workers.values():  # the places of cancelled attempts take no others
            self._jobs.workers.gone(worker)
        self._workers.clear()
        tasks = [*self._tasks.values(), *self._others]
        for task in tasks:
            task.cancel()
        if self._warming is not None:
            await self._warming
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, subscription: Subscription) -> None:
        if self._warm is not None:  # certificates are read for some 10 ms
            self._warming = asyncio.get_running_loop().run_in_executor(None, self._warm)
            self._warm = None
        worker = Worker(_Side(subscription.id, lambda held: self._run(worker, held), self._stop))
        self._workers[subscription.id] = worker
        function = key(subscription.namespace, subscription.function.encode())
        self._jobs.workers.register(worker, function, Ability(requeue=True))
        self._jobs.workers.ready(worker, PLACES)

    # ---- requests ----

    async def check(self, url: str) -> None:
        """Raise UsageError for a URL to which this node would not send. A name that has no address now may have one later."""
        target = parse_target(url, self._policy)

        async def look_up() -> None:
            try:
                async with asyncio.timeout(LOOK_UP):
                    await self._sender.check(target)
            except TimeoutError:
                return
            except SendError as error:
                if error.cause is Cause.REFUSED:
                    raise UsageError(str(error)) from None

        await self._ask(look_up())

    async def test(self, subscription: Subscription, message: Message) -> Answer | SendError:
        """Send a message now, once, and return the answer. Raises ConflictError, and UsageError if there is none to send."""
        if not self._sends:
            raise ConflictError("this node sends no webhooks (--no-webhooks): ask another one")
        if subscription.id in self._others.values():
            raise ConflictError(f"a test of {subscription.name} is under way: wait for its answer")

        async def send() -> Answer | SendError:
            try:
                return await self._send(webhook_of(subscription), message)
            except SendError as error:
                return error

        return await self._ask(send(), subscription.id)

    async def _ask(self, work: Coroutine[Any, Any, T], tested: str = "") -> T:
        """Run something of asyncio for a request."""

        def ask(done: Done, failed: Failed) -> None:
            def ended(task: asyncio.Task[T]) -> None:
                self._others.pop(task, None)
                if task.cancelled():
                    failed(StoreError("the node ends"))
                elif (error := task.exception()) is None:
                    done(task.result())
                else:
                    failed(error if isinstance(error, Exception) else StoreError(repr(error)))

            task = asyncio.get_running_loop().create_task(work)
            self._others[task] = tested
            task.add_done_callback(ended)

        answer: T = await Callback(ask)
        return answer

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
            if self._sends:
                self._jobs.workers.ready(worker, 1)

    async def _deliver(self, worker: Worker, held: Held) -> None:
        whose = owner(held.job.options)
        name, number = "", 0
        if whose is not None:
            name, _, number = of_owner(whose)
        stored = self._deliverer.find(name)
        if stored is None or number <= stored.subscription.begun:  # or it is of an earlier webhook of this name
            self._fail(worker, held, "WebhookRemoved", "the webhook was removed", final=True)
            return
        if stored.subscription.paused:
            if self._has(worker, held):
                self._jobs.settling.snoozed(held, PAUSED_FOR)
            return
        result: Answer | SendError
        try:
            depth = held.job.options.depth if held.job.options is not None else 0
            result = await self._send(webhook_of(stored.subscription), _decode_message(held.job.payload), depth)
        except SendError as error:
            result = error
        decision = decide(held.job.attempt + 1, result, to_us(self._clock.wall()), self._draw())
        if decision.outcome is Outcome.DISABLE:
            await self._pause(stored, decision)
        self._settle(worker, held, result, decision)

    async def _send(self, webhook: Webhook, message: Message, depth: int = 0) -> Answer:
        """Send a message. Raises SendError, and UsageError for a template that fails."""
        now_us = to_us(self._clock.wall())
        body = make_body(message, webhook.body, self._source)
        signed = signed_headers(webhook.secrets.at(now_us), message.id, now_us, body.content)
        own = {name.lower(): value for name, value in webhook.headers.items()}  # its names replace none of the others
        headers = {**own, "content-type": body.content_type, **signed}
        if depth:
            headers[DEPTH] = str(depth)
        try:
            target = parse_target(webhook.url, self._policy)
        except UsageError as error:  # the settings of this node permit less than those of the one that took it
            raise SendError(Cause.REFUSED, str(error)) from None
        return await self._sender.send(target, headers, body.content)

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

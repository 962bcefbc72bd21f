"""Calls about webhooks, and the payloads of their deliveries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.access.caller import LOCAL, Permission
from mainspring.api.handlers.events import data_of
from mainspring.api.handlers.job_records import JobLookup
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.handlers.subscriptions import ATTEMPTS, Progress, SubscriptionLookup
from mainspring.api.request import ApiError, Code, Page, Touches
from mainspring.api.webhooks import (
    LONGEST_OVERLAP,
    MOST_WEBHOOKS,
    AddWebhook,
    EditWebhook,
    ListWebhooks,
    PauseWebhook,
    RedeliverWebhook,
    Redelivery,
    RemovedWebhook,
    RemoveWebhook,
    ResumeWebhook,
    RotateWebhook,
    ShowWebhook,
    TryWebhook,
    WebhookAnswer,
    WebhookInfo,
    WebhookSecret,
)
from mainspring.bulk.rules import Action, Spec
from mainspring.clock import to_us
from mainspring.errors import ConflictError, SettingsError, UsageError
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import ListEvents, ShowLogEnds
from mainspring.event_log.types import types_of
from mainspring.jobs.model import State
from mainspring.jobs.owners import owner
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import ANY, key
from mainspring.quantities import parse_time
from mainspring.queries import JobFilter
from mainspring.subscriptions.model import Target, of_owner
from mainspring.subscriptions.webhooks import Webhook, changed, payload_of, subscription_of, webhook_of
from mainspring.webhooks.answer import SendError
from mainspring.webhooks.bodies import BodySettings, Format, Message, check_settings
from mainspring.webhooks.sending import check_headers
from mainspring.webhooks.signing import SecretSet, make_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.access.caller import Act
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.webhooks import WebhookFields
    from mainspring.bulk.service import BulkService
    from mainspring.callbacks import Ask
    from mainspring.event_log.store import Event
    from mainspring.ids import Handles
    from mainspring.jobs.service import JobService
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.model import Subscribed, Subscription
    from mainspring.subscriptions.service import Deliverer
    from mainspring.subscriptions.webhooks import WebhookWorkers

TEST: Final = "webhook.test"
"""The type of messages of tests, which are no events."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONGEST_PATTERN: Final = 512
_FURTHEST: Final = 2**62
_DIGITS: Final = 18
_WAITING: Final = (State.SCHEDULED, State.PENDING)


def payloads(handles: Handles, base: str = "") -> Callable[[Event, Subscription], bytes]:
    """Return the function that makes the payload of a webhook's delivery. ``base`` is the address of the pages, or empty."""

    def payload(event: Event, _: Subscription) -> bytes:
        handle = handles.of(event.job).decode() if event.job else ""
        return payload_of(
            Message(
                number=event.number,
                type=event.type,
                at_us=event.at_us,
                namespace=event.namespace,
                function=event.function,
                subject=event.subject,
                job=handle,
                data=data_of(event, handles),
                link=f"{base}/jobs/{handle}{_query(event.namespace)}" if base and handle else "",
            )
        )

    return payload


def _query(namespace: str) -> str:
    return "" if namespace in {"", "default"} else f"?namespace={namespace}"


class WebhookCalls:
    """Answers about webhooks.

    There is no ``deliverer`` and there are no ``workers`` if the store keeps no events: `Api` refuses the calls then. ``record``
    records an act that changes nothing.
    """

    def __init__(
        self,
        deliverer: Deliverer | None,
        workers: WebhookWorkers | None,
        jobs: JobService,
        reads: Reads,
        record: Callable[[Act], Coroutine[Ask, Any, None]],
        bulk: BulkService | None = None,
    ) -> None:
        self._webhooks = SubscriptionLookup(deliverer, reads, Target.WEBHOOK, Code.WEBHOOK_NOT_FOUND)
        self._workers = workers
        self._jobs = jobs
        self._reads = reads
        self._record = record
        self._lookup = JobLookup(jobs)
        self._bulk = bulk
        self.handlers: Handlers = {
            ListWebhooks: self._list,
            ShowWebhook: self._show,
            AddWebhook: self._add,
            EditWebhook: self._edit,
            PauseWebhook: self._pause,
            ResumeWebhook: self._resume,
            TryWebhook: self._test,
            RedeliverWebhook: self._redeliver,
            RotateWebhook: self._rotate,
            RemoveWebhook: self._remove,
        }

    def _now_us(self) -> int:
        return to_us(self._jobs.clock.wall())

    # ---- reading ----

    async def _find(self, call: Call, revision: str | None = None) -> Subscribed:
        found = await self._webhooks.find(call.request)
        if revision is not None and revision != str(found.version):
            name = found.subscription.name
            raise ApiError(Code.CHANGED, f"the webhook {name!r} was changed since revision {revision}: read it again")
        return found

    async def _list(self, request: ListWebhooks, call: Call) -> Page[WebhookInfo]:
        page, following = await self._webhooks.page(request, call)
        return Page(await self._infos(page), following)

    async def _show(self, request: ShowWebhook, call: Call) -> WebhookInfo:
        one = await self._find(call)
        call.check(one.subscription.function)
        info = await self._info(one)
        caller = call.caller
        administers = caller is LOCAL or (
            caller.may(Permission.ADMIN, request.namespace)
            and caller.functions(Permission.ADMIN, request.namespace) is None
        )
        if administers:
            info.url = webhook_of(one.subscription).url
        return info

    async def _info(self, one: Subscribed) -> WebhookInfo:
        (info,) = await self._infos([one])
        return info

    async def _infos(self, webhooks: Sequence[Subscribed]) -> list[WebhookInfo]:
        """Describe webhooks, without the paths of their URLs."""
        now_us = self._now_us()
        return [_described(one, now_us) for one in await self._webhooks.progress(webhooks)]

    # ---- changing ----

    async def _add(self, request: AddWebhook, call: Call) -> WebhookSecret:
        if not _NAME.fullmatch(request.name):
            raise ApiError(
                Code.INVALID,
                "the name of a webhook has 1 to 100 letters, digits, dots, dashes and underscores, and begins with a letter or a"
                " digit",
                field="name",
            )
        for field in ("url", "types"):
            if getattr(request, field) is UNSET:
                raise ApiError(Code.INVALID, f"a webhook needs {field}", field=field)
        stored = await self._webhooks.all(request.namespace)
        if request.name in stored:
            raise ConflictError(f"there is a webhook {request.name!r} already: edit it, or choose another name")
        if len(stored) >= MOST_WEBHOOKS:
            raise ConflictError(f"a namespace has at most {MOST_WEBHOOKS} webhooks: remove some of them")
        secret = make_secret()
        webhook = _receiver(request, Webhook(url="", secrets=SecretSet(secret)))
        interest = _interest(request, Interest(frozenset(), request.namespace), call)
        await self._check_url(request, webhook)
        subscription = subscription_of(request.namespace, request.name, interest, webhook)
        saved = await self._webhooks.deliverer.save(
            subscription, 0, call.act(of=request.name, after=_shown(subscription))
        )
        if saved is None:
            raise ConflictError(f"there is a webhook {request.name!r} already: edit it, or choose another name")
        return await self._with_secret(saved, secret.text)

    async def _with_secret(self, saved: Subscribed, secret: str) -> WebhookSecret:
        info = await self._info(saved)
        info.url = webhook_of(saved.subscription).url
        return WebhookSecret(**{name: getattr(info, name) for name in WebhookInfo.__struct_fields__}, secret=secret)

    async def _check_url(self, request: WebhookFields, webhook: Webhook) -> None:
        """Raise UsageError for a URL to which the nodes do not send."""
        if request.url is not UNSET:
            assert self._workers is not None
            await self._workers.check(webhook.url)

    async def _edit(self, request: EditWebhook, call: Call) -> WebhookInfo:
        def edited(one: Subscription) -> Subscription:
            interest = _interest(request, one.interest, call)
            return changed(replace(one, interest=interest), _receiver(request, webhook_of(one)))

        if request.url is not UNSET:
            await self._find(call, request.revision)
            await self._check_url(request, Webhook(url=request.url, secrets=SecretSet(make_secret())))
        saved = await self._change(call, edited, revision=request.revision)
        info = await self._info(saved)
        info.url = webhook_of(saved.subscription).url
        return info

    async def _pause(self, request: PauseWebhook, call: Call) -> WebhookInfo:
        why = request.reason or f"paused by {call.caller.name}"
        return await self._info(await self._change(call, lambda one: replace(one, paused=why), reason=request.reason))

    async def _resume(self, _: ResumeWebhook, call: Call) -> WebhookInfo:
        return await self._info(await self._change(call, lambda one: replace(one, paused="")))

    async def _rotate(self, request: RotateWebhook, call: Call) -> WebhookSecret:
        if not 0 <= request.overlap <= LONGEST_OVERLAP:
            raise ApiError(Code.INVALID, "overlap is a time from 0s to 30d", field="overlap")
        secret = make_secret()

        def rotated(one: Subscription) -> Subscription:
            webhook = webhook_of(one)
            secrets = webhook.secrets.rotate(secret, self._now_us(), to_us(request.overlap))
            return changed(one, replace(webhook, secrets=secrets))

        return await self._with_secret(await self._change(call, rotated), secret.text)

    async def _change(
        self,
        call: Call,
        change: Callable[[Subscription], Subscription],
        *,
        reason: str = "",
        revision: str | None = None,
    ) -> Subscribed:
        """Save a change of the webhook as it is, again if another request changes it meanwhile."""
        for _ in range(ATTEMPTS):
            found = await self._find(call, revision)
            if found.subscription.interest.namespace == ANY and call.caller is not LOCAL:
                call.caller.check_everywhere(call.request.permission)
            after = change(found.subscription)
            act = call.act(reason, of=after.name, before=_shown(found.subscription), after=_shown(after))
            saved = await self._webhooks.deliverer.save(after, found.version, act)
            if saved is not None:
                return saved
        raise ConflictError("the webhook is changed by others all the time: try again")

    async def _remove(self, request: RemoveWebhook, call: Call) -> RemovedWebhook:
        one = (await self._find(call, request.revision)).subscription
        await self._webhooks.deliverer.remove(one.id, call.act(of=one.name, before=_shown(one)))
        if self._bulk is not None:  # otherwise they wait for a webhook of this name, which refuses them
            where = JobFilter(states=_WAITING, function=_function(one), namespace=one.namespace)
            spec = Spec(action=Action.CANCEL, where=where, reason="the webhook was removed")
            await self._bulk.begin(self._bulk.new(one.namespace, spec))
        return RemovedWebhook(one.name)

    # ---- sending ----

    async def _test(self, request: TryWebhook, call: Call) -> WebhookAnswer:
        found = await self._find(call)
        now_us = self._now_us()
        message = Message(
            number=now_us,  # above the numbers of all events
            type=TEST,
            at_us=now_us,
            namespace=request.namespace,
            function=found.subscription.function,
            subject=request.name,
            data={"by": call.caller.name},
        )
        assert self._workers is not None
        result = await self._workers.test(found.subscription, message)
        await self._record(call.act(of=request.name))
        if isinstance(result, SendError):
            return WebhookAnswer(
                request.name,
                message.id,
                succeeded=False,
                status=None,
                seconds=result.seconds,
                error=str(result),
                excerpt=None,
            )
        sees = call.caller.may(Permission.PAYLOADS, request.namespace, found.subscription.function)
        return WebhookAnswer(
            request.name,
            message.id,
            succeeded=result.is_success,
            status=result.status,
            seconds=result.seconds,
            error=None,
            excerpt=result.excerpt if sees else None,
        )

    async def _redeliver(self, request: RedeliverWebhook, call: Call) -> Redelivery:
        subscription = (await self._find(call)).subscription
        if (request.handle is None) == (request.since is None):
            raise ApiError(Code.INVALID, "give the handle of a delivery, or with since the first event of a stretch")
        if request.handle is not None:
            return await self._redeliver_job(request, subscription, call)
        first, last = await self._number("since", request.since or ""), _FURTHEST
        if request.until is not None:
            last = await self._number("until", request.until, after=True)
        act = call.act(of=request.name, after={"since": request.since, "until": request.until})
        done = await self._webhooks.deliverer.redeliver(subscription.id, first, last, act)
        return Redelivery(request.name, None, done.number, None if done.next is None else str(done.next))

    async def _redeliver_job(self, request: RedeliverWebhook, subscription: Subscription, call: Call) -> Redelivery:
        handle = request.handle or ""
        job = await self._lookup.read(handle, request.namespace)
        whose = owner(job.options)
        if job.function != _function(subscription) or whose is None:
            raise Touches.JOB.not_found(handle)
        state = State(job.state)
        if not state.ended:
            raise ConflictError(f"{handle} is {state.name.lower()}: it is on its way already")
        act = call.act(of=request.name, after={"handle": handle})
        if state is not State.SUCCEEDED:
            await self._jobs.clients.retry(job.id, act=act, namespace=request.namespace)
            return Redelivery(request.name, handle, 1, None)
        number = of_owner(whose)[2]
        done = await self._webhooks.deliverer.redeliver(subscription.id, number, number, act)
        if not done.number:
            raise ApiError(
                Code.NOT_KEPT, f"the event {number} of {handle} is not kept, or is not for the webhook any more"
            )
        return Redelivery(request.name, None, 1, None)

    async def _number(self, field: str, text: str, *, after: bool = False) -> int:
        """Return the number of the first event of a time, or with ``after`` that of the last one of it; or the given number."""
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
            return int(text)
        try:
            time_us = to_us(parse_time(text))
        except SettingsError as error:
            raise ApiError(Code.INVALID, f"{field} is the number of an event or a time: {error}", field=field) from None
        ends = await self._reads.read(ShowLogEnds())
        before, last = ends.swept, ends.last  # all up to the first are earlier, and none behind the second is
        while before < last:
            middle = (before + last) // 2
            page = await self._reads.read(ListEvents(after=middle, limit=1))
            event = page.items[0] if page.items else None
            if event is None or event.at_us >= time_us + after:
                last = middle
            else:
                before = event.number
        return before if after else before + 1


def _function(one: Subscription) -> bytes:
    return key(one.namespace, one.function.encode())


def _receiver(request: WebhookFields, before: Webhook) -> Webhook:
    """Return the receiver that a request describes. Raises UsageError."""
    body = before.body
    kind = body.format if request.format is UNSET else Format(request.format)
    template = body.template
    if request.template is not UNSET:
        template = request.template
        if request.format is UNSET and template:
            kind = Format.TEMPLATE
    elif kind is not Format.TEMPLATE:
        template = ""
    is_json = body.is_json if request.content is UNSET else request.content == "json"
    body = BodySettings(kind, template, is_json)
    check_settings(body)
    headers = before.headers if request.headers is UNSET else request.headers
    check_headers(headers)
    return replace(before, url=before.url if request.url is UNSET else request.url, body=body, headers=headers)


def _interest(request: WebhookFields, before: Interest, call: Call) -> Interest:
    """Return the interest that a request describes. Raises UsageError and ForbiddenError."""
    types = before.types if request.types is UNSET else types_of(request.types)
    if not types:
        raise UsageError("a webhook needs types of events")
    functions = before.functions if request.functions is UNSET else tuple(request.functions)
    if any(not one or len(one) > _LONGEST_PATTERN for one in functions):
        raise UsageError(f"a name or a pattern of functions has 1 to {_LONGEST_PATTERN} characters")
    tags = before.tags if request.tags is UNSET else check_tags(tuple(request.tags))
    namespace = before.namespace
    if request.everywhere is not UNSET:
        namespace = ANY if request.everywhere else request.namespace
    if namespace == ANY and call.caller is not LOCAL:
        call.caller.check_everywhere(Permission.ADMIN)
    return Interest(types, namespace, functions, tags)


def short_url(url: str) -> str:
    """Return the scheme and the host of a URL: its path and its query may be secrets."""
    scheme, separator, rest = url.partition("://")
    host, slash, _ = rest.partition("/")
    host = host.partition("?")[0]
    return f"{scheme}{separator}{host}{'/…' if slash or '?' in rest else ''}"


def _shown(one: Subscription) -> dict[str, Any]:
    """Return a webhook as the audit shows it."""
    webhook = webhook_of(one)
    return {
        "url": short_url(webhook.url),
        "types": sorted(one.interest.types),
        "functions": list(one.interest.functions),
        "tags": list(one.interest.tags),
        "everywhere": one.interest.namespace == ANY,
        "format": webhook.body.format.value,
        "template": webhook.body.template,
        "headers": sorted(webhook.headers),
        "paused": one.paused,
    }


def _described(progress: Progress, now_us: int) -> WebhookInfo:
    one, delivered, behind = progress
    subscription = one.subscription
    webhook, interest = webhook_of(subscription), subscription.interest
    body = webhook.body
    return WebhookInfo(
        name=subscription.name,
        function=subscription.function,
        url=short_url(webhook.url),
        types=sorted(interest.types),
        functions=list(interest.functions),
        tags=list(interest.tags),
        everywhere=interest.namespace == ANY,
        format=body.format.value,
        template=body.template,
        content="json" if body.is_json else "text",
        headers=sorted(webhook.headers),
        state="paused" if subscription.paused else "active",
        paused=subscription.paused or None,
        failures=one.failures,
        delivered=str(delivered),
        behind=behind,
        missed=str(subscription.missed) if subscription.missed else None,
        secrets=len(webhook.secrets.at(now_us)),
        overlap_ends_at=rfc3339(max((old.until_us for old in webhook.secrets.old if old.until_us > now_us), default=0)),
        created_at=rfc3339(subscription.created_us),
        revision=str(one.version),
    )

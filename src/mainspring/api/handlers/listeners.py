"""Calls about listeners, and the payloads of their deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.json import Encoder
from msgspec.structs import replace

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Permission
from mainspring.api.handlers.events import info_of
from mainspring.api.handlers.subscriptions import ATTEMPTS, Progress, SubscriptionLookup
from mainspring.api.listeners import (
    DeclareListeners,
    ListenerInfo,
    ListListeners,
    PauseListener,
    RemovedListener,
    RemoveListener,
    ResumeListener,
    ShowListener,
)
from mainspring.api.request import Code, Page
from mainspring.api.schedules import Declared, Difference
from mainspring.api.submitting import PRIORITY_BY_NAME, check_seconds, submission_problem
from mainspring.errors import ConflictError, ForbiddenError, UsageError
from mainspring.event_log.interests import Interest
from mainspring.event_log.types import ACTED, types_of
from mainspring.jobs.model import Options, check_retry
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import ANY, key_of_text, name_bytes
from mainspring.subscriptions import declaring
from mainspring.subscriptions.declaring import Kind
from mainspring.subscriptions.model import Subscription, Target, id_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mainspring.access.caller import Act
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.listeners import DeclaredListener
    from mainspring.event_log.store import Event
    from mainspring.ids import Handles
    from mainspring.schedules.service import Deployed
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.model import Subscribed
    from mainspring.subscriptions.service import Deliverer

MOST_LISTENERS: Final = 1000
"""Listeners of a store: each event is compared with those that have its type."""
_OF_LISTENERS: Final = "\x1elisteners"
"""The end of the names under which the store has the versions of an App's listeners: those of its schedules are others."""
_encode: Final = Encoder().encode


def payloads(handles: Handles) -> Callable[[Event, Subscription], bytes]:
    """Return the function that makes the payload of a listener's delivery: the arguments of its function."""

    def payload_of(event: Event, _: Subscription) -> bytes:
        return _encode([info_of(event, handles)])

    return payload_of


class ListenerCalls:
    """Answers about listeners. ``deploy`` is that of the service of schedules.

    There is no ``deliverer`` if the store keeps no events: `Api` refuses the calls then.
    """

    def __init__(
        self,
        deliverer: Deliverer | None,
        reads: Reads,
        deploy: Callable[[str, bytes, Sequence[str]], Awaitable[Deployed]],
    ) -> None:
        self._listeners = SubscriptionLookup(deliverer, reads, Target.LISTENER, Code.LISTENER_NOT_FOUND)
        self._deploy = deploy
        self.handlers: Handlers = {
            ListListeners: self._list,
            ShowListener: self._show,
            PauseListener: self._pause,
            ResumeListener: self._resume,
            RemoveListener: self._remove,
            DeclareListeners: self._declare,
        }

    # ---- reading ----

    async def _list(self, request: ListListeners, call: Call) -> Page[ListenerInfo]:
        page, following = await self._listeners.page(request, call)
        return Page([_described(one) for one in await self._listeners.progress(page)], following)

    async def _show(self, request: ShowListener, _: Call) -> ListenerInfo:
        return await self._info(await self._listeners.find(request))

    async def _info(self, one: Subscribed) -> ListenerInfo:
        (progress,) = await self._listeners.progress([one])
        return _described(progress)

    # ---- changing ----

    async def _pause(self, request: PauseListener, call: Call) -> ListenerInfo:
        why = request.reason or f"paused by {call.caller.name}"
        return await self._switch(request, call, why, request.reason)

    async def _resume(self, request: ResumeListener, call: Call) -> ListenerInfo:
        return await self._switch(request, call, "", "")

    async def _switch(
        self, request: PauseListener | ResumeListener, call: Call, paused: str, reason: str
    ) -> ListenerInfo:
        for _ in range(ATTEMPTS):
            found = await self._listeners.find(request)
            act = call.act(reason, of=request.name)
            changed = replace(found.subscription, paused=paused)
            saved = await self._listeners.deliverer.save(changed, found.version, act)
            if saved is not None:
                return await self._info(saved)
        raise ConflictError(f"the listener {request.name!r} is changed by others all the time: try again")

    async def _remove(self, request: RemoveListener, call: Call) -> RemovedListener:
        found = await self._listeners.find(request)
        await self._listeners.deliverer.remove(
            found.subscription.id, call.act(of=request.name, before=_shown(found.subscription))
        )
        return RemovedListener(request.name)

    # ---- declarations by code ----

    async def _declare(self, request: DeclareListeners, call: Call) -> Declared:
        """Apply the listeners in the code of an App, if that code governs. Its workers repeat the request while they run."""
        namespace = request.namespace
        for one in request.listeners:
            self._check(one, call)
        declared = [_subscription(one, namespace) for one in request.listeners]
        stored = await self._listeners.all(namespace)
        app = request.app
        if not request.is_named:
            app = declaring.name_of(app, request.functions, [one.subscription for one in stored.values()])
        if call.is_restricted:
            for each in stored.values():
                if each.subscription.app == app:
                    call.check(each.subscription.function)
        owners = {stored[one.name].subscription.app for one in declared if one.name in stored}
        others = [_deployed_as(namespace, one) for one in sorted(owners - {app})]
        digest = declaring.digest(request.listeners)
        deployed = await self._deploy(_deployed_as(namespace, app), digest, others)
        if not deployed.governs:
            return Declared(governs=False, changes=[])
        live = {one for one in owners if _deployed_as(namespace, one) in deployed.live_apps}
        changes = list(
            declaring.compare(
                app,
                declared,
                {name: one.subscription for name, one in stored.items()},
                request.left_out,
                live,
            )
        )
        if len(stored) + sum(one.kind is Kind.ADDED for one in changes) > MOST_LISTENERS:
            raise ConflictError(f"a namespace has at most {MOST_LISTENERS} listeners: remove some of them")
        lines = [] if app == request.app else [_other_code(request.app, app)]
        for change in changes:
            before = stored.get(change.name)
            act = call.act(
                of=change.name,
                before=None if change.before is None else _shown(change.before),
                after=None if change.after is None else _shown(change.after),
            )
            if await self._apply(change, before, namespace, act):
                lines.append(Difference(change.kind.value, change.name, change.text, change.warning))
        return Declared(governs=True, changes=lines)

    async def _apply(self, change: declaring.Change, before: Subscribed | None, namespace: str, act: Act) -> bool:
        """Apply a change; return whether it was made, and not by another worker a moment before."""
        if change.kind is Kind.REMOVED:
            return await self._listeners.deliverer.remove(id_of(Target.LISTENER, namespace, change.name), act)
        if change.after is None:
            return True
        return (
            await self._listeners.deliverer.save(change.after, 0 if before is None else before.version, act) is not None
        )

    def _check(self, one: DeclaredListener, call: Call) -> None:
        """Raise ForbiddenError unless the caller may run the listener's function, and see all of its events."""
        call.check(one.name)
        caller, namespace = call.caller, call.request.namespace
        if caller is LOCAL:
            return
        if one.everywhere:
            caller.check_everywhere(Permission.READ)
        elif (granted := caller.functions(Permission.READ, namespace)) is not None:
            for pattern in one.functions or ("*",):
                if not _is_within(pattern, granted):
                    raise ForbiddenError(
                        f"{caller.name!r} lacks the permission {Permission.READ.value!r} for all functions that {pattern!r}"
                        f" names, whose events the listener {one.name!r} is to get: give it functions of yours with function="
                    )
        if ACTED in types_of(one.types):
            caller.check_all(Permission.ADMIN, EVERY_NAMESPACE if one.everywhere else namespace)


def _is_within(pattern: str, granted: Iterable[str]) -> bool:
    """Return whether the patterns of grants, which are names or beginnings with a ``*``, name all functions of a pattern."""
    return any(pattern.startswith(one[:-1]) if one.endswith("*") else pattern == one for one in granted)


def _subscription(one: DeclaredListener, namespace: str) -> Subscription:
    """Return a listener as it is stored. Raises UsageError."""
    try:
        _check_values(one)
        return Subscription(
            target=Target.LISTENER,
            namespace=namespace,
            name=one.name,
            interest=Interest(
                types_of(one.types), ANY if one.everywhere else namespace, one.functions, check_tags(one.tags)
            ),
            function=one.name,
            options=Options(one.retry, one.timeout, one.heartbeat, tags=check_tags(one.job_tags, "job_tags")),
            priority=int(PRIORITY_BY_NAME[one.priority]),
        )
    except UsageError as error:
        raise UsageError(f"listener {one.name!r}: {error}") from None


def _check_values(one: DeclaredListener) -> None:
    check_name(name_bytes(one.name))
    check_seconds(one, "timeout", "heartbeat")
    if one.retry is not None:
        check_retry(one.retry)
    if one.name in one.functions:
        raise UsageError("it cannot get events about its own function, because each delivery would cause the next one")


def check_name(name: bytes) -> None:
    """Raise UsageError unless a listener can have the name, which is that of its function."""
    problem = submission_problem(name, b"", b"", 0)
    if problem is not None:
        raise UsageError(problem.message)


def _deployed_as(namespace: str, app: str) -> str:
    return key_of_text(namespace, app) + _OF_LISTENERS


def _other_code(app: str, name: str) -> Difference:
    return Difference(
        Kind.LEFT.value,
        name,
        f"another App has the name {app!r}, with listeners whose functions this code lacks: this one is {name!r} here. Name it"
        " with App(name=…). If those are of an earlier version of this code, remove them with mainspring listeners remove",
        warning=True,
    )


def _shown(one: Subscription) -> dict[str, Any]:
    """Return a listener as the audit shows it."""
    return {
        "types": sorted(one.interest.types),
        "functions": list(one.interest.functions),
        "tags": list(one.interest.tags),
        "everywhere": one.interest.namespace == ANY,
        "app": one.app,
    }


def _described(progress: Progress) -> ListenerInfo:
    one, delivered, behind = progress
    subscription = one.subscription
    interest = subscription.interest
    return ListenerInfo(
        name=subscription.name,
        function=subscription.function,
        types=sorted(interest.types),
        functions=list(interest.functions),
        tags=list(interest.tags),
        everywhere=interest.namespace == ANY,
        app=subscription.app,
        state="paused" if subscription.paused else "active",
        paused=subscription.paused or None,
        delivered=str(delivered),
        behind=behind,
        failures=one.failures,
        missed=str(subscription.missed) if subscription.missed else None,
    )

"""The subscriptions' unit of work in one transaction: it makes jobs of events, and follows the ends of these jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import WEBHOOK_PAUSED, WEBHOOK_RESUMED, WebhookFields
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, owner
from mainspring.jobs.slices import submit_new
from mainspring.subscriptions.model import Delivery, Subscribed, Target, job_of, of_owner
from mainspring.subscriptions.store import (
    Deliver,
    Redeliver,
    RemoveSubscription,
    RepairDeliveries,
    Repaired,
    SaveSubscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.storage.engine import Operation, Plan
    from mainspring.subscriptions.model import Subscription
    from mainspring.subscriptions.store import Portion, SubscriptionTables

FOLLOWS: Final = frozenset({Ended})
WRITES: Final[frozenset[type[Operation]]] = frozenset(
    {SaveSubscription, RemoveSubscription, Deliver, Redeliver, RepairDeliveries}
)


class SubscriptionUnit:
    """``jobs.slices.SliceWork``."""

    def __init__(self, tables: SubscriptionTables) -> None:
        self._tables = tables
        self._new: list[Job] = []

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: the default for engines that run one transaction at a time."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Let the next delivery about the same job follow, and count failures."""
        ended = []
        for notice in notices:
            whose = owner(notice.options)
            assert whose is not None, "this slice owns the job"
            assert isinstance(notice, Ended)
            ended.append((*of_owner(whose), notice.state, notice.ended_us))
        await self._end(ended)

    async def _end(self, ended: Sequence[tuple[str, int, int, int, int]]) -> int:
        """End deliveries, each given by subscription, subject, number, state of its job, and time; return how many there were."""
        stored = dict(await self._tables.load(sorted({one[0] for one in ended})))
        gone = await self._tables.end(sorted({one[:3] for one in ended if one[1]}))
        following = {(one.subscription, one.subject): one for one in await self._tables.next({one[:2] for one in gone})}
        counted = 0
        changed: dict[str, Subscribed] = {}
        for name, subject, number, state, now_us in ended:
            if subject and (name, subject, number) not in gone:
                continue
            counted += 1
            one = stored.get(name)
            if one is None:
                continue
            after = _counted(one, State(state))
            if after is not one:
                stored[name] = changed[name] = after
                self._note_pause(one, after)
            if (waiting := following.pop((name, subject), None)) is not None and not waiting.job:
                job = self._job(waiting, one.subscription, now_us)
                await self._tables.become_job(waiting._replace(job=job.id))
        await self._tables.save(changed.values())
        return counted

    def _note_pause(self, before: Subscribed, after: Subscribed, act: Act | None = None) -> None:
        """Record the event of a webhook that was paused or resumed."""
        one = after.subscription
        if one.target is Target.WEBHOOK and bool(before.subscription.paused) != bool(one.paused):
            kind = WEBHOOK_PAUSED if one.paused else WEBHOOK_RESUMED
            by, depth = ("", 0) if act is None else (act.who, act.depth)
            fields = WebhookFields(reason=one.paused, by=by, depth=depth)
            self._tables.events.add(NewEvent(kind, one.namespace, one.function, one.name, 0, fields))

    def _job(self, delivery: Delivery, subscription: Subscription, now_us: int) -> Job:
        job = job_of(delivery, subscription, self._tables.lifecycle.next_id(), now_us)
        self._new.append(job)
        return job

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes; return a function that returns its outcome."""
        outcome: Any
        match operation:
            case SaveSubscription():
                outcome = await self._save(operation)
            case RemoveSubscription():
                outcome = bool(await self._tables.load([operation.id]))
                await self._tables.remove(operation.id)
                await self._tables.change_interests((), [operation.id], operation.now_us)
            case Deliver():
                outcome = await self._deliver(operation)
            case Redeliver():
                outcome = await self._redeliver(operation)
            case RepairDeliveries():
                outcome = await self._repair(operation)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation that writes subscriptions")
        return lambda: outcome

    async def _save(self, operation: SaveSubscription) -> Subscribed | None:
        new = operation.subscription
        before = (await self._tables.load([new.id])).get(new.id)
        if operation.version is not None and operation.version != (0 if before is None else before.version):
            return None
        if before is None:
            number = await self._tables.last_number()
            after = Subscribed(replace(new, created_us=operation.now_us, begun=number), number, version=1)
        else:
            resumed = before.subscription.paused and not new.paused
            after = before._replace(
                subscription=replace(new, created_us=before.subscription.created_us, begun=before.subscription.begun),
                version=before.version + 1,
                failures=0 if resumed else before.failures,
            )
            self._note_pause(before, after, operation.act)
        await self._tables.save([after])
        await self._tables.change_interests([after.interest], (), operation.now_us)
        return after

    async def _deliver(self, operation: Deliver) -> list[str]:
        portions = {one.id: one for one in operation.portions}
        stored = await self._tables.load(sorted(portions))
        late = [name for name, one in portions.items() if not _is_next(one, stored.get(name))]
        for name in late:
            del portions[name]
        deliveries = [delivery for portion in portions.values() for delivery in portion.deliveries]
        await self._make(deliveries, stored, operation.now_us)
        await self._tables.save([_delivered(stored[name], one) for name, one in portions.items()])
        return late

    async def _redeliver(self, operation: Redeliver) -> int:
        stored = await self._tables.load([operation.id])
        if operation.id not in stored:
            return 0
        await self._make(operation.deliveries, stored, operation.now_us)
        return len(operation.deliveries)

    async def _make(self, deliveries: Sequence[Delivery], stored: Mapping[str, Subscribed], now_us: int) -> None:
        """Make jobs of deliveries, but for those that have to wait for others about the same job."""
        keys = {(one.subscription, one.subject) for one in deliveries}
        under_way = await self._tables.under_way([key for key in sorted(keys) if key[1]])
        new: list[Delivery] = []
        for delivery in deliveries:
            key = (delivery.subscription, delivery.subject)
            if key in under_way:
                new.append(delivery)
                continue
            job = self._job(delivery, stored[delivery.subscription].subscription, now_us)
            if delivery.subject:
                new.append(delivery._replace(job=job.id))
                under_way.add(key)
        await self._tables.add(new)

    async def _repair(self, operation: RepairDeliveries) -> Repaired:
        deliveries = await self._tables.with_jobs(operation.after, operation.limit)
        jobs = await self._tables.look_up([one.job for one in deliveries])
        ended = []
        for one in deliveries:
            job = jobs.get(one.job)
            if job is None or State(job.state).ended:
                state = int(State.CANCELLED) if job is None else job.state
                ended.append((one.subscription, one.subject, one.number, state, operation.now_us))
        number = await self._end(ended) if ended else 0
        return Repaired(number, deliveries[-1].job if len(deliveries) == operation.limit else None)

    async def flush(self) -> None:
        """Store the jobs of deliveries."""
        new, self._new = self._new, []
        if new:
            await submit_new(self._tables, new)


def _is_next(portion: Portion, stored: Subscribed | None) -> bool:
    """Return whether a portion follows what its subscription had, and the subscription is not paused."""
    return stored is not None and stored.number == portion.after and not stored.subscription.paused


def _delivered(stored: Subscribed, portion: Portion) -> Subscribed:
    """Return a subscription after a portion of its events."""
    after = stored._replace(number=portion.to)
    if not portion.missed:
        return after
    return after._replace(subscription=replace(after.subscription, missed=portion.missed))


def _counted(stored: Subscribed, state: State) -> Subscribed:
    """Return a subscription after the end of a delivery; the same object if nothing has changed."""
    if state is State.SUCCEEDED:
        return stored._replace(failures=0) if stored.failures else stored
    if state is not State.FAILED:
        return stored
    after = stored._replace(failures=stored.failures + 1)
    subscription = after.subscription
    if not subscription.paused and 0 < subscription.pause_after <= after.failures:
        why = f"{after.failures} deliveries in a row have failed for good"
        after = after._replace(subscription=replace(subscription, paused=why), version=after.version + 1)
    return after

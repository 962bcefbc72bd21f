"""Subscriptions: each event becomes one job, and those about one job follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.access.caller import Act
from mainspring.event_log import types
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import ShowInterests
from mainspring.event_log.types import types_of
from mainspring.jobs.model import Options
from mainspring.jobs.rules import Event
from mainspring.subscriptions.model import Delivery, Subscribed, Subscription, Target
from mainspring.subscriptions.store import (
    Deliver,
    ListSubscriptions,
    Portion,
    Redeliver,
    RemoveSubscription,
    RepairDeliveries,
    SaveSubscription,
)
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.events import brief, numbered, want
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

ID = "listener:default/tell"
SUBJECT = 77


def listener(name: str = "tell", **values: Any) -> Subscription:
    defaults: dict[str, Any] = {
        "target": Target.LISTENER,
        "namespace": "default",
        "interest": Interest(types_of(["job.failed"])),
        "function": name,
    }
    return Subscription(name=name, **{**defaults, **values})


def subscribe(store: Store, subscription: Subscription | None = None, version: int | None = None) -> Subscribed | None:
    (saved,) = store.group(SaveSubscription(subscription or listener(), NOW, version))
    assert saved is None or isinstance(saved, Subscribed)
    return saved


def about(*numbers: int, subject: int = SUBJECT, name: str = ID) -> list[Delivery]:
    return [Delivery(name, subject, number, b"[%d]" % number) for number in numbers]


def deliver(store: Store, after: int, to: int, deliveries: list[Delivery], name: str = ID) -> list[str]:
    (late,) = store.group(Deliver([Portion(name, after, to, deliveries)], NOW))
    assert isinstance(late, list)
    return late


def payloads(store: Store, function: bytes = b"tell") -> list[bytes]:
    """Lease the deliveries that are pending, and return their payloads."""
    return [job.payload for job in leased(store, function)]


def leased(store: Store, function: bytes = b"tell") -> list[Job]:
    return sorted(store.claim(function), key=lambda job: job.id)


class SubscriptionSuite(StoreFixtures):
    """The contract of ``mainspring.subscriptions.store``."""

    def test_a_subscription_is_kept_with_its_interest(self, store: Store) -> None:
        saved = subscribe(store)
        assert saved == Subscribed(replace(listener(), created_us=NOW), 0, 1)
        store.reopen()
        assert store.read(ListSubscriptions()) == [saved]
        assert [one.id for one in store.read(ShowInterests()).interests] == [ID]
        job = store.leased()
        store.end(job, Event.FAIL)
        assert brief(store) == [(types.FAILED, job.id)]

    def test_a_change_needs_the_version_that_its_caller_has_seen(self, store: Store) -> None:
        assert subscribe(store, version=1) is None
        assert subscribe(store, version=0) is not None
        assert subscribe(store, version=0) is None
        changed = subscribe(store, listener(paused="not now"), version=1)
        assert changed is not None
        assert (changed.version, changed.subscription.paused, changed.subscription.created_us) == (2, "not now", NOW)
        assert store.read(ListSubscriptions()) == [changed]

    def test_a_new_subscription_gets_no_earlier_events(self, store: Store) -> None:
        want(store, "job.failed", name="other")
        store.end(store.leased(), Event.FAIL)
        assert len(brief(store)) == 1
        saved = subscribe(store)
        assert saved is not None
        assert saved.number == 1

    def test_an_event_becomes_one_job_however_often_it_is_delivered(self, store: Store) -> None:
        subscribe(store, listener(options=Options(timeout=9.0, tags=("x",)), priority=0))
        assert deliver(store, 0, 5, about(3)) == []
        assert deliver(store, 0, 5, about(3)) == [ID]
        assert deliver(store, 4, 9, about(7)) == [ID]
        (job,) = leased(store)
        assert job.options is not None
        assert (job.payload, job.priority, job.options.timeout, job.options.tags) == (b"[3]", 0, 9.0, ("x",))
        assert job.options.depth == 1
        (stored,) = store.read(ListSubscriptions())
        assert stored.number == 5
        store.end(job)

    def test_events_about_one_job_are_delivered_one_after_the_other(self, store: Store) -> None:
        subscribe(store)
        assert deliver(store, 0, 3, [*about(1, 3), *about(2, subject=5)]) == []
        first, other = leased(store)
        assert [first.payload, other.payload] == [b"[1]", b"[2]"]
        assert deliver(store, 3, 4, about(4)) == []
        store.end(other)
        assert payloads(store) == []
        store.end(first, Event.FAIL)
        (second,) = leased(store)
        assert second.payload == b"[3]"
        store.end(second)
        (third,) = leased(store)
        assert third.payload == b"[4]"
        store.end(third)
        assert deliver(store, 4, 5, about(5)) == []
        assert payloads(store) == [b"[5]"]

    def test_events_about_no_job_run_side_by_side(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 2, about(1, 2, subject=0))
        assert payloads(store) == [b"[1]", b"[2]"]

    def test_a_cancelled_delivery_lets_the_next_one_follow(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 2, about(1, 2))
        store.cancel(store.lifecycle.committed[-1])
        assert payloads(store) == [b"[2]"]

    def test_a_subscription_may_be_paused(self, store: Store) -> None:
        subscribe(store)
        subscribe(store, listener(paused="not now"))
        assert deliver(store, 0, 1, about(1)) == [ID]
        subscribe(store)
        assert deliver(store, 0, 1, about(1)) == []

    def test_failures_in_a_row_pause_a_subscription(self, store: Store) -> None:
        subscribe(store, listener(pause_after=2))

        def end(number: int, event: Event) -> Subscribed:
            deliver(store, number - 1, number, about(number, subject=0))
            (job,) = leased(store)
            store.end(job, event)
            (stored,) = store.read(ListSubscriptions())
            return stored

        assert end(1, Event.FAIL).failures == 1
        assert end(2, Event.SUCCEED).failures == 0
        assert not end(3, Event.FAIL).subscription.paused
        paused = end(4, Event.FAIL)
        assert paused.subscription.paused == "2 deliveries in a row have failed for good"
        assert subscribe(store, replace(paused.subscription, paused=""), paused.version) is not None
        (stored,) = store.read(ListSubscriptions())
        assert stored.failures == 0

    def test_the_pause_of_a_webhook_is_an_event_of_the_same_transaction(self, store: Store) -> None:
        want(store, "webhook.*")
        subscribe(store)
        hook = listener("crm", target=Target.WEBHOOK, function="webhook:crm", pause_after=1)
        subscribe(store, hook)
        deliver(store, 0, 1, about(1, subject=0, name=hook.id), hook.id)
        (job,) = leased(store, b"webhook:crm")
        store.end(job, Event.FAIL)
        assert numbered(store, types=types_of(["webhook.*"]))[0].fields == {
            "reason": "1 deliveries in a row have failed for good"
        }
        resume = SaveSubscription(hook, NOW)
        resume.act = Act("webhooks.resume", "ann")
        store.group(resume)
        store.group(SaveSubscription(replace(hook, paused="moving"), NOW))
        store.group(SaveSubscription(replace(hook, paused="moved"), NOW))
        store.group(SaveSubscription(replace(listener(), paused="a listener has no such event"), NOW))
        found = [
            (one.type, one.namespace, one.function, one.subject)
            for one in numbered(store, types=types_of(["webhook.*"]))
        ]
        about_hook = "default", "webhook:crm", "crm"
        kinds = [types.WEBHOOK_PAUSED, types.WEBHOOK_RESUMED, types.WEBHOOK_PAUSED]
        assert found == [(kind, *about_hook) for kind in kinds]
        assert [one.fields for one in numbered(store, types=types_of(["webhook.*"]))[1:]] == [
            {"by": "ann"},
            {"reason": "moving"},
        ]

    def test_an_event_is_delivered_once_more_behind_those_under_way(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 4, [*about(1, 2), *about(3, subject=0), *about(4, subject=78)])
        first = {job.payload: job for job in leased(store)}
        assert sorted(first) == [b"[1]", b"[3]", b"[4]"]
        store.end(first[b"[4]"])
        redeliver = Redeliver(ID, [*about(1, 2), *about(3, subject=0), *about(4, subject=78)], NOW)
        assert store.group(redeliver) == [4]
        assert payloads(store) == [b"[3]", b"[4]"], "1 is under way, and 2 waits for it"
        store.end(first[b"[1]"])
        assert payloads(store) == [b"[2]"]
        assert payloads(store) == []
        (stored,) = store.read(ListSubscriptions())
        assert stored.number == 4
        assert store.group(Redeliver("listener:default/other", about(1), NOW)) == [0]

    def test_a_subscription_knows_where_it_began(self, store: Store) -> None:
        want(store, "job.*")
        store.end(store.leased())
        number = numbered(store)[-1].number
        saved = subscribe(store)
        assert saved is not None
        assert (saved.number, saved.subscription.begun) == (number, number)
        store.end(store.leased())
        numbered(store)
        changed = subscribe(store, listener(begun=77))
        assert changed is not None
        assert changed.subscription.begun == number

    def test_a_removed_subscription_has_no_deliveries_that_wait(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 2, about(1, 2))
        act = Act("webhooks.remove", "ann")
        removal = RemoveSubscription(ID, NOW)
        removal.act = act
        assert store.group(removal) == [True]
        assert store.group(RemoveSubscription(ID, NOW)) == [False]
        assert store.read(ShowInterests()).interests == []
        (job,) = leased(store)
        store.end(job)
        assert payloads(store) == []

    def test_a_delivery_that_ended_without_a_notice_is_repaired(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 2, about(1, 2))
        (job,) = leased(store)
        assert store.group(RepairDeliveries(NOW)) == [(0, None)]
        assert job.options is not None
        store.end(replace(job, options=replace(job.options, owner=None)))
        assert payloads(store) == []
        assert store.group(RepairDeliveries(NOW)) == [(1, None)]
        assert payloads(store) == [b"[2]"]
        assert store.group(RepairDeliveries(NOW)) == [(0, None)]

    def test_deliveries_that_go_on_hide_none_behind_them_from_the_repair(self, store: Store) -> None:
        subscribe(store)
        deliver(store, 0, 4, [*about(1, subject=5), *about(2, subject=6), *about(3, 4)])
        *others, job = leased(store)
        assert job.options is not None
        store.end(replace(job, options=replace(job.options, owner=None)))
        ((number, place),) = store.group(RepairDeliveries(NOW, limit=2))
        assert (number, place) == (0, others[-1].id)
        assert store.group(RepairDeliveries(NOW, place, limit=2)) == [(1, None)]
        assert payloads(store) == [b"[4]"]

"""Weeks of orders, returns and subscriptions, in milliseconds."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest
from shop.models import Decision, Delivery, Item, Order, Packed, Receipt
from shop.tasks import parcels, payments
from shop.workflows import (
    arrived,
    checkout,
    decided,
    newsletter,
    packed,
    reconcile,
    restock,
    return_goods,
    stopped,
    subscription,
)

from mainspring import JobCancelled, JobFailed
from shop import database

if TYPE_CHECKING:
    from mainspring.testing import InMemory

ORDER = Order(number=17, email="ada@example.org", items=[Item(product="cat", pieces=2)], cents=4500)


def test_an_order_is_delivered_after_days_and_survives_its_worker(fleet: InMemory) -> None:
    begun, asked = fleet.now, count(1)
    fleet.mock(parcels.state, lambda _parcel: "delivered" if next(asked) > 6 else "on_its_way")
    run = checkout.options(id="order-17").submit(ORDER)
    fleet.advance("1d")
    fleet.crash_worker()
    run.signal(packed, Packed(by="eva"))
    assert fleet.result(run) == Receipt(number=17, payment="payment-17", parcel="parcel-17", packed_by="eva")
    assert fleet.now - begun >= timedelta(days=2)
    assert database.payments() == {"payment-17": "captured"}
    assert database.mails() == [("ada@example.org", "order 17 is on its way")]
    assert fleet.history(run).kinds().count("ActivityTaskScheduled") == 5 + 7


def test_an_order_that_nobody_packs_is_undone(fleet: InMemory) -> None:
    with pytest.raises(JobFailed, match="TimeoutError"):
        fleet.result(checkout.submit(ORDER))
    assert database.stock("cat") == 10
    assert database.payments() == {"payment-17": "refunded"}


def test_a_cancelled_order_is_undone(fleet: InMemory) -> None:
    run = checkout.submit(ORDER)
    fleet.advance("1h")
    assert database.stock("cat") == 8
    run.cancel("changed my mind")
    with pytest.raises(JobCancelled):
        fleet.result(run)
    assert database.stock("cat") == 10
    assert database.payments() == {"payment-17": "refunded"}


def test_an_order_that_the_bank_refuses_has_no_payment(fleet: InMemory) -> None:
    with pytest.raises(JobFailed, match="the bank refuses"):
        fleet.result(checkout.submit(ORDER.model_copy(update={"cents": 2_000_000})))
    assert (database.stock("cat"), database.payments()) == (10, {})


def test_a_lost_parcel_is_a_case_for_the_staff(fleet: InMemory) -> None:
    fleet.mock(parcels.state, "on_its_way")
    run = checkout.submit(ORDER)
    run.signal(packed, Packed(by="eva"))
    fleet.result(run)
    assert ("staff@shop.example", "parcel-17 is lost") in database.mails()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_staff_decides_about_a_return(fleet: InMemory, accepted: bool) -> None:
    fleet.result(payments.authorize.submit(17, 4500))
    run = return_goods.submit(17, "ada@example.org", ORDER.items)
    run.signal(decided, Decision(accepted=accepted, by="tom"))
    assert fleet.result(run) is accepted
    assert database.payments() == {"payment-17": "refunded" if accepted else "authorized"}


def test_a_return_that_nobody_decides_is_accepted_after_a_week(fleet: InMemory) -> None:
    begun = fleet.now
    assert fleet.result(return_goods.submit(17, "ada@example.org", ORDER.items)) is True
    assert fleet.now - begun >= timedelta(days=7)


def test_a_subscription_orders_each_month_until_it_is_stopped(fleet: InMemory) -> None:
    run = subscription.submit(ORDER)
    fleet.advance("31d")
    checkout.get("order-17000").signal(packed, Packed(by="eva"))
    fleet.advance("35d")  # nobody packs the second one
    run.signal(stopped, "enough cats")
    assert fleet.result(run) == 2
    assert [subject for _, subject in database.mails()] == [
        "order 17000 is on its way",
        "order 17001 could not be sent; we try again next month",
        "your subscription is stopped: enough cats",
    ]


def test_payments_without_an_open_order_are_refunded(fleet: InMemory) -> None:
    fleet.result(payments.authorize.submit(3, 100))
    run = checkout.options(id="order-17").submit(ORDER)
    fleet.advance("1h")
    assert run.state == "running"
    assert fleet.result(reconcile.submit()) == 1
    assert database.payments() == {"payment-3": "refunded", "payment-17": "authorized"}


def test_a_bad_address_does_not_stop_the_newsletter(fleet: InMemory) -> None:
    for email in ("ada@example.org", "bob", "eve@example.org"):
        database.add_customer(email)
    assert fleet.result(newsletter.submit()) == {"sent": 2, "failed": 1}
    assert sorted(recipient for recipient, _ in database.mails()) == ["ada@example.org", "eve@example.org"]


def test_what_runs_out_is_ordered_and_put_into_the_stock(fleet: InMemory) -> None:
    run = restock.submit()
    run.signal(arrived, Delivery(product="owl", pieces=20))
    assert fleet.result(run) == ["owl"]
    assert database.stock("owl") == 21


def test_a_missing_delivery_is_a_case_for_the_staff(fleet: InMemory) -> None:
    assert fleet.result(restock.submit()) == []
    assert database.mails()[-1] == ("staff@shop.example", "not delivered: owl")

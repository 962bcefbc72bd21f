"""Tasks with their retries, limits and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shop.models import Item
from shop.tasks import catalog, mail, partners, payments, stock

from mainspring import JobFailed
from shop import database

if TYPE_CHECKING:
    from mainspring.testing import InMemory


def test_an_order_takes_all_its_pieces_or_none(fleet: InMemory) -> None:
    order = [Item(product="cat", pieces=3), Item(product="owl", pieces=2)]
    with pytest.raises(JobFailed, match="owl is sold out"):
        fleet.result(stock.reserve.submit(1, order, 0.0))
    assert (database.stock("cat"), database.stock("owl")) == (10, 1)


def test_a_reservation_that_runs_twice_takes_the_pieces_once(fleet: InMemory) -> None:
    for _ in range(2):
        fleet.result(stock.reserve.submit(1, [Item(product="cat", pieces=3)], 0.0))
    assert database.stock("cat") == 7
    fleet.result(stock.release.submit(1))
    assert database.stock("cat") == 10


def test_a_bad_address_is_not_tried_again(fleet: InMemory) -> None:
    job = mail.send.submit("nobody", "hello")
    with pytest.raises(JobFailed, match="'nobody' is no address"):
        fleet.result(job)
    assert job.info()["attempt"] == 1


def test_the_bank_is_asked_again_until_it_answers(fleet: InMemory) -> None:
    answers = iter([ConnectionError("away"), ConnectionError("away"), None])

    def bank(_number: int, _cents: int) -> str:
        answer = next(answers)
        if answer is not None:
            raise answer
        return "payment-7"

    fleet.mock(payments.authorize, bank)
    job = payments.authorize.submit(7, 100)
    assert fleet.result(job) == "payment-7"
    assert job.info()["attempt"] == 3


def test_a_busy_partner_is_called_later_and_no_attempt_counts(fleet: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([partners.PartnerBusyError(3600), None])

    def call(_partner: str, _body: dict[str, object]) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(partners, "call", call)
    begun, job = fleet.now, partners.notify.submit("acme", 7, "delivered")
    fleet.result(job)
    assert (fleet.now - begun).total_seconds() >= 3600
    assert job.info()["attempt"] == 1


def test_two_requests_for_one_picture_share_a_job(fleet: InMemory) -> None:
    first = catalog.thumbnail.options(delay="1m").submit("cat.png", 200)
    second = catalog.thumbnail.submit("cat.png", width=200)
    assert (second.handle, second.joined) == (first.handle, True)
    assert fleet.result(first).endswith("-200.webp")


def test_a_section_reports_how_far_it_is(fleet: InMemory) -> None:
    job = catalog.index.submit("toys")
    assert fleet.result(job) == 3

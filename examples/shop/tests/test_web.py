"""The front end, with a client that calls it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fastapi.testclient import TestClient
from shop.app import app
from shop.tasks import mail, parcels, partners
from shop.web import api

from shop import database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.testing import InMemory

ORDER = {"number": 17, "email": "ada@example.org", "items": [{"product": "cat"}], "cents": 4500}


@pytest.fixture
def browser(fleet: InMemory) -> Iterator[TestClient]:  # noqa: ARG001 - the node of the requests
    with TestClient(api) as browser:
        yield browser


def test_an_order_is_taken_packed_and_delivered(fleet: InMemory, browser: TestClient) -> None:
    place = "on_its_way"
    fleet.mock(parcels.state, lambda _parcel: place)
    for _ in range(2):  # a client that repeats its request
        assert browser.post("/orders", json=ORDER).json()["order"] == "/orders/17"
    fleet.settle()
    assert browser.get("/orders/17").json()["progress"]["text"] == "waiting for the warehouse"
    assert browser.get("/orders/17/receipt").status_code == 409
    for _ in range(2):
        packed = browser.post("/orders/17/packed", json={"by": "eva"}, headers={"Idempotency-Key": "box-1"})
        assert packed.status_code == 204
    fleet.settle()
    assert browser.get("/orders/17").json()["progress"]["text"] == "on its way"
    place = "delivered"
    fleet.advance("6h")
    assert browser.get("/orders/17/receipt").json()["packed_by"] == "eva"
    assert browser.delete("/orders/17").status_code == 409, "it is delivered"


def test_an_order_is_cancelled(fleet: InMemory, browser: TestClient) -> None:
    browser.post("/orders", json=ORDER)
    fleet.settle()
    assert browser.delete("/orders/17").json() == {"state": "running"}
    fleet.settle()
    assert browser.get("/orders/17").json()["state"] == "cancelled"
    assert database.payments() == {"payment-17": "refunded"}


def test_what_does_not_exist_and_what_is_wrong(browser: TestClient) -> None:
    assert browser.get("/orders/404").status_code == 404
    assert browser.post("/orders/404/packed", json={"by": "eva"}).status_code == 404
    assert browser.get("/pictures/H:nobody:9").status_code == 404
    assert browser.post("/orders", json=ORDER | {"cents": -1}).status_code == 422


def test_a_picture(browser: TestClient) -> None:
    handle = browser.post("/pictures/cat.png").json()["picture"]
    assert browser.get(f"/pictures/{handle}").json().endswith("-200.webp")


def test_the_staff_retries_what_has_failed(fleet: InMemory, browser: TestClient) -> None:
    job = mail.send.submit("nobody", "hello")
    fleet.settle()
    (row,) = browser.get("/staff/failed", params={"tag": "mail"}).json()
    assert row == {"job": job.handle, "task": "mail.send", "error": "ValueError: 'nobody' is no address"}
    body = {"args": {"recipient": "ada@example.org", "subject": "hello"}}
    assert browser.post(f"/staff/jobs/{job.handle}/retry", json=body).json() == {"state": "pending"}
    fleet.settle()
    assert database.mails() == [("ada@example.org", "hello")]


def test_the_staff_pauses_partners_and_sees_open_orders(fleet: InMemory, browser: TestClient) -> None:
    browser.put("/staff/partners/paused", params={"paused": True, "reason": "acme is moving"})
    call = partners.notify.submit("acme", 7, "delivered")
    browser.post("/orders", json=ORDER)
    fleet.settle()
    assert (call.state, browser.get("/staff/orders").json()) == ("pending", ["17"])
    browser.put("/staff/partners/paused", params={"paused": False})
    assert fleet.result(call) is None


def test_without_a_server_a_client_is_asked_to_repeat(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("SHOP_DATABASE", f"{tmp_path}/shop.db")
    before = app.connect_to("127.0.0.1:1")
    try:
        with TestClient(api) as browser:
            answer = browser.post("/orders", json=ORDER)
    finally:
        app.connect_to(before)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")

"""The schedules fire at their times, and do what they should for these times."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from fastapi.testclient import TestClient
from shop.app import app
from shop.models import Item
from shop.tasks import payments, stock
from shop.web import api

from mainspring.testing import in_memory
from shop import database

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_day_is_closed_and_mailed_and_forgotten_pieces_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    database.receive("cat", 10)
    database.receive("owl", 1)
    with in_memory(app) as fleet:
        today = str(fleet.now.date())
        fleet.result(payments.authorize.submit(7, 4500))
        fleet.result(payments.capture.submit("payment-7", today))
        fleet.result(stock.reserve.submit(8, [Item(product="cat")], (fleet.now - timedelta(days=5)).timestamp()))
        with TestClient(api) as browser:
            assert browser.post("/staff/restock").status_code == 202, "the staff runs a schedule before its time"
        fleet.advance("1d")
    assert database.stock("cat") == 10
    assert ("owner@shop.example", f"{today}: 45.00 EUR") in database.mails()
    assert ("supplier@wholesale.example", "please send owl") in database.mails()


def test_seven_schedules_are_declared() -> None:
    app.load_tasks()
    assert {one.name for one in app.schedules.all()} == {
        "catalog.reindex",
        "newsletter",
        "reconcile",
        "reports.close_day",
        "reports.mail_day",
        "restock",
        "stock.sweep",
    }

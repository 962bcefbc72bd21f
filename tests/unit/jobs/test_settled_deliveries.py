from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs import settlement_records
from mainspring.jobs.settlement_records import SettledDeliveries

if TYPE_CHECKING:
    import pytest


def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement_records, "MAX_SETTLED", 2)
    last = SettledDeliveries()
    for number in (b"1", b"2", b"2", b"3"):
        last.add(b"H:n:1", number, b"succeeded")
    assert (b"H:n:1", b"1", b"succeeded") not in last
    assert (b"H:n:1", b"2", b"succeeded") in last
    assert (b"H:n:1", b"3", b"succeeded") in last
    assert (b"H:n:1", b"3", b"failed") not in last

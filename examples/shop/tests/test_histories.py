"""Orders that are open while a new version is deployed go on: today's code repeats what earlier code has done.

`mainspring workflows export order-17 -o tests/histories/order.json` records another one.
"""

from __future__ import annotations

from pathlib import Path

from shop.app import app

from mainspring.testing import assert_replays


def test_today_s_code_repeats_recorded_orders() -> None:
    assert_replays(app, Path(__file__).parent / "histories")

"""The reference of the HTTP API lists its routes and its problems."""

from __future__ import annotations

from .http_api import PAGE, written


def test_the_page_has_all_routes_and_problems() -> None:
    text = PAGE.read_text("utf-8")
    assert text == written(text), "run python -m tests.docs.http_api"

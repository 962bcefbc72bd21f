"""The references of the HTTP API and of the methods of Python list all that there is."""

from __future__ import annotations

from . import python_api
from .http_api import PAGE, written


def test_the_page_has_all_routes_and_problems() -> None:
    text = PAGE.read_text("utf-8")
    assert text == written(text), "run python -m tests.docs.http_api"


def test_the_page_of_python_has_all_methods_that_operate() -> None:
    text = python_api.PAGE.read_text("utf-8")
    assert text == python_api.written(text), "run python -m tests.docs.python_api"

"""Lists that commands read from a server in several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.api.access import ListActs
from mainspring.api.functions import ListFunctions
from mainspring.cli.calls import items

if TYPE_CHECKING:
    from mainspring.client.blocking import Client


class Pages:
    """A client that gets these answers."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.sent: list[dict[str, Any]] = []

    def call(self, _method: str, params: dict[str, Any], _timeout: float | None) -> dict[str, Any]:
        self.sent.append(params)
        return self._answers.pop(0)


def read(client: Any, request: Any, most: int | None = None) -> list[dict[str, Any]]:
    fake: Client = client
    return list(items(fake, request, most))


def test_each_page_begins_after_the_one_before() -> None:
    client = Pages({"items": [{"n": 1}], "next": "a"}, {"items": [{"n": 2}], "next": None})
    assert read(client, ListFunctions()) == [{"n": 1}, {"n": 2}]
    assert client.sent == [{"limit": 1000}, {"limit": 1000, "cursor": "a"}]


def test_no_more_are_requested_than_wanted() -> None:
    client = Pages({"items": [{}] * 1000, "next": "a"}, {"items": [{}] * 200, "next": "b"})
    assert len(read(client, ListActs(), 1200)) == 1200
    assert [params["limit"] for params in client.sent] == [1000, 200]


def test_pages_may_be_shorter_than_their_limit() -> None:
    client = Pages({"items": [], "next": "a"}, {"items": [{}], "next": None})
    assert len(read(client, ListActs(), 5)) == 1
    assert [params["limit"] for params in client.sent] == [5, 5]

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.cli.main import main
from mainspring.client.blocking import Client
from mainspring.client.outcomes import Submitted

if TYPE_CHECKING:
    from mainspring.client.session import Request

HANDLE = "H:node:1000000000001"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that were submitted."""
    requests: list[Request] = []

    def submit(_: Client, request: Request) -> Submitted:
        requests.append(request)
        return Submitted(HANDLE, joined=False)

    monkeypatch.setattr(Client, "submit", submit)
    monkeypatch.setattr(Client, "call", lambda *_: {"registered": True})
    return requests


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--delay 1h30m", {"delay": 5400}),
        ("--in 1h30m", {"delay": 5400}),
        ("--run-at 2030-01-01T00:00:00Z", {"run_at": "2030-01-01T00:00:00Z"}),
        ("--at 2030-01-01T00:00:00Z", {"run_at": "2030-01-01T00:00:00Z"}),
        ("--run-timeout 2m", {"timeout": 120}),
        ("--expires 1d", {"expires": 86_400}),
        ("--priority low", {"priority": "low"}),
    ],
)
def test_options(submitted: list[Request], words: str, options: dict[str, Any]) -> None:
    assert main(["submit", "f", "--background", *words.split()]) == 0
    (request,) = submitted
    assert msgspec.json.decode(request.options) == options


@pytest.mark.parametrize("name", ["--max-attempts", "--attempts"])
def test_attempts(submitted: list[Request], name: str) -> None:
    assert main(["submit", "f", "--background", name, "3"]) == 0
    assert msgspec.json.decode(submitted[0].options)["retry"]["max_attempts"] == 3


@pytest.mark.parametrize("argument", ["a\\xff", "a\udcff"])
def test_names_may_have_any_bytes(submitted: list[Request], argument: str) -> None:
    assert main(["submit", argument, "--background", "--unique", argument]) == 0
    assert (submitted[0].function, submitted[0].unique) == (b"a\xff", b"a\xff")

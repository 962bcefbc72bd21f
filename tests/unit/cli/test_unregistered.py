"""The hint of `mainspring submit` for a function that no worker has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.cli import submit
from mainspring.cli.main import main
from mainspring.client.blocking import Client
from mainspring.client.outcomes import Outcome, Submitted
from mainspring.errors import ConnectionLostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

HINT = "mainspring: no worker has registered resise; the job waits; did you mean 'resize'?\n"
NO_WORKER: dict[str, Any] = {"registered": False, "shared": False, "functions": ["resize", "mail"]}


class Server:
    """A server whose job ends during the second wait; if ``brief``, during the first."""

    def __init__(self, registered: object) -> None:
        self.registered = registered
        self.waited: list[float | None] = []
        self.brief = False

    def submit(self, *_: object) -> Submitted:
        return Submitted("H:n:1", False)

    def call(self, method: str, params: dict[str, Any], _timeout: float) -> object:
        assert (method, params) == ("functions.registered", {"function": "resise"})
        if isinstance(self.registered, Exception):
            raise self.registered
        return self.registered

    def outcome(self, handle: str, timeout: float | None, *, on_notice: object) -> Outcome:
        del on_notice
        self.waited.append(timeout)
        if len(self.waited) == 1 and not self.brief:
            raise TimeoutError
        return Outcome(handle, "succeeded", 1, None, b"done")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Server]:
    def start(registered: object) -> Server:
        server = Server(registered)
        monkeypatch.setattr(Client, "submit", server.submit)
        monkeypatch.setattr(Client, "call", server.call)
        monkeypatch.setattr(Client, "outcome", server.outcome)
        return server

    return start


def test_the_hint_is_printed_during_the_wait(
    serve: Callable[[object], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(NO_WORKER)
    assert main(["submit", "resise"]) == 0
    assert tuple(capsys.readouterr()) == ("done", HINT)
    assert server.waited == [submit.HINT_DELAY, None]


def test_the_delay_of_the_hint_counts_towards_the_timeout(serve: Callable[[object], Server]) -> None:
    server = serve(NO_WORKER)
    assert main(["submit", "resise", "--timeout", "5s"]) == 0
    assert server.waited == [submit.HINT_DELAY, 5 - submit.HINT_DELAY]


def test_a_job_that_ends_soon_gets_no_hint(
    serve: Callable[[object], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(UsageError("the command must not ask"))
    server.brief = True
    assert main(["submit", "resise"]) == 0
    assert tuple(capsys.readouterr()) == ("done", "")


def test_in_the_background_the_hint_is_printed_at_once(
    serve: Callable[[object], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    serve(NO_WORKER)
    assert main(["submit", "resise", "--background"]) == 0
    assert tuple(capsys.readouterr()) == ("H:n:1\n", HINT)


def test_on_a_shared_store_the_hint_names_its_source(
    serve: Callable[[object], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    serve({"registered": False, "shared": True, "functions": []})
    assert main(["submit", "resise", "-b"]) == 0
    expected = "mainspring: no worker has registered resise, as of the nodes' last heartbeats; the job waits\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    "registered",
    [
        {"registered": True, "shared": True, "functions": []},
        {"registered": None, "shared": True, "functions": ["resize"]},
        UsageError("there is no method 'functions.registered'"),
        ConnectionLostError("the connection to the server broke"),
        TimeoutError(),
    ],
)
def test_without_a_certain_answer_there_is_no_hint(
    serve: Callable[[object], Server], capsys: pytest.CaptureFixture[str], registered: object
) -> None:
    serve(registered)
    assert main(["submit", "resise"]) == 0
    assert main(["submit", "resise", "--background"]) == 0
    assert capsys.readouterr().err == ""

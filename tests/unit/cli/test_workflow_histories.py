from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.workflow_code.fake_node import FakeNode, FakeWorker

from mainspring import App, testing
from mainspring.cli.main import main
from mainspring.client.blocking import Client
from mainspring.errors import UsageError
from mainspring.workflows.history_json import FORMAT, decode_history, event_to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

APP = """
from mainspring import App

app = App()

@app.task
def charge(number: int) -> str:
    return f"paid {number}"

@app.workflow
async def test(number: int) -> str:
    return await charge.submit(number ADD)
"""


class Server:
    """A server with a history, which it answers in pages of two events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.connections = 0

    def call(self, method: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        del timeout
        assert params is not None
        assert (method, params["exact"]) == ("workflows.history", True)
        first = int(params.get("cursor", 1))
        page = self.events[first - 1 : first + 1]
        return {"items": page, "next": str(first + 2) if first + 1 < len(self.events) else None, "status": "open"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    server = Server()
    monkeypatch.setattr(Client, "call", lambda _, *arguments: server.call(*arguments))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same_app.py").write_text(APP.replace("ADD", ""))
    (tmp_path / "other_app.py").write_text(APP.replace("ADD", "+ 1"))
    (tmp_path / "no_app.py").write_text("from mainspring import App\napp = App()\n")
    server.events = [event_to_json(event) for event in history_of(tmp_path)]
    return server


def history_of(directory: Path) -> list[Any]:
    code: dict[str, Any] = {}
    exec((directory / "same_app.py").read_text(), code)
    workflow = code["app"].registry.workflows["test", "1"]
    worker = FakeWorker(workflow.code, FakeNode(b"[17]"), {"charge": lambda number: f"paid {number}"})
    worker.until_closed()
    return worker.node.events


@pytest.fixture
def run(server: Server, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    del server

    def command(*words: str) -> tuple[int, str, str]:
        code = main(["workflows", *words])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return command


def test_an_exported_run_agrees_with_its_code(run: Run, server: Server, tmp_path: Path) -> None:
    code, out, _ = run("export", "w-1")
    assert (code, json.loads(out)["format"], json.loads(out)["args"]) == (0, FORMAT, [17])
    assert run("export", "w-1", "-o", "h.json") == (0, "", "")
    assert (tmp_path / "h.json").read_text() == out
    assert run("replay", "h.json", "w-1", "same_app.py") == (0, "ok w-1: 11 events, 2 decisions\n" * 2, "")


def test_a_difference_shows_both_sides(run: Run) -> None:
    run("export", "w-1", "-o", "h.json")
    code, out, _ = run("replay", "h.json", "other_app.py")
    assert code == 1
    head, columns, first, following = out.splitlines()
    assert head.startswith(
        "differs w-1: 11 events, 2 decisions: the code differs from the history: recorded is activity #1"
    )
    assert columns.split("\t") == ["", "recorded", "code"]
    assert first.split("\t") == [">", "activity #1 charge [17]", "activity #1 charge [18]"]
    assert following.split("\t") == ["-", 'return "paid 17"', "-"]
    code, out, _ = run("replay", "h.json", "other_app.py", "--json")
    (found,) = json.loads(out)
    assert code == 1
    assert found["difference"]["code"] == ["activity #1 charge [18]"]
    assert found["difference"]["at"] == 0


def test_a_redacted_run_agrees_with_code_that_takes_the_same_way(run: Run, tmp_path: Path) -> None:
    run("export", "w-1", "--redact", "-o", "h.json")
    text = (tmp_path / "h.json").read_text()
    assert "[17]" not in text
    assert "paid" not in text
    assert decode_history(text.encode(), "h.json").redacted
    assert run("replay", "h.json", "other_app.py")[0] == 0
    (tmp_path / "h.json").write_text(text.replace('"charge"', '"pay"'))
    code, out, _ = run("replay", "h.json", "same_app.py")
    assert code == 1
    assert "\nthe history is redacted: " in out


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["replay"], 2, "give histories, and after them the file of the App"),
        (["replay", "same_app.py"], 2, "give histories, and after them the file of the App"),
        (["replay", "none.json", "same_app.py"], 2, "there is no file none.json: write one with mainspring workflows export"),
        (["replay", "broken.json", "same_app.py"], 2, "broken.json is broken: it is not JSON"),
        (["replay", "w-1", "none.py"], 2, "none.py"),
        (["replay", "w-1", "no_app.py"], 2, "w-1 is a run of test@1, and the App has no such workflow: it has none"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_named(run: Run, tmp_path: Path, words: list[str], code: int, problem: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    found, _, err = run(*words)
    assert found == code
    assert problem in err


def test_a_run_that_has_not_begun_has_no_history(run: Run, server: Server) -> None:
    server.events = []
    code, _, err = run("export", "w-1")
    assert code == 4
    assert "the run w-1 has not begun" in err


def test_assert_replays_shows_both_sides_of_each_difference(run: Run, tmp_path: Path) -> None:
    app: App = load(tmp_path / "same_app.py")
    other = load(tmp_path / "other_app.py")
    (tmp_path / "histories").mkdir()
    with pytest.raises(AssertionError, match=r"the directory .* has no file \*.json"):
        testing.assert_replays(app, tmp_path / "histories")
    run("export", "w-1", "-o", "histories/h.json")
    testing.assert_replays(app, "histories", tmp_path / "histories" / "h.json")
    with pytest.raises(AssertionError) as found:
        testing.assert_replays(other, "histories")
    assert "w-1 (test@1): the code differs from the history" in str(found.value)
    assert ">  activity #1 charge [17]   activity #1 charge [18]" in str(found.value).splitlines()
    with pytest.raises(AssertionError, match="no histories were given"):
        testing.assert_replays(app)
    with pytest.raises(UsageError, match="the App has no such workflow: it has none"):
        testing.assert_replays(load(tmp_path / "no_app.py"), "histories")


def load(file: Path) -> Any:
    code: dict[str, Any] = {"__name__": file.stem}
    exec(file.read_text(), code)
    return code["app"]

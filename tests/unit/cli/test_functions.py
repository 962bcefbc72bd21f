from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.cli.main import main
from mainspring.client.blocking import Client
from mainspring.errors import NotFoundError, SettingsError
from mainspring.quantities import format_rate, parse_rate

FUNCTION = {
    "function": "mail",
    "paused": True,
    "concurrency": 5,
    "concurrency_per_key": None,
    "rate": {"number": 100, "per": 60.0, "burst": 20},
    "rate_per_key": {"number": 1, "per": 0.5, "burst": 1},
    "source": "command",
    "waiting": 3,
    "running": 2,
    "workers": 1,
    "registered": True,
}
MISSPELT = "mial"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The calls to the server."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def call(_: Client, method: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        del timeout
        calls.append((method, params or {}))
        if method == "functions.show" and params == {"function": MISSPELT}:
            raise NotFoundError(f"there is no function {MISSPELT}")
        return {"items": [FUNCTION], "next": None} if method == "functions.list" else FUNCTION

    monkeypatch.setattr(Client, "call", call)
    return calls


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ("--concurrency-per-key 2", {"concurrency_per_key": 2}),
        ("--concurrency 5 --per-key none", {"concurrency": 5, "concurrency_per_key": None}),
        ("--rate 100/1m,20", {"rate": {"number": 100, "per": 60.0, "burst": 20}}),
        (
            "--rate none --rate-per-key 1/500ms",
            {"rate": None, "rate_per_key": {"number": 1, "per": 0.5, "burst": None}},
        ),
        ("--unlimited", {"unlimited": True}),
        ("--declared", {"declared": True}),
    ],
)
def test_options_become_fields_of_the_call(
    calls: list[tuple[str, dict[str, Any]]], options: str, params: dict[str, Any]
) -> None:
    assert main(["functions", "limit", "mail", *options.split()]) == 0
    assert calls == [("functions.show", {"function": "mail"}), ("functions.limit", {"function": "mail", **params})]


@pytest.mark.parametrize("command", ["pause", "resume", "show"])
def test_a_function_is_shown(
    calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["functions", command, "mail"]) == 0
    assert calls[-1] == (f"functions.{command}", {"function": "mail"})
    fields = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (fields["paused:"], fields["concurrency:"], fields["concurrency_per_key:"]) == ("paused", "5", "-")
    assert (fields["rate:"], fields["rate_per_key:"]) == ("100/1m,20", "1/500ms")


def test_functions_are_listed(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split("\t")[:5] == ["mail", "paused", "5", "-", "100/1m,20"]
    assert calls == [("functions.list", {"limit": 1000})]


@pytest.mark.parametrize("command", ["pause", "limit --concurrency 5"])
def test_an_unknown_function_is_refused_without_create(
    calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    verb, *options = command.split()
    assert main(["functions", verb, MISSPELT, *options]) == 4
    error = capsys.readouterr().err
    assert "the function mial has no jobs, workers or limits" in error
    assert "--create" in error
    assert error.endswith("did you mean 'mail'?\n")
    assert {method for method, _ in calls} == {"functions.show", "functions.list"}
    calls.clear()
    assert main(["functions", verb, MISSPELT, *options, "--create"]) == 0
    assert [(method, params["function"]) for method, params in calls] == [(f"functions.{verb}", MISSPELT)]


@pytest.mark.parametrize(
    ("waiting", "registered", "note"), [(3, False, "no worker"), (0, False, "-"), (3, True, "-"), (3, None, "-")]
)
def test_a_function_whose_jobs_have_no_worker_is_marked(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    waiting: int,
    registered: bool | None,
    note: str,
) -> None:
    function = FUNCTION | {"waiting": waiting, "registered": registered}
    monkeypatch.setattr(Client, "call", lambda *_: {"items": [function], "next": None})
    assert main(["functions", "list"]) == 0
    head, line = (text.split("\t") for text in capsys.readouterr().out.splitlines())
    assert dict(zip(head, line, strict=True))["note"] == note
    assert main(["functions", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [function]


def test_functions_of_an_older_server_have_no_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    older = {key: value for key, value in FUNCTION.items() if key != "registered"}
    monkeypatch.setattr(Client, "call", lambda *_: {"items": [older], "next": None})
    assert main(["functions", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("\t-")


@pytest.mark.parametrize("text", ["5", "5/", "/1m", "x/1m", "5/1", "5/1m,", "-5/1m", "5/1m,x", f"{'9' * 20}/1m"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["100/1m", "100/1m,20", "1/500ms", "3/2h", "none"])
def test_rates_are_written_as_they_are_read(text: str) -> None:
    rate = parse_rate(text)
    if rate is not None and rate["burst"] is None:
        rate["burst"] = rate["number"]
    assert (format_rate(rate) or "none") == text


@pytest.mark.parametrize("options", ["--concurrency -1", "--concurrency many", "--rate often"])
def test_the_error_for_an_invalid_limit_names_its_option(capsys: pytest.CaptureFixture[str], options: str) -> None:
    assert main(["functions", "limit", "mail", *options.split()]) == 2
    assert options.split()[0] in capsys.readouterr().err


def test_functions_of_all_pages_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {None: (["b", "d"], "x"), "x": ([], "y"), "y": (["a"], None)}

    def call(_: Client, method: str, params: dict[str, Any], timeout: float | None) -> Any:
        del timeout
        assert method == "functions.list"
        names, following = pages[params.get("cursor")]
        return {"items": [FUNCTION | {"function": name} for name in names], "next": following}

    monkeypatch.setattr(Client, "call", call)
    assert main(["functions", "list", "--json"]) == 0
    assert [function["function"] for function in json.loads(capsys.readouterr().out)] == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [("a\\xff", "a\\xff"), ("a\udcff", "a\\xff"), ("a\\\udcff", "a\\\\\\xff"), ("App\\Jobs", "App\\Jobs")],
)
def test_a_name_with_any_bytes_is_an_argument(
    calls: list[tuple[str, dict[str, Any]]], argument: str, text: str
) -> None:
    """Either as commands list it, or as the shell passes its bytes."""
    assert main(["functions", "pause", argument]) == 0
    assert calls[-1] == ("functions.pause", {"function": text})

"""Commands about tokens, the audit and marks, against answers of a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.cli.main import main
from mainspring.client.blocking import Client

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "ms_" + "A" * 48
GRANT = {"role": "operator", "namespace": "default", "functions": ["pay*"], "payloads": True}
TOKEN: dict[str, Any] = {
    "id": "0123",
    "name": "ci",
    "grants": [GRANT],
    "created_at": "2030-01-31T12:00:00.000000Z",
    "created_by": "local",
    "expires_at": None,
    "expired": False,
    "used_at": None,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, dict[str, Any]]]]:
    """Return a function that sets the answers of a server, and returns the list of calls that it will receive."""

    def answering(**answers: Any) -> list[tuple[str, dict[str, Any]]]:
        calls: list[tuple[str, dict[str, Any]]] = []

        def call(_: Client, method: str, params: dict[str, Any], timeout: float | None = None) -> Any:
            del timeout
            calls.append((method, params))
            answer = answers[method.replace(".", "_")]
            return answer.pop(0) if isinstance(answer, list) else answer

        monkeypatch.setattr(Client, "call", call)
        return calls

    return answering


def test_create_prints_the_token_alone(
    server: Callable[..., list[tuple[str, dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = server(tokens_create=TOKEN | {"token": SECRET})
    arguments = "tokens create --name ci --role operator --function pay* --function mail --payloads --expires 30d"
    assert main(arguments.split()) == 0
    assert capsys.readouterr().out == SECRET + "\n"
    ((method, params),) = calls
    assert method == "tokens.create"
    assert params["name"] == "ci"
    assert params["grants"] == [
        {"role": "operator", "namespace": "default", "functions": ["pay*", "mail"], "payloads": True}
    ]
    assert params["expires_at"].startswith("20")


def test_list_reads_all_pages_and_shows_grants_as_text(
    server: Callable[..., list[tuple[str, dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [{"items": [TOKEN], "next": "0123"}, {"items": [TOKEN | {"expired": True}], "next": None}]
    calls = server(tokens_list=[*pages])
    assert main(["tokens", "list"]) == 0
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split("\t")[0] == "id"
    assert "operator in default for pay* with payloads" in one
    assert two.endswith("expired")
    assert [params.get("cursor") for _, params in calls] == [None, "0123"]
    server(tokens_list=[*pages])
    assert main(["tokens", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [TOKEN, TOKEN | {"expired": True}]


def test_the_audit_is_listed_up_to_a_number_or_exported_whole(
    server: Callable[..., list[tuple[str, dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    act = {"number": 2, "at": "t", "what": "jobs.cancel", "who": "ann", "object": "H:n:1", "reason": "x"}
    pages = [{"items": [act], "next": "2"}, {"items": [act], "next": None}]
    calls = server(audit_list=[*pages])
    assert main(["audit", "list", "--limit", "1", "--what", "jobs.cancel"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert calls == [("audit.list", {"what": "jobs.cancel", "limit": 1})]
    calls = server(audit_list=[*pages])
    assert main(["audit", "list", "--export", "--everywhere"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [act, act]
    assert [params.get("cursor") for _, params in calls] == [None, "2"]


def test_whoami_shows_the_rights(
    server: Callable[..., list[tuple[str, dict[str, Any]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    identity = {"name": "ci", "token": "0123", "grants": [GRANT]}
    for answer, lacks in ((identity, "-"), ({**identity, "lacks": ["limits", "access"]}, "limits access")):
        server(whoami=answer)
        assert main(["whoami"]) == 0
        shown = capsys.readouterr().out
        assert "operator in default for pay* with payloads" in shown
        assert shown.splitlines()[-1].split(":")[1].strip() == lacks

"""The HTTP API of a node on ZooKeeper, which keeps no tokens: the node makes one at each start, and demands it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .http_port import Printed, ask, at_a_terminal, sign_in
from .stores import place_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.zookeeper.server import Ensemble

N = "/api/v1/namespaces/default"
NOT_KEPT = {
    "GET /api/v1/tokens": "tokens",
    f"GET {N}/audit": "acts",
    f"GET {N}/operations": "operations",
    "GET /api/v1/namespaces/team/jobs": "namespace",
}
"""Requests for what the store does not keep, with a word of the answer."""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def check_access(node: Printed) -> None:
    """Assert that the node demands its token or a session of its link."""
    assert ask(node.address, "GET", "/api/v1/status")[0] == 401
    assert ask(node.address, "GET", f"{N}/jobs", **bearer(node.token[:-1]))[0] == 401
    link = node.link.partition("link=")[2]
    status, cookie = sign_in(node.address, link=link)
    assert status == 303
    assert sign_in(node.address, link=link)[0] == 401, "the link signs in once"
    for credential in (bearer(node.token), {"Cookie": cookie}):
        status, _, shown = ask(node.address, "GET", "/api/v1/status", **credential)
        assert (status, shown["store"].partition(":")[0]) == (200, "zookeeper")
    status, _, caller = ask(node.address, "GET", "/api/v1/whoami", **bearer(node.token))
    assert (status, [grant["role"] for grant in caller["grants"]]) == (200, ["admin"])


def test_a_node_makes_a_token_and_a_link_at_each_start_and_demands_them(ensemble: Ensemble, tmp_path: Path) -> None:
    store = place_of(ensemble).url
    options = ("serve", "--gearman", "none", "--http", "127.0.0.1:0", "--store", store, "--name", "n1")
    with at_a_terminal(*options, cwd=tmp_path, token=True) as first:
        check_access(first)
        admin = bearer(first.token)
        submit = '{"function": "f", "args": [1]}'
        status, _, job = ask(first.address, "POST", f"{N}/jobs", submit, Content_Type="application/json", **admin)
        assert status == 201
        path = f"{N}/jobs/{job['handle']}"
        for request, word in (NOT_KEPT | {f"GET {path}/logs": "logs"}).items():
            status, _, problem = ask(first.address, *request.split(), **admin)
            assert (status, problem["type"]) == (422, "urn:mainspring:problem:unsupported"), (request, problem)
            assert word in problem["detail"], problem
            assert "ZooKeeper" in problem["detail"] or "SQLite" in problem["detail"], problem
        for where, body in (
            ("jobs", '{"function": "f", "deadline": 60}'),
            ("jobs", '{"function": "f", "start_within": 60}'),
            (f"jobs/{job['handle']}/clone", '{"deadline": 60}'),
            ("schedules", '{"name": "a", "every": 60, "start_within": 5}'),
        ):
            status, _, problem = ask(
                first.address, "POST", f"{N}/{where}", body, Content_Type="application/json", **admin
            )
            assert (status, problem["type"]) == (422, "urn:mainspring:problem:unsupported"), (where, problem)
            assert "keeps no deadlines" in problem["detail"], problem
    with at_a_terminal(*options, cwd=tmp_path, token=True) as second:
        assert ask(second.address, "GET", path, **admin)[0] == 401, "the token ended with its node"
        check_access(second)
        status, _, shown = ask(second.address, "GET", path, **bearer(second.token))
        assert (status, shown["state"]) == (200, "pending")

"""The HTTP port of a whole node."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from .processes import command, environment, mainspring, node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


@contextlib.contextmanager
def at_a_terminal(*arguments: str, cwd: Path) -> Iterator[tuple[str, str]]:
    """Run a node whose output is a terminal; yield the address of its HTTP port and the link that it prints."""
    ours, theirs = os.openpty()
    with (cwd / "node.log").open("wb") as errors:
        process = subprocess.Popen(
            command(*arguments), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors
        )
    os.close(theirs)
    try:
        seen = b""
        while (link := re.search(rb"^sign in.*: http://([^/\s]+)(\S+)\r?$", seen, re.MULTILINE)) is None:
            seen += os.read(ours, 4096)
        yield link[1].decode(), link[2].decode()
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)


def ask(
    address: str, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        head = {name.lower(): value for name, value in answer.getheaders()}
        is_json = "json" in head.get("content-type", "")
        return answer.status, head, json.loads(content) if is_json else content
    finally:
        connection.close()


def test_the_link_at_a_terminal_signs_a_browser_in_once(tmp_path: Path) -> None:
    options = ("serve", "--gearman", "none", "--http", "127.0.0.1:0", "--store", "memory://")
    with at_a_terminal(*options, cwd=tmp_path) as (address, link):
        assert ask(address, "GET", "/api/v1/status")[0] == 401
        assert ask(address, "GET", link)[0] == 200
        form = urlencode({"link": link.partition("link=")[2]})
        browser = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}
        status, head, _ = ask(address, "POST", "/login", form, **browser)
        assert status == 303
        cookie = head["set-cookie"].partition(";")[0]
        status, _, shown = ask(address, "GET", "/api/v1/status", Cookie=cookie)
        assert (status, shown["store"]) == (200, "memory://")
        assert ask(address, "POST", "/login", form, **browser)[0] == 401
        assert ask(address, "GET", "/api/v1/status", Cookie=cookie, Host="evil.example")[0] == 421
        assert ask(address, "POST", "/logout", Cookie=cookie, Sec_Fetch_Site="same-origin")[0] == 303
        assert ask(address, "GET", "/api/v1/status", Cookie=cookie)[0] == 401
    assert "msl_" not in (tmp_path / "node.log").read_text()


def test_streams_end_first_when_the_node_stops(tmp_path: Path) -> None:
    options = ("serve", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory://")
    with node(*options, cwd=tmp_path, faces=("gearman", "http")) as running:
        address = running.ports["http"]
        create = ("tokens", "create", "--name", "ci", "--role", "developer", "--server", running.address)
        token = mainspring(*create, cwd=tmp_path).stdout.decode().strip()
        bearer = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
        jobs = "/api/v1/namespaces/default/jobs"
        status, _, job = ask(address, "POST", jobs, '{"function": "wait"}', **bearer)
        assert status == 201
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("GET", f"{jobs}/{job['handle']}/stream", headers={"Authorization": f"Bearer {token}"})
        stream = connection.getresponse()
        assert (stream.status, stream.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        assert stream.readline().startswith(b"retry: ")
        running.signal(signal.SIGTERM)
        rest = stream.read()  # fails unless the stream is complete
        assert b'"state":"pending"' in rest
        assert running.wait() == 0
        connection.close()
    assert "rror" not in running.log.read_text()

"""The HTTP port of a whole node."""

from __future__ import annotations

import http.client
import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from .http_port import ask, at_a_terminal, sign_in
from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def test_the_link_at_a_terminal_signs_a_browser_in_once(tmp_path: Path) -> None:
    options = ("serve", "--gearman", "none", "--http", "127.0.0.1:0", "--store", "memory://")
    with at_a_terminal(*options, cwd=tmp_path) as (address, link, _):
        assert ask(address, "GET", "/api/v1/status")[0] == 401
        assert ask(address, "GET", link)[0] == 200
        form = {"link": link.partition("link=")[2]}
        status, cookie = sign_in(address, **form)
        assert status == 303
        status, _, shown = ask(address, "GET", "/api/v1/status", Cookie=cookie)
        assert (status, shown["store"]) == (200, "memory://")
        assert sign_in(address, **form)[0] == 401
        assert ask(address, "GET", "/api/v1/status", Cookie=cookie, Host="evil.example")[0] == 421
        assert ask(address, "POST", "/logout", Cookie=cookie, Sec_Fetch_Site="same-origin")[0] == 303
        assert ask(address, "GET", "/api/v1/status", Cookie=cookie)[0] == 401
    assert "msl_" not in (tmp_path / "node.log").read_text()


def test_streams_and_waits_end_when_the_node_stops(tmp_path: Path) -> None:
    options = ("serve", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory://")
    with node(*options, cwd=tmp_path, faces=("gearman", "http")) as running:
        address = running.ports["http"]
        create = ("tokens", "create", "--name", "ci", "--role", "developer", "--payloads", "--server", running.address)
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
        waiting = [http.client.HTTPConnection(address, timeout=30) for _ in range(2)]
        headers = {"Authorization": f"Bearer {token}"}
        waiting[0].request("GET", f"{jobs}/{job['handle']}/result?wait=60", headers=headers)
        headers |= {"Content-Type": "application/json", "Prefer": "wait=60"}
        waiting[1].request("POST", jobs, '{"function": "later"}', headers)
        eventually(lambda: len(ask(address, "GET", jobs, **bearer)[2]["items"]) == 2, "the second job")
        running.signal(signal.SIGTERM)
        rest = stream.read()  # fails unless the stream is complete
        assert b'"state":"pending"' in rest
        result, submitted = (one.getresponse() for one in waiting)
        assert (result.status, result.getheader("content-type")) == (409, "application/problem+json")
        assert submitted.status == 202
        assert json.loads(submitted.read())["handle"] > job["handle"]
        assert running.wait() == 0
        for one in (connection, *waiting):
            one.close()
    assert "rror" not in running.log.read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_streams_are_never_cut(tmp_path: Path) -> None:
    """The short form, `test_lasting_streams`, sets the clock forward."""
    seconds = 660
    options = ("serve", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", f"sqlite:///{tmp_path}/jobs.db")
    with node(*options, cwd=tmp_path, faces=("gearman", "http")) as running:
        address = running.ports["http"]
        create = ("tokens", "create", "--name", "ci", "--role", "developer", "--server", running.address)
        bearer = {"Authorization": f"Bearer {mainspring(*create, cwd=tmp_path).stdout.decode().strip()}"}
        namespace = "/api/v1/namespaces/default"
        headers = {**bearer, "Content_Type": "application/json"}
        status, _, job = ask(address, "POST", f"{namespace}/jobs", '{"function": "nobody-runs-it"}', **headers)
        assert status == 201
        connections = [http.client.HTTPConnection(address, timeout=30) for _ in range(2)]
        streams = []
        for connection, subject in zip(connections, ("overview=true", f"job={job['handle']}"), strict=True):
            connection.request("GET", f"{namespace}/live?{subject}", headers=bearer)
            streams.append(connection.getresponse())
        numbers, silent = streams
        assert [stream.status for stream in streams] == [200, 200]
        until, frames = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            line = numbers.readline()
            assert line, f"it was cut after {frames} frames"
            frames += line.startswith(b"event: numbers")
        assert frames > 0.9 * seconds
        running.signal(signal.SIGTERM)
        numbers.read()  # fails unless the stream is complete
        assert silent.read().count(b":\n\n") >= seconds // 15 - 1, "it had comments all the time"
        assert running.wait() == 0
        for connection in connections:
            connection.close()

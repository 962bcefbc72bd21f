"""A request with an `Idempotency-Key` whose node was killed after the commit, and before the answer."""

from __future__ import annotations

import http.client
import json
import signal
from typing import TYPE_CHECKING

import pytest

from .http_port import ask
from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

JOBS = "/api/v1/namespaces/default/jobs"
OPTIONS = ("serve", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "sqlite:///jobs.db")
BODY = '{"function": "nobody runs this"}'


def test_a_repeated_submission_finds_its_job_after_a_kill(tmp_path: Path) -> None:
    with node(*OPTIONS, cwd=tmp_path, faces=("gearman", "http")) as running:
        create = ("tokens", "create", "--name", "ci", "--role", "developer", "--server", running.address)
        token = mainspring(*create, cwd=tmp_path).stdout.decode().strip()
        head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": "k"}
        waiting = http.client.HTTPConnection(running.ports["http"], timeout=30)
        waiting.request("POST", JOBS, BODY, {**head, "Prefer": "wait=60"})
        eventually(lambda: bool(ask(running.ports["http"], "GET", JOBS, **head)[2]["items"]), "the job is stored")
        running.signal(signal.SIGKILL)
        running.wait()
        with pytest.raises((http.client.HTTPException, OSError)):
            waiting.getresponse()
        waiting.close()
    with node(*OPTIONS, cwd=tmp_path, faces=("gearman", "http")) as running:
        address = running.ports["http"]
        (job,) = ask(address, "GET", JOBS, **head)[2]["items"]
        for _ in range(2):
            status, headers, stored = ask(address, "POST", JOBS, BODY, **head)
            assert (status, stored) == (201, {"handle": job["handle"], "joined": False})
            assert headers["idempotency-replayed"] == "true"
        status, _, problem = ask(address, "POST", JOBS, json.dumps({"function": "other"}), **head)
        assert (status, problem["type"].rpartition(":")[2]) == (422, "key-reused")
        assert len(ask(address, "GET", JOBS, **head)[2]["items"]) == 1

"""Where a secret could stand by mistake: command lines, the audit, logs, errors, kept answers, backups, core files."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from mainspring.access.audit import decode_act, row_of
from mainspring.access.caller import Act, Caller, Grant, Kind, Role, secret_of
from mainspring.access.idempotency import KeptReply, encode
from mainspring.api import functions, jobs
from mainspring.api.request import ApiError
from mainspring.cli.app_store import read_app_store
from mainspring.engines.sqlite.store_file import copy_store
from mainspring.private_data import hide_in, hide_secrets
from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging
from mainspring.server.metrics import labels_of
from mainspring.webhooks.signing import Secret
from mainspring.worker.execution import failure
from tests.unit.api.a_node import run
from tests.unit.faces.rest.a_client import serving
from tests.unit.faces.rest.a_server import whole_node

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = [secret_of(kind, bytes(range(32))) for kind in Kind]
JOBS = "/api/v1/namespaces/default/jobs"
PASSWORD = "correct-horse"


@pytest.mark.parametrize("secret", [*SECRETS, Secret(bytes(range(32))).text, Secret(bytes(range(48))).text])
def test_each_secret_is_hidden_and_other_names_are_not(secret: str) -> None:
    for text in (secret, f"/namespaces/{secret}/jobs?x={secret}", f"Bearer {secret}.", f"\\n{secret}\\n", secret * 2):
        assert secret[8:] not in hide_secrets(text)
    assert hide_in({"a": [secret, 1, None], secret: (secret,)}) == {
        "a": [hide_secrets(secret), 1, None],
        hide_secrets(secret): [hide_secrets(secret)],
    }
    for text in ("ms_process_orders", "items_of_a_month", "ms_" + "a" * 40, "", "param=1", "whsec_of_a_hook"):
        assert hide_secrets(text) == text


@pytest.mark.parametrize("field", ["what", "who", "object", "namespace", "before", "after", "reason", "refused"])
def test_no_field_of_the_audit_has_a_secret(field: str) -> None:
    secret = SECRETS[0]
    given: Any = {"grants": [secret]} if field in {"before", "after"} else f"x {secret}"
    act = Act(**{"what": "jobs.cancel", "who": "ann", field: given})
    assert secret not in repr(row_of(act))
    stored = msgspec.msgpack.encode({"what": "x", "who": "ann"} | {field: given})
    assert secret not in repr(decode_act(stored)), "nor has a row of an earlier version, when it is read"


def test_the_audit_and_the_errors_of_a_node_have_no_secret_that_a_client_put_into_a_wrong_place() -> None:
    async def test() -> None:
        secret = SECRETS[0]
        async with whole_node() as (client, built):
            acts: list[Act] = []
            built.api._refused = acts.append  # noqa: SLF001 - the memory engine keeps no audit
            viewer = Caller("viewer", (Grant(Role.VIEWER),), token="v")
            client.access.callers["viewer"] = viewer
            for method, path in (
                ("GET", f"/api/v1/namespaces/{secret}/jobs"),
                ("POST", f"/api/v1/namespaces/default/functions/{secret}/pause"),
                ("POST", f"/api/v1/namespaces/default/functions/{'x' * 490}{secret}/pause"),
                ("POST", f"/api/v1/namespaces/default/schedules/{secret}/trigger"),
            ):
                answer = await client.send(method, path, {} if method == "POST" else None, token="viewer")
                assert answer.status == 403, path
            assert len(acts) == 4
            assert "AAECAwQFBgcICQ" not in repr(acts), "no part of it"
            with pytest.raises(ApiError) as caught:
                await built.api.call(functions.ShowFunction(secret))
            assert secret not in str(caught.value)

    asyncio.run(test())


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_of_the_log_has_a_secret(form: Any) -> None:
    stream, secret = io.StringIO(), SECRETS[0]
    start_logging(LogSettings(format=form), stream=stream)
    try:
        log = structlog.get_logger("test")
        log.warning(secret, path=f"/{secret}", values=[secret])
        try:
            raise ValueError(secret)  # noqa: TRY301 - its traceback
        except ValueError:
            log.exception("failed")
    finally:
        structlog.reset_defaults()
    assert "failed" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_the_metrics_name_no_function_that_is_a_secret_and_stay_unique() -> None:
    names = [secret.encode() for secret in (SECRETS[0], secret_of(Kind.TOKEN, bytes(32)))]
    labels = [labels_of(name)["function"] for name in names]
    assert all(label.startswith("ms_*** ") for label in labels)
    assert len({*labels}) == 2
    assert labels_of(b"pay") == {"function": "pay"}


def test_a_failure_that_a_worker_reports_has_no_secret() -> None:
    secret = SECRETS[0]
    settlement = failure("KeyError", f"environ has MAINSPRING_TOKEN={secret}", f"{'x' * 100_000}{secret}")
    assert secret[:30].encode() not in settlement.detail
    assert secret.encode() not in settlement.detail


def test_the_result_of_a_deleted_job_is_in_no_kept_answer() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            headers = [("idempotency-key", "k"), ("prefer", "wait=30")]
            side = node.worker()
            waiting = asyncio.ensure_future(client.send("POST", JOBS, {"function": "f"}, headers=headers))
            while not side.given:  # noqa: ASYNC110 - a worker has no event for it
                await asyncio.sleep(0)
            node.service.settling.succeeded(side.given[0], b'"the result"')
            first = await waiting
            assert "the result" in json.dumps(first.json)
            repeated = await client.send("POST", JOBS, {"function": "f"}, headers=headers)
            assert (repeated.status, repeated.json) == (first.status, first.json)
            assert repeated.headers["idempotency-replayed"] == "true"
            assert b"the result" not in b"".join(row[2] or b"" for row in node.store.tables.replies.values())
            handle = first.json["handle"]
            await node.api.call(jobs.DeleteJob(handle))
            for more in (headers, headers[:1]):
                after = await client.send("POST", JOBS, {"function": "f"}, headers=more)
                assert (after.status, after.json) == (201, {"handle": handle, "joined": False})
            assert not (await node.api.call(jobs.ListJobs())).items
            (key,) = node.store.tables.replies
            request, at_us, _ = node.store.tables.replies[key]
            body = json.dumps(first.json).encode()  # as a node of the last version has kept it
            node.store.tables.replies[key] = (request, at_us, encode(KeptReply(200, {}, body)))
            later = await client.send("POST", JOBS, {"function": "f"}, headers=headers[:1])
            assert (later.status, later.json) == (200, {"handle": handle, "joined": False})

    run(test())


def test_no_command_line_has_the_password_of_a_store(tmp_path: Path) -> None:
    """The file of the App sees the arguments of its own process, which ``ps`` shows to every user."""
    seen = tmp_path / "seen"
    (tmp_path / "app.py").write_text(
        f"import sys, mainspring\nfrom pathlib import Path\nPath({str(seen)!r}).write_text(repr(sys.orig_argv))\n"
        "app = mainspring.App()\n"
    )
    answer = asyncio.run(
        read_app_store(
            str(tmp_path / "app.py"), f"postgresql://user:{PASSWORD}@db.example.com/jobs?sslpassword={PASSWORD}"
        )
    )
    assert answer.store is None
    assert "app_store" in seen.read_text()
    assert PASSWORD not in seen.read_text()


def test_a_backup_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = tmp_path / "jobs.db"
    store.touch()
    store.chmod(0o666)
    before = os.umask(0)
    try:
        copy_store(store, tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


def test_a_node_leaves_no_core_file() -> None:
    program = (
        "import resource\nfrom mainspring.server.process import raise_limits\n"
        "before = resource.getrlimit(resource.RLIMIT_CORE)\n"
        "raise_limits(None, core_dumps=False)\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE) == (0, before[1])\n"
        "raise_limits(None, core_dumps=True)\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE) == (before[1], before[1])\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)

"""Deadlines on ZooKeeper, which keeps none: each way in refuses them with the reason, and stores nothing."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind

from mainspring import App, RefusedError

from .extension import ExtensionPeer, FaultError
from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

WORDS = "keeps no deadlines: leave out deadline and start_within, or use SQLite"
APP = """
from mainspring import App

app = App()

@app.task(deadline="1h")
def double(number: int) -> int:
    return 2 * number
"""


def test_every_way_in_refuses_deadlines(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    options = ("--gearman", "127.0.0.1:0", "--grace", "1s", "--store", f"zookeeper://{zookeeper}{chroot}")
    with node("run", "app.py", *options, cwd=tmp_path) as running:
        for command in (
            ("submit", "double", "--deadline", "1h", "--background", "[4]"),
            ("submit", "double", "--start-within", "5m", "--background", "[4]"),
            ("schedules", "add", "nightly", "--every", "60s", "--start-within", "5m"),
            ("schedules", "add", "nightly", "--every", "60s", "--deadline", "5m"),
        ):
            done = mainspring(*command, cwd=tmp_path, MAINSPRING_SERVER=running.address)
            assert done.returncode != 0, command
            assert WORDS.encode() in b" ".join(done.stderr.split()), done

        with ExtensionPeer(int(running.address.rpartition(":")[2])) as peer:
            peer.extend()
            for option in ("deadline", "start_within"):
                peer.request(b"double", b"[4]", options={option: 60})
                code, message = peer.expect(Kind.ERROR)
                assert (code, WORDS.encode() in message) == (b"UNSUPPORTED", True)
            with pytest.raises(FaultError, match=WORDS):
                peer.call("worker.times", times={"double": {"deadline": 60}})

        with contextlib.closing(App(running.address)) as app:
            with pytest.raises(RefusedError, match=WORDS):
                app.function("double").options(deadline="1h").submit([4])
            assert app.function("double").submit([4]).result(60) == b"8", "its worker runs all the same"
            assert len(list(app.jobs.list())) == 1
        words = "server refused a request"
        lines = [json.loads(line) for line in running.log.read_text().splitlines() if words in line]
        assert [WORDS in line["message"] for line in lines] == [True], "a worker that declares times says so"
        eventually(lambda: running.stop() == 0, "it stops")

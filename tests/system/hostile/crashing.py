"""An attack by a task that ends its worker's process, next to jobs that must not suffer."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interop.packets import encode
from tests.system.extension import ExtensionKind
from tests.system.processes import node

from .watching import watched

if TYPE_CHECKING:
    from tests.system.servers import Server

APP = """
import os, signal, time
from mainspring import App, Retry

app = App()

@app.task
def poison() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)

@app.task(retry=Retry(max_attempts=3, initial=0.1))
def innocent(seconds: float) -> None:
    time.sleep(seconds)
"""


def poison(server: Server, *, innocents: int, seconds: float, timeout: float) -> None:
    """Run one crashing job next to innocent ones: these must succeed, and the crashing job must end as failed.

    ``timeout``: seconds for the innocent jobs, many of which need a new process.
    """
    directory = Path(tempfile.mkdtemp(prefix="poison", dir=server.directory))
    (directory / "app.py").write_text(APP)
    options = ("--processes", "2", "--server", f"127.0.0.1:{server.port}")
    with server.extended() as client, watched(server):
        culprit = client.submit_new(b"poison")
        retry = {"max_attempts": 3, "initial": 0.1}
        payload = b"[%g]" % seconds
        others = {client.submit_new(b"innocent", payload, retry=retry) for _ in range(innocents)}
        client.write(b"".join(encode(ExtensionKind.WAIT, handle) for handle in [*others, culprit]))
        begun = time.monotonic()
        took: dict[bytes, float] = {}
        failed = []
        with node("worker", "app.py", *options, cwd=directory, faces=()):
            while len(took) <= innocents:
                result = client.result()
                took[result.handle] = time.monotonic() - begun
                if result.state != b"succeeded":
                    failed.append(result)
    slowest = max(took[handle] for handle in others)
    print(f"slowest innocent job {slowest:.1f} s, poison {took[culprit]:.1f} s")  # noqa: T201
    assert [result.handle for result in failed] == [culprit], failed
    assert slowest < timeout

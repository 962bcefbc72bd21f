"""A worker whose machine vanishes without a packet, such as one whose cable is pulled: its jobs run at another worker.

The workers here send no heartbeats, so that the system alone notices it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .extension import ExtensionPeer
from .leaving import wait_for_log_lines
from .networks import two_networks
from .servers import serving

if TYPE_CHECKING:
    from .servers import Server

SHORT_KEEPALIVE = (sys.executable, str(Path(__file__).with_name("short_keepalive.py")))


@pytest.mark.parametrize("is_sent", [False, True], ids=["idle", "sent"])
@pytest.mark.parametrize("waits", [False, True], ids=["reads", "waits"])
def test_the_jobs_of_a_vanished_worker_run_at_another_one(tmp_path: Path, is_sent: bool, waits: bool) -> None:
    """Without probes: while the node has sent something that is not acknowledged. Without reading: while requests wait."""
    with ExitStack() as stack:
        cable = stack.enter_context(two_networks())
        options = ("--gearman", f"{cable.near.address}:0", "--insecure")
        server = stack.enter_context(
            serving(tmp_path, *options, program=SHORT_KEEPALIVE, tracer=cable.near.run, store="memory://")
        )

        def connect(server: Server = server) -> ExtensionPeer:
            peer = ExtensionPeer(server.port, cable.near.address)
            peer.extend()
            return peer

        client, other = (stack.enter_context(cable.near.within(connect)) for _ in range(2))
        worker = stack.enter_context(cable.far.within(connect))
        worker.register(b"f")
        worker.ready(2)
        worker.drain()
        handles = {client.submit_new(b"f")}
        assert worker.job().handle in handles
        if waits:
            wait_for_log_lines(worker, *handles)
        cable.pull()
        if is_sent:
            handles.add(client.submit_new(b"f"))
        other.register(b"f")
        other.ready(2)
        left = set(handles)
        while left:
            left.remove(other.job().handle)
        server.assert_healthy()

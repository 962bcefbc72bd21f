"""Nodes of Mainspring on a ZooKeeper server, on the same cores. Each turn has a separate server."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import servers
from measure import NotMeasured
from servers import Contestant, Nodes, Server

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.zookeeper.server import Ensemble, NotInstalledError, ZooKeeperError  # noqa: E402 - found by the path above

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA = ("-Xmx3g", "-XX:TieredStopAtLevel=4", "-XX:+UseSerialGC")
"""The optimizing compiler, and memory for 200,000 tasks."""
SETTINGS = {"tickTime": 500}
SESSION_TIMEOUT = 4.0
"""Seconds of the nodes' lease, which is the time-out of their sessions."""


@dataclass(frozen=True)
class OnZooKeeper(Contestant):
    """Nodes whose command contains {store}; each has its own name."""

    nodes: int = 1

    @contextlib.contextmanager
    def running(self, parent: Path) -> Iterator[Nodes]:
        """Run a ZooKeeper server and then the nodes, started one after another. Raises StartError, NotMeasured."""
        try:
            with Ensemble(parent=parent, java=JAVA, settings=SETTINGS) as ensemble, contextlib.ExitStack() as stack:
                command = self.command.replace("{store}", ensemble.url("/bench"))
                started = [
                    stack.enter_context(
                        Server(Contestant(f"{self.name}, node {number}", f"{command} --name n{number}"), parent)
                    )
                    for number in range(1, self.nodes + 1)
                ]
                yield Nodes(self, started)
        except NotInstalledError as error:
            raise NotMeasured(str(error)) from None
        except ZooKeeperError as error:
            raise servers.StartError(str(error)) from None


def mainspring(nodes: int, template: str | None = None) -> OnZooKeeper:
    """Return Mainspring on ZooKeeper; a template with {store} replaces the command."""
    command = f"{template or servers.MAINSPRING_COMMAND} --lease {SESSION_TIMEOUT * 1000:.0f}ms"
    return OnZooKeeper(f"{nodes} {'node' if nodes == 1 else 'nodes'}", command, nodes)

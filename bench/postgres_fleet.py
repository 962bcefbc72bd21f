"""Several nodes on one PostgreSQL store, all on one machine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import servers
from servers import Contestant, Nodes

from postgres import Database, ServerOnPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class FleetOnPostgres(Contestant):
    """Nodes whose command contains {database}; each has its own name."""

    nodes: int = 3

    @contextlib.contextmanager
    def running(self, parent: Path) -> Iterator[Fleet]:
        """Run a database server and then the nodes, started one after another. Raises StartError."""
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(Database.running(parent))
            command = self.command.replace("{database}", database.dsn)
            nodes = [
                stack.enter_context(
                    ServerOnPostgres(
                        Contestant(f"{self.name}, node {number}", f"{command} --name n{number}"), parent, database
                    )
                )
                for number in range(1, self.nodes + 1)
            ]
            yield Fleet(self, nodes, database)


class Fleet(Nodes):
    """Running nodes and their database."""

    def __init__(self, contestant: Contestant, nodes: list[ServerOnPostgres], database: Database) -> None:
        super().__init__(contestant, nodes)
        self.database = database


def fleet(nodes: int, template: str | None = None, options: str = "") -> FleetOnPostgres:
    """Return a fleet of Mainspring; a template with {store} replaces the command."""
    command = (template or servers.MAINSPRING_COMMAND).replace("{store}", "{database}")
    return FleetOnPostgres(f"{nodes} {'node' if nodes == 1 else 'nodes'}", f"{command} {options}".strip(), nodes)

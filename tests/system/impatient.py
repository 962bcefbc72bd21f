"""The command, with a server that waits for silent peers for a second and not for a minute: tests cannot wait so long."""

from __future__ import annotations

import sys

from mainspring.cli.main import main
from mainspring.server.settings import LimitSettings

PATIENCE = 1.0

if __name__ == "__main__":
    initial = LimitSettings.__init__
    given = dict(zip(initial.__code__.co_varnames[1:], initial.__defaults__ or (), strict=False))
    given |= {"handshake_timeout": PATIENCE, "packet_timeout": PATIENCE}
    initial.__defaults__ = tuple(given.values())
    sys.exit(main())

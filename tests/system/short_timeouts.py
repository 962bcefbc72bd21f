"""The command with time-outs of one second instead of a minute for silent peers, for tests."""

from __future__ import annotations

import sys

from mainspring.cli.main import main
from mainspring.server.settings import LimitSettings

TIMEOUT = 1.0

if __name__ == "__main__":
    initial = LimitSettings.__init__
    defaults = dict(zip(initial.__code__.co_varnames[1:], initial.__defaults__ or (), strict=False))
    defaults |= {"handshake_timeout": TIMEOUT, "packet_timeout": TIMEOUT}
    initial.__defaults__ = tuple(defaults.values())
    sys.exit(main())

"""The command with probes of silent connections every second, and not after a minute, for tests."""

from __future__ import annotations

import sys

from mainspring.cli.main import main
from mainspring.server.settings import KeepaliveSettings

if __name__ == "__main__":
    KeepaliveSettings.__init__.__defaults__ = (True, 1, 1, 2)
    sys.exit(main())

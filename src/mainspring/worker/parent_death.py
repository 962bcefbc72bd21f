"""Parent-death signals: they end a process when its parent ends."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, how: signal.Signals) -> None:
    """Make the kernel send this process a signal when the parent ends; exit at once if the parent has already ended.

    This works on Linux only; elsewhere, the process must detect the end of the pipe to its parent. (The kernel watches the
    parent's *thread*, so the parent must start its children from a thread that lives as long as the process.)
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

"""Processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, how: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when the parent ends; end at once where it has already.

    Linux only; elsewhere the end of the pipe to the parent must do. (The kernel watches the parent's *thread*, so the
    parent must start its children from a thread that lives as long as it does.)
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

"""What a task forks off (``os.fork``, ``multiprocessing``) is no worker: it has neither its signals nor its connections.

A fork inherits the worker's handler of SIGTERM, and the descriptor through which signals wake the worker's loop: to
terminate it would stop the worker. It also inherits open connections, which would outlive the worker's end, so that
nobody saw it.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def disown(descriptors: Callable[[], Iterable[int]]) -> None:
    """Have all forks of this process, from now on, let go of its SIGTERM and of the descriptors that it has then."""
    masks = threading.local()

    def hold() -> None:
        # What comes before a fork has let go would still wake the worker.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def let_go() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors():
            os.dup2(
                nothing, descriptor
            )  # closed, its number might come to name something else, which its owner would close
        os.close(nothing)
        go_on()

    os.register_at_fork(before=hold, after_in_parent=go_on, after_in_child=let_go)

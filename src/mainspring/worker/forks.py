"""Separation of a task's forks (``os.fork``, ``multiprocessing``) from the worker's signals and connections.

A fork inherits the worker's handler of SIGTERM, and the descriptor through which signals wake the worker's loop: SIGTERM to the
fork would stop the worker. It also inherits open connections, which would outlive the worker, so that the server would not
detect the worker's end.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def disown(descriptors: Callable[[], Iterable[int]]) -> None:
    """Make all later forks of this process reset SIGTERM and close the descriptors that ``descriptors`` returns."""
    masks = threading.local()

    def block() -> None:
        # A SIGTERM that arrives before the fork has reset its handler would still wake the worker.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def reset() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors():
            # A closed number could be reused, and the descriptor's owner would then close another file.
            os.dup2(null, descriptor)
        os.close(null)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)

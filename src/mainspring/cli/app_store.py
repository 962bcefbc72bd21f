"""The store of an App, read in a separate process: a node never imports an App.

``python -m mainspring.cli.app_store PARENT SELECTOR`` is that process. It writes a `StoreAnswer` as JSON to standard output, and
nothing else: the output of the App's file goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec

from mainspring.errors import SettingsError
from mainspring.worker import selector
from mainspring.worker.children import ignore_interrupts, spawn
from mainspring.worker.parent_death import die_with


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An App's store, or an error."""

    store: str | None = None
    """The URL; None: the App names no store."""

    wrong: str | None = None
    """The error, if the App cannot be loaded."""


async def read_app_store(app: str, *, quiet: bool = False) -> StoreAnswer:
    """Import ``FILE.py[:name]`` or ``module[:name]`` in a separate process, and return its App's store.

    The process writes its output to standard error, or discards it if ``quiet``. Cancelling the caller kills the process.

    Raises SettingsError if there is no such App. If the import failed, the process has printed the traceback.
    """
    process = spawn(
        (sys.executable, "-m", "mainspring.cli.app_store", str(os.getpid()), app),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
    )
    try:
        output, _ = await asyncio.to_thread(process.communicate)
    finally:
        process.kill()  # does nothing if it has ended
    if not output:
        raise SettingsError(
            f"the import of {app} ended its process with {process.returncode} before it defined the App"
        )
    answer = msgspec.json.decode(output, type=StoreAnswer)
    if answer.wrong is not None:
        raise SettingsError(answer.wrong)
    return answer


def load_answer(app: str) -> StoreAnswer:
    """Import an App in this process and return its store, or the error."""
    try:
        store = getattr(selector.find(app), "store", None)
    except SettingsError as error:
        selector.show_cause(error)
        return StoreAnswer(wrong=str(error))
    return StoreAnswer(store=store if store is None or isinstance(store, str) else store.url)


def main(parent: str, app: str) -> None:
    """Write the `StoreAnswer` of an App to standard output, and end the process."""
    die_with(int(parent), signal.SIGKILL)
    ignore_interrupts()  # the parent ends this process
    to_parent = os.dup(1)
    os.dup2(2, 1)
    answer = msgspec.json.encode(load_answer(app))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(to_parent, answer)
    os._exit(0)  # does not wait for threads that the file has started


if __name__ == "__main__":
    main(*sys.argv[1:])

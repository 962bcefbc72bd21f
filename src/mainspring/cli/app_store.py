"""The store that an App names, asked of a process of its own: an App is never imported into a node.

``python -m mainspring.cli.app_store PARENT SELECTOR`` is that process. It writes a `StoreAnswer` as JSON to its standard output,
where nothing else goes: what the App's file prints goes to standard error.
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
from mainspring.worker.mortality import die_with


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an App says of its store."""

    store: str | None = None
    """Its URL; None where it names none."""

    wrong: str | None = None
    """Why there is no App to ask."""


async def ask_store(app: str, *, quiet: bool = False) -> StoreAnswer:
    """Import ``FILE.py[:name]`` or ``module[:name]`` in a process that ends with it, and return its App's store.

    Its output goes to standard error; ``quiet``: nowhere. A caller that is cancelled ends the process.

    Raises SettingsError where there is no such App; where its import failed, the process has shown the traceback.
    """
    process = spawn(
        (sys.executable, "-m", "mainspring.cli.app_store", str(os.getpid()), app),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
    )
    try:
        said, _ = await asyncio.to_thread(process.communicate)
    finally:
        process.kill()  # does nothing where it has ended
    if not said:
        raise SettingsError(f"importing {app} ended its process with {process.returncode}, before its App was there")
    answer = msgspec.json.decode(said, type=StoreAnswer)
    if answer.wrong is not None:
        raise SettingsError(answer.wrong)
    return answer


def answer_of(app: str) -> StoreAnswer:
    """Import an App here and return what it says."""
    try:
        store = getattr(selector.find(app), "store", None)
    except SettingsError as error:
        selector.show_cause(error)
        return StoreAnswer(wrong=str(error))
    return StoreAnswer(store=store if store is None or isinstance(store, str) else store.url)


def main(parent: str, app: str) -> None:
    """Be the process that is asked."""
    die_with(int(parent), signal.SIGKILL)
    ignore_interrupts()  # the parent ends us
    to_parent = os.dup(1)
    os.dup2(2, 1)
    answer = msgspec.json.encode(answer_of(app))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(to_parent, answer)
    os._exit(0)  # threads that the file has started are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])

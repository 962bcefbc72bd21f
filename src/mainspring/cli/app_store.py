"""The store and the workflows of an App, read in a separate process: a node never imports an App.

``python -m mainspring.cli.app_store PARENT SELECTOR KEEPS`` is that process. KEEPS is whether the node's store keeps workflows:
``yes``, ``no``, or empty if the store is the App's. The URL of a store may have a password, and every user can read the arguments
of processes. The process writes a `StoreAnswer` as JSON to standard output, and nothing else: the output of the App's file goes
to standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Final

import msgspec

from mainspring.errors import SettingsError
from mainspring.server.settings import parse_store
from mainspring.stores import DEFAULT_STORE
from mainspring.worker import selector
from mainspring.worker.processes import die_with, ignore_interrupts, python, spawn

YES: Final = "yes"
NO: Final = "no"


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An App's store and functions, or an error."""

    store: str | None = None
    """The URL; None: the App names no store."""

    names: list[str] = []
    """All tasks and workflows of the App, and below only its workflows, if the node's store keeps none."""

    workflows: list[str] = []

    wrong: str | None = None
    """The error, if the App cannot be loaded."""


async def read_app_store(app: str, given: str = "", *, quiet: bool = False) -> StoreAnswer:
    """Import ``FILE.py[:name]`` or ``module[:name]`` in a separate process, and return its App's store.

    ``given``: the URL of the node's store if it is not the App's. If the node's store keeps no workflows, the process also
    imports the modules that the App includes, to return the names of all workflows.

    The process writes its output to standard error, or discards it if ``quiet``. Cancelling the caller kills the process.

    Raises SettingsError if there is no such App. If the import failed, the process has printed the traceback.
    """
    process = spawn(
        python("-m", "mainspring.cli.app_store", str(os.getpid()), app, _keeps(given)),
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


def _keeps(given: str) -> str:
    return "" if not given else YES if parse_store(given).keeps_workflows else NO


def load_answer(app: str, keeps: str = "") -> StoreAnswer:
    """Import an App in this process and return its store and, if the node's store keeps none, its workflows; or the error."""
    try:
        found = selector.find(app)
        store = getattr(found, "store", None)
        url = store if store is None or isinstance(store, str) else store.url
        if parse_store(url or DEFAULT_STORE).keeps_workflows if not keeps else keeps == YES:
            return StoreAnswer(store=url)
        found.load_tasks()
    except SettingsError as error:
        selector.show_cause(error)
        return StoreAnswer(wrong=str(error))
    workflows = list(dict.fromkeys(name for name, _ in found.registry.workflows))
    return StoreAnswer(store=url, names=found.registry.names(), workflows=workflows)


def main(parent: str, app: str, keeps: str) -> None:
    """Write the `StoreAnswer` of an App to standard output, and end the process."""
    die_with(int(parent), signal.SIGKILL)
    ignore_interrupts()  # the parent ends this process
    to_parent = os.dup(1)
    os.dup2(2, 1)
    answer = msgspec.json.encode(load_answer(app, keeps))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(to_parent, answer)
    os._exit(0)  # does not wait for threads that the file has started


if __name__ == "__main__":
    main(*sys.argv[1:])

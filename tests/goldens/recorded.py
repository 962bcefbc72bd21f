"""The golden histories in the tree, and the recorder of new ones."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from mainspring import JobError
from mainspring.client.blocking import Client
from mainspring.testing import in_memory
from mainspring.testing.histories import history
from mainspring.workflows.history_json import decode_history

from .programs import GOLDENS, app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.workflows.history_json import HistoryFile

DIRECTORY = Path(__file__).with_name("histories")


def files() -> list[Path]:
    """Return the files of all golden histories."""
    return sorted(DIRECTORY.glob("*.json"))


def read(files: list[Path]) -> Iterator[HistoryFile]:
    """Return the histories in files."""
    for file in files:
        yield decode_history(file.read_bytes(), file.name)


def _without_frames(error: BaseException, *_args: object, **_named: object) -> list[str]:
    """Format an error without the paths of this machine."""
    return [f"{type(error).__name__}: {error}\n"]


def record(name: str, directory: Path = DIRECTORY) -> list[Path]:
    """Record the histories of a golden workflow: of its run, and of all runs that it begins. Return their files.

    Raises FileExistsError if the workflow was recorded before.
    """
    golden = GOLDENS[name]
    if found := sorted(directory.glob(f"{name}-*.json")):
        raise FileExistsError(f"{name} is recorded already: {found[0]} is never replaced; record another workflow")
    written = []
    with mock.patch("traceback.format_exception", _without_frames), in_memory(app) as fleet:
        job = golden.workflow.submit(*golden.args)
        golden.drive(fleet, job)
        with contextlib.suppress(JobError):  # some runs fail
            fleet.result(job)
        with contextlib.closing(Client(app.servers())) as client:
            listed: Any = client.call("workflows.list", {"limit": 1000})
            runs = sorted((run["run"] for run in listed["items"]), key=lambda run: int(run.rpartition("@")[2]))
            for number, run in enumerate(runs, 1):
                written.append(directory / f"{name}-{number}.json")
                history(client, run, run).save(written[-1])
    return written

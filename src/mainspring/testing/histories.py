"""Comparison of an App's code with histories in files, for users' tests."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.worker.workflow_replays import replay_history
from mainspring.workflows.history_files import decode_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from mainspring.app import App
    from mainspring.worker.registry import Registry
    from mainspring.workflows.history_files import HistoryFile
    from mainspring.workflows.model import Parked


def assert_replays(app: App, *files: str | PathLike[str]) -> None:
    """Check that the App's code makes the commands that histories have recorded.

    Give files of ``mainspring workflows export``, or directories: of those, each file ``*.json``. No task and no step runs.

    Raises AssertionError with both sides of the first difference in each history, and if there are no histories; UsageError for a
    file that is no history, and for a workflow or version that the App does not have.
    """
    app.load_tasks()
    histories = [history for file in files for history in _read(Path(file))]
    if not histories:
        raise AssertionError("no histories were given")
    if found := differences(app.registry, histories):
        raise AssertionError(found)


def differences(registry: Registry, histories: Iterable[HistoryFile]) -> str:
    """Return both sides of the first difference in each history; empty if code and histories agree."""
    found = []
    for history in histories:
        difference = replay_history(registry, history).difference
        if difference is not None:
            found.append("\n".join(_lines(history, difference)))
    return "\n\n".join(found)


def _read(path: Path) -> Iterator[HistoryFile]:
    if not path.is_dir():
        yield decode_history(path.read_bytes(), str(path))
        return
    files = sorted(path.glob("*.json"))
    if not files:
        raise AssertionError(f"the directory {path} has no file *.json")
    for file in files:
        yield decode_history(file.read_bytes(), str(file))


def _lines(history: HistoryFile, difference: Parked) -> Iterator[str]:
    yield f"{history.name} ({history.type}@{history.version}): {difference.message}"
    if history.redacted:
        yield "the history is redacted: the code may have taken another way, because it got no real values"
    if not (difference.recorded or difference.code):
        return
    width = max(len(line) for line in ("recorded", *difference.recorded))
    yield f"   {'recorded':{width}}   code"
    for at, (recorded, code) in enumerate(zip_longest(difference.recorded, difference.code, fillvalue="")):
        yield f"{'>' if at == difference.at else ' '}  {recorded:{width}}   {code}".rstrip()

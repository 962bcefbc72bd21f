"""Replays of histories from files, with the code of an App."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.deciding.replays import replay
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.deciding.replays import Replayed
    from mainspring.worker.registry import Registry
    from mainspring.workflows.history_files import HistoryFile


def replay_history(registry: Registry, found: HistoryFile) -> Replayed:
    """Compare a history with the App's code for its workflow and version. Raises UsageError if the App has none."""
    workflow = registry.workflows.get((found.type, found.version))
    if workflow is None:
        there = ", ".join(f"{name}@{version}" for name, version in registry.workflows) or "none"
        raise UsageError(
            f"{found.name} is a run of {found.type}@{found.version}, and the App has no such workflow: it has {there}; give the "
            "App that runs this workflow, or keep the code of the version as long as runs of it are open"
        )
    return replay(workflow.code, found.events)

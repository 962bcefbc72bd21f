"""Replays all golden histories, and prints a line for each: ``python -m tests.goldens.replay``."""

from __future__ import annotations

from mainspring.worker.workflows.replay_checks import replay_history

from .programs import app
from .recorded import files, read


def main() -> None:
    """Replay them."""
    for history in read(files()):
        found = replay_history(app.registry, history)
        print("ok" if found.difference is None else found.difference.message, history.type, found.events)  # noqa: T201


if __name__ == "__main__":
    main()

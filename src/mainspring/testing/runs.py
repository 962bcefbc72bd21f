"""Runs of workflows at a node in memory: their histories, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.client.histories import read_events
from mainspring.errors import NotFoundError, UsageError
from mainspring.workflows.history_files import encode_history

if TYPE_CHECKING:
    from os import PathLike

    from mainspring.client.blocking import Client


class History:
    """The history of a run. ``events`` has its events in order, as files of histories have them."""

    def __init__(self, events: list[dict[str, Any]], handle: str) -> None:
        self.events = events
        self.run = f"{handle.partition('@')[0]}@{events[0]['run']}"
        """The key of the run: the handle, ``@``, and the number of the run."""

    def __repr__(self) -> str:
        return f"<History of {self.run}: {len(self.events)} events>"

    def kinds(self) -> list[str]:
        """Return the types of the events, such as ``"TimerFired"``."""
        return [event["event"] for event in self.events]

    def save(self, file: str | PathLike[str]) -> None:
        """Write a file, as ``mainspring workflows export`` does. Raises FileExistsError if it exists."""
        with open(file, "xb") as out:  # noqa: PTH123 - of any path
            out.write(encode_history(self.events))


def history(client: Client, key: str, handle: str) -> History:
    """Return the history of a run with a key, of a job with a handle. Raises UsageError if there is none."""
    try:
        events = read_events(client, key)
    except NotFoundError:
        events = []
    if not events:
        raise UsageError(f"{key} has no history: it is no run of a workflow, or its run has not begun")
    return History(events, handle)


def unfinished(client: Client, key: str, reason: str) -> Exception:
    """Return the error about a job that does not end, for a reason such as "nothing is due"."""
    try:
        run: Any = client.call("workflows.show", {"key": key})
    except NotFoundError:
        job: Any = client.call("jobs.show", {"handle": key})
        return TimeoutError(
            f"{job['function']} ({key}) is {job['state']}, and {reason}: advance the clock yourself, or look for the reason in "
            "job.info()"
        )
    name = f"{run['type']} ({run['workflow_id']})"
    parked = run["parked"]
    if parked is not None:
        sides = [f"   recorded: {line}" for line in parked["recorded"][parked["at"] :]]
        sides += [f"   code: {line}" for line in parked["code"][parked["at"] :]]
        return AssertionError("\n".join([f"{name} is parked: {parked['message']}", *sides]))
    waits = run["waits_for"] or "nothing that the history names"
    return TimeoutError(
        f"{name} does not end: nothing runs, {reason}, and it waits for: {waits}. Send the signals that it waits for, or advance "
        "the clock yourself up to the run's timeout"
    )

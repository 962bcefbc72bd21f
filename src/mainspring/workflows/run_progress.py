"""Progress reports of runs, for the clients that wait for their root jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.model import decode_about

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.observer import Changed
    from mainspring.workflows.reading import Unread


class ProgressReports:
    """Passes the progress of runs on: at most once for each decision, because it comes with the decision's report.

    ``send`` is called with the id of a root job, both numbers and the text.
    """

    def __init__(self, send: Callable[[int, bytes, bytes, str], None]) -> None:
        self._send = send

    def errands_stored(self) -> None:
        """See `workflows.observer.RunObserver`: errands are no progress."""

    def not_read(self, runs: Sequence[Unread]) -> None:
        """See `workflows.observer.RunObserver`: such runs have no progress."""

    def appended(self, runs: Sequence[Changed]) -> None:
        """See `workflows.observer.RunObserver`."""
        for one in runs:
            if one.about:
                progress = decode_about(one.about).progress
                if progress is not None:
                    self._send(one.root, b"%d" % progress.done, b"%d" % progress.total, progress.text)

"""Reports about runs on their way to the servers: those of this turn of the loop, and those without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.wire.gearman.packets import Type
from mainspring.workflows.messages import decode_decided, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.worker.link import Link
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflows.messages import DecidedMessage, DecideMessage


class DecideReports:
    """Sends the reports of one turn of the loop to their servers, in one DECIDE each. ``len``: those without an answer."""

    def __init__(self) -> None:
        self._number = 0
        self._unsent: dict[Link, list[tuple[Run, DecideMessage]]] = {}
        self._sent: dict[Link, dict[bytes, list[tuple[Run, DecideMessage]]]] = {}
        self._reporting: dict[Run, None] = {}

    def __len__(self) -> int:
        return len(self._reporting)

    def add(self, run: Run, message: DecideMessage) -> None:
        """Send a report at the end of this turn of the loop."""
        run.reporting = True
        self._reporting[run] = None
        self._unsent.setdefault(run.link, []).append((run, message))

    def _end(self, run: Run) -> None:
        run.reporting = False
        self._reporting.pop(run, None)

    def send(self) -> list[Run]:
        """Send the reports, and return the runs of those for which there is no connection."""
        refused = []
        unsent, self._unsent = self._unsent, {}
        for link, reports in unsent.items():
            self._number += 1
            number = b"%d" % self._number
            body = encode_message([message for _, message in reports])
            if link.session.send(Type.DECIDE, number, body):
                self._sent.setdefault(link, {})[number] = reports
                link.flush()
            else:
                for run, _ in reports:
                    self._end(run)
                    refused.append(run)
        return refused

    def answered(self, link: Link, number: bytes, body: bytes) -> Iterator[tuple[Run, DecideMessage, DecidedMessage]]:
        """Return the answers to the reports of a DECIDE, one after the other."""
        reports = self._sent.get(link, {}).pop(number, None)
        if reports is not None:
            for (run, message), answer in zip(reports, decode_decided(body), strict=True):
                self._end(run)
                yield run, message, answer

    def disconnected(self, link: Link) -> list[Run]:
        """Return the runs whose reports a lost connection has left without an answer."""
        self._sent.pop(link, None)
        self._unsent.pop(link, None)
        lost = [run for run in self._reporting if run.link is link]
        for run in lost:
            self._end(run)
        return lost

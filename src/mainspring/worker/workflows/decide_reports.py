"""Reports about runs on their way to the servers: those of this turn of the loop, and those without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from mainspring.jobs.failures import text_of
from mainspring.quantities import format_size
from mainspring.wire.gearman.packets import Type
from mainspring.workflows.messages import DecideMessage, decode_decided, encode_message
from mainspring.workflows.model import Parked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mainspring.worker.link import Link
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflows.messages import DecidedMessage

    Reports: TypeAlias = list[tuple[Run, DecideMessage]]

ROOM: Final = 4_000
"""Bytes of a packet besides the largest payload: for the rest of the report."""


class DecideReports:
    """Sends the reports of one turn of the loop to their servers, in one DECIDE each if it is large enough for them.

    ``len``: the number of reports without an answer.
    """

    def __init__(self) -> None:
        self._number = 0
        self._unsent: dict[Link, Reports] = {}
        self._sent: dict[Link, dict[bytes, Reports]] = {}
        self._reporting: dict[Run, None] = {}

    def __len__(self) -> int:
        return len(self._reporting)

    def add(self, run: Run, message: DecideMessage) -> None:
        """Send a report at the end of this turn of the loop."""
        run.reporting = True
        self._reporting[run] = None
        self._unsent.setdefault(run.link, []).append((run, message))

    @property
    def unsent(self) -> Collection[Link]:
        """The servers to which ``send`` would send reports."""
        return self._unsent.keys()

    def _end(self, run: Run) -> None:
        run.reporting = False
        self._reporting.pop(run, None)

    def send(self) -> list[Run]:
        """Send the reports, and return the runs of those for which there is no connection."""
        refused = []
        unsent, self._unsent = self._unsent, {}
        for link, reports in unsent.items():
            for body, part in _packets(reports):
                self._number += 1
                number = b"%d" % self._number
                if link.session.send(Type.DECIDE, number, body):
                    self._sent.setdefault(link, {})[number] = part
                    link.flush()
                else:
                    for run, _ in part:
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


def _packets(reports: Reports) -> Iterator[tuple[bytes, Reports]]:
    """Return the bodies of packets, none larger than the node takes, with the reports in each.

    A report that is too large by itself parks its run: the node would refuse it again and again. So does one that cannot be
    encoded; those beside it are sent.
    """
    try:
        body = encode_message([message for _, message in reports])
    except Exception:  # noqa: BLE001 - a value of users, in one of them
        reports = [(run, _encodable(message)) for run, message in reports]
        body = encode_message([message for _, message in reports])
    if len(body) <= ROOM:
        yield body, reports
        return
    limit = min(run.instance.limits.largest for run, _ in reports) + ROOM
    if len(body) <= limit:
        yield body, reports
        return
    part: Reports = []
    size = 0
    for run, message in reports:
        own = len(encode_message(message))
        fits = message
        if own > limit and message.log:
            fits = replace(message, log=b"")
            own = len(encode_message(fits))
        if own > limit:
            fits = _parking(message, own, limit)
            own = len(encode_message(fits))
        if part and size + own > limit:
            yield encode_message([message for _, message in part]), part
            part, size = [], 0
        part.append((run, fits))
        size += own
    yield encode_message([message for _, message in part]), part


def _encodable(message: DecideMessage) -> DecideMessage:
    """Return a report; one that parks its run if it cannot be encoded."""
    try:
        encode_message(message)
    except Exception as error:  # noqa: BLE001 - as above
        why = f"its commands and results cannot be encoded: {text_of(error)}; correct the code, and start a worker with it"
        return replace(message, more=False, steps=(), decisions=(), about=b"", parked=Parked("defect", why), log=b"")
    return message


def _parking(message: DecideMessage, size: int, limit: int) -> DecideMessage:
    why = (
        f"the commands and results of one decision have {format_size(size)}, and the node takes at most {format_size(limit)} at a"
        " time: wait for some activities before you submit more, or store large values elsewhere and pass their names"
    )
    return replace(message, more=False, steps=(), decisions=(), about=b"", parked=Parked("defect", why))

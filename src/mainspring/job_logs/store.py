"""The port of the logs of jobs: what engines that keep them do (``storage.engine.Engine.logs``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.job_logs.model import Chunk
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence


class AppendLogs(Operation):
    """Store chunks, and delete others of the same jobs, each given by its job and id. Outcome: None.

    Nobody waits for it, and it touches no row of a job.
    """

    __slots__ = ("chunks", "dropped")

    phase = Phase.LOGS

    def __init__(self, chunks: Sequence[Chunk], dropped: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.chunks = chunks
        self.dropped = dropped
        self.rows = len(chunks) + len(dropped)
        self.size = sum(chunk.size for chunk in chunks)
        self.urgent = False


class SweepLogs(Operation):
    """Delete chunks with ids below ``before``, the lowest ones first and at most ``rows``. Outcome: their number."""

    __slots__ = ("before",)

    phase = Phase.LOGS

    def __init__(self, before: int, rows: int = 500) -> None:
        super().__init__()
        self.before = before
        self.rows = rows
        self.urgent = False


class ReadLogs(PageQuery[Chunk], frozen=True, kw_only=True):
    """Read the chunks of a job of a namespace in the order of their ids; ``after`` and `Page.next` are ids.

    ``attempt``: only this one. ``levels``: only chunks with one of these bits. ``backward``: in the opposite order.
    """

    namespace: str
    job: int
    attempt: int | None = None
    levels: int = -1
    backward: bool = False

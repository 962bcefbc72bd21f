"""Pipelines of submits and waits: the requests that both clients send before the first answers arrive.

No function here waits: a client receives the requests in order, and waits for each in its own way.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mainspring.client.pending_replies import SubmitBatch, Wait
    from mainspring.client.session import Request

WINDOW_FRAMES = 2_000
WINDOW_BYTES = 1 << 20
WINDOWS_IN_FLIGHT = 3
OUTCOMES_IN_FLIGHT = 1_000
"""Outcomes that are requested at the same time; early results are held until the caller reaches them."""


def submitting(
    requests: Iterable[Request], submit: Callable[[list[bytes], bool], SubmitBatch]
) -> Iterator[SubmitBatch]:
    """Submit jobs in overlapping windows, and yield the batch of each in order; wait for it before taking the next.

    ``submit`` sends encoded requests. Its flag is true if all of them may be sent twice.
    """
    batches: deque[SubmitBatch] = deque()
    for frames, safe in windows(requests):
        batches.append(submit(frames, safe))
        if len(batches) >= WINDOWS_IN_FLIGHT:
            yield batches.popleft()
    yield from batches


def windows(requests: Iterable[Request]) -> Iterator[tuple[list[bytes], bool]]:
    """Encode requests in windows of bounded size, each with a flag: whether all of it may be sent twice."""
    frames: list[bytes] = []
    size = 0
    safe = True
    for request in requests:
        frame = request.frame()
        frames.append(frame)
        size += len(frame)
        safe = safe and request.is_repeatable
        if len(frames) >= WINDOW_FRAMES or size >= WINDOW_BYTES:
            yield frames, safe
            frames, size, safe = [], 0, True
    if frames:
        yield frames, safe


def awaiting(
    handles: Iterable[str], wait: Callable[[list[str]], Iterable[Wait]], forget: Callable[[Iterable[Wait]], None]
) -> Generator[Wait, None, None]:
    """Request the outcomes of many jobs, and yield their waits in order; wait for each before taking the next.

    ``wait`` requests as many more outcomes as were answered since its last call. Closing the generator passes the unfinished
    waits to ``forget``.
    """
    waits: deque[Wait] = deque()
    remaining = iter(handles)
    try:
        while True:
            if not waits or not waits[0].done:
                more = list(itertools.islice(remaining, OUTCOMES_IN_FLIGHT - len(waits)))
                waits.extend(wait(more) if more else ())
            if not waits:
                return
            yield waits[0]
            waits.popleft()
    finally:
        forget(waits)

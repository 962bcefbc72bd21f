"""Many jobs at once: what both clients send ahead while they wait for the first answers.

Neither function waits: a client takes each slot in turn, and waits for it in its own way.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mainspring.client.session import Request, Tray, Wait

WINDOW_FRAMES = 2_000
WINDOW_BYTES = 1 << 20
WINDOWS_UNDER_WAY = 3
OUTCOMES = 1_000
"""Jobs whose outcomes are asked for at once; their results are held until their turn comes."""


def submitting(requests: Iterable[Request], submit: Callable[[list[bytes], bool], Tray]) -> Iterator[Tray]:
    """Submit jobs in windows that overlap, and give the tray of each window in order, to be waited for before the next.

    ``submit`` takes encoded requests, and whether all of them may be sent again.
    """
    trays: deque[Tray] = deque()
    for frames, safe in windows(requests):
        trays.append(submit(frames, safe))
        if len(trays) >= WINDOWS_UNDER_WAY:
            yield trays.popleft()
    yield from trays


def windows(requests: Iterable[Request]) -> Iterator[tuple[list[bytes], bool]]:
    """Encode requests in windows of bounded size, each with whether all of it may be sent again."""
    frames: list[bytes] = []
    size = 0
    safe = True
    for request in requests:
        frame = request.frame()
        frames.append(frame)
        size += len(frame)
        safe = safe and bool(request.unique)
        if len(frames) >= WINDOW_FRAMES or size >= WINDOW_BYTES:
            yield frames, safe
            frames, size, safe = [], 0, True
    if frames:
        yield frames, safe


def awaiting(
    handles: Iterable[str], wait: Callable[[list[str]], Iterable[Wait]], forget: Callable[[Iterable[Wait]], None]
) -> Generator[Wait, None, None]:
    """Ask for the outcomes of many jobs, and give their slots in order, each to be waited for before the next.

    ``wait`` asks for some more, as many as were answered meanwhile. To be closed: ``forget`` then gets those that nobody waits
    for any more.
    """
    waits: deque[Wait] = deque()
    remaining = iter(handles)
    try:
        while True:
            if not waits or not waits[0].done:
                more = list(itertools.islice(remaining, OUTCOMES - len(waits)))
                waits.extend(wait(more) if more else ())
            if not waits:
                return
            yield waits[0]
            waits.popleft()
    finally:
        forget(waits)

"""The clock and the command line of the peers' programs."""

from __future__ import annotations

import json
import logging
import resource
import time
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TIMEOUT = 300.0


async def run_timed(
    jobs: int, submit: Callable[[int], Awaitable[None]], await_completion: Callable[[], Awaitable[None]]
) -> None:
    """Submit jobs while a worker runs, wait until all are settled, and print the figures."""
    started_at = time.perf_counter()
    await submit(jobs)
    submitted_after = time.perf_counter() - started_at
    await await_completion()
    seconds = time.perf_counter() - started_at
    print_figures(jobs, seconds, submit_rate=jobs / submitted_after)


def print_figures(count: int, seconds: float, **more: Any) -> None:
    """Print the figures of a client as one line of JSON; `count` jobs or workflows took `seconds`."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "jobs": count,
        "seconds": seconds,
        "rate": count / seconds,
        **more,
        "client_cpu_s": used.ru_utime + used.ru_stime,
    }
    print(json.dumps(figures), flush=True)


def run(arguments: list[str], **modes: Callable[..., Any]) -> None:
    """Run a mode on uvloop, which Mainspring uses too, without a log line for each job."""
    logging.basicConfig(level=logging.WARNING)
    mode, *numbers = arguments
    uvloop.run(modes[mode](*map(int, numbers)))

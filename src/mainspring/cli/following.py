"""``jobs follow`` and ``submit --follow``: the progress and the log lines of a job while it runs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from mainspring.cli.display import print_json, printable
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.job_logs import LevelOption, text_of
from mainspring.cli.job_selection import Handle  # noqa: TC001 - cyclopts reads the annotations
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, plain
from mainspring.cli.results import describe, waiting_for
from mainspring.client.outcomes import failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.cli.follow_loop import View
    from mainspring.client.aio import AsyncClient
    from mainspring.client.outcomes import Notice, Outcome


def follow(
    handle: Handle,
    /,
    *,
    level: LevelOption = "debug",
    timeout: Annotated[float | None, plain("--timeout", "Follow the job at most this long.", **DURATION_OPTION)] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print the lines that a job logs, from the first one on, until it has ended.

    On a terminal, a bar below the lines shows the job's progress. With --json, the command prints an object per line, and one
    for the outcome. If you interrupt it, the job still runs.

    EXIT CODES
      0 the job succeeded
      1 it failed, was cancelled or expired
      3 no server
      4 no such job
      5 --timeout is over; the job continues
    """
    with waiting_for(handle, timeout, {} if json else None), view_of(handle, sys.stdout, json=json) as view:
        outcome = follow_job(server.aio(), handle, view, timeout, level)
    if json:
        print_json(describe(handle, outcome))
    error = failure(outcome)
    if error is not None:
        raise error
    return EXIT_DONE


class PlainView:
    """Writes lines alone; with ``json``, as objects."""

    def __init__(self, to: TextIO, *, json: bool = False) -> None:
        self._to = to
        self._json = json

    def lines(self, lines: list[dict[str, Any]]) -> None:
        """Write lines of the log."""
        for line in lines:
            if self._json:
                print_json(line)
            else:
                self._to.write(text_of(line, colours=False) + "\n")
        self._to.flush()

    def notice(self, notice: Notice) -> None:
        """Write a warning of the task."""
        if notice.kind == "warning":
            print(f"warning: {printable(notice.data.decode('utf-8', 'replace'))}", file=sys.stderr, flush=True)


class LiveView:
    """Shows lines above a progress bar on a terminal: on standard error, so that a result can go elsewhere."""

    def __init__(self, handle: str) -> None:
        from rich.console import Console  # noqa: PLC0415 - it loads slowly, and only terminals need it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        self._text = Text
        console = Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[share]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self.progress.add_task(printable(handle), total=None, share="")

    def lines(self, lines: list[dict[str, Any]]) -> None:
        """Show lines of the log."""
        for line in lines:
            self.progress.console.print(self._text.from_ansi(text_of(line, colours=True)), soft_wrap=True)

    def notice(self, notice: Notice) -> None:
        """Show progress, or a warning of the task."""
        if notice.kind == "progress":
            share = f"{notice.numerator} of {notice.denominator}"
            total = notice.denominator or None
            self.progress.update(self._task, completed=notice.numerator, total=total, share=share)
        elif notice.kind == "warning":
            text = printable(notice.data.decode("utf-8", "replace"))
            self.progress.console.print(self._text(f"warning: {text}"), soft_wrap=True)


@contextlib.contextmanager
def view_of(handle: str, to: TextIO, *, json: bool) -> Iterator[View]:
    """Yield the view for a terminal, or for lines that go to ``to``."""
    if not json and sys.stderr.isatty() and to.isatty():
        live = LiveView(handle)
        with live.progress:
            yield live
    else:
        yield PlainView(to, json=json)


def follow_job(
    client: AsyncClient, handle: str, view: View, timeout: float | None = None, level: str = "debug"
) -> Outcome:
    """Show a job until it has ended, and return its outcome. Raises TimeoutError."""
    from mainspring.cli.follow_loop import follow_until_end  # noqa: PLC0415 - few commands need asyncio

    return follow_until_end(client, handle, view, timeout, level)

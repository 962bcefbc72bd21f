"""``mainspring jobs logs``: the lines that a job's tasks have logged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mainspring.api.logs import Logs
from mainspring.cli.calls import call
from mainspring.cli.display import print_json, printable
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.job_selection import Handle  # noqa: TC001 - cyclopts reads the annotations
from mainspring.cli.options import LOCAL, Json, ServerOptions, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mainspring.client.blocking import Client

Level = Literal["debug", "info", "warning", "error", "critical"]
LevelOption = Annotated[Level, Parameter(name="--level", help="Leave out lines below this level.")]
COLOURS = {"debug": "2", "info": "0", "warning": "33", "error": "31", "critical": "1;31"}


def logs(
    handle: Handle,
    /,
    *,
    tail: Annotated[int, Parameter(name="--tail", help="Print this many lines, the newest ones, up to 1000.")] = 200,
    whole: Annotated[bool, plain("--all", "Print all lines.", negative="")] = False,
    level: LevelOption = "debug",
    attempt: Annotated[int | None, plain("--attempt", "Print only lines of this attempt.")] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print what a job has logged: current_job().log, and the logging of Python, in its tasks.

    Of an attempt, the first 5,000 lines are kept and the last 5,000. With --json, the command prints an object per line.

    EXAMPLES
      mainspring jobs logs H:laptop:3000000000017 --level warning
      mainspring jobs logs H:laptop:3000000000017 --all > job.log

    EXIT CODES
      0 printed, 3 no server, 4 no such job
    """
    request = Logs(handle, tail=tail, level=level, attempt=attempt, after="" if whole else None)
    client = server.client()
    for lines in _pages(client, request) if whole else [call(client, request)["lines"]]:
        print_lines(lines, json=json)
    return EXIT_DONE


def _pages(client: Client, request: Logs) -> Iterator[list[dict[str, Any]]]:
    while True:
        answer = call(client, request)
        yield answer["lines"]
        if not answer["lines"]:
            return
        request.after = answer["next"]


def print_lines(lines: Iterable[dict[str, Any]], *, json: bool) -> None:
    """Print lines of a log."""
    colours = sys.stdout.isatty()
    for line in lines:
        if json:
            print_json(line)
        else:
            sys.stdout.write(text_of(line, colours=colours) + "\n")
    sys.stdout.flush()


def text_of(line: dict[str, Any], *, colours: bool) -> str:
    """Return a line of a log for people; it may have line feeds, followed by indented text."""
    first, *more = [_safe(part) for part in line["message"].split("\n")]
    fields = "".join(f" {printable(name)}={printable(value)}" for name, value in line["fields"].items())
    logger = f"{printable(line['logger'])}: " if line["logger"] else ""
    level = f"{line['level'].upper():8}"
    if colours:
        level = f"\x1b[{COLOURS.get(line['level'], '0')}m{level}\x1b[0m"
    text = "\n    ".join([f"{line['at']} {level} {logger}{first}{fields}", *more])
    missed = line.get("missed", 0)
    return f"({missed} lines are not kept)\n{text}" if missed else text


def _safe(text: str) -> str:
    return printable(text.replace("\t", "    ")) if text else ""

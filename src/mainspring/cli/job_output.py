"""Output of a job: its result, the lines that its tasks log, and its progress while it runs.

A result is its bytes for people and pipes, or a JSON object for programs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
from cyclopts import Parameter

from mainspring.api.jobs import FollowLogs, ReadJobLogs
from mainspring.api.streams import ListStreams, ReadStream
from mainspring.api.values import ListValues, ShowValue
from mainspring.api.workflows import ShowRun
from mainspring.cli.calls import NOTHING, Given, call, takes
from mainspring.cli.display import (
    AS_AGE,
    EXIT_DONE,
    LEFT_OUT,
    Step,
    print_error,
    print_json,
    print_rows,
    printable,
)
from mainspring.cli.operations import Handle  # noqa: TC001 - cyclopts reads the annotations
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, plain
from mainspring.client.outcomes import failure
from mainspring.codecs import described, described_json
from mainspring.errors import ConnectionLostError, JobFailed, NotFoundError, UsageError
from mainspring.jobs.user_data import decoded_result
from mainspring.quantities import format_duration
from mainspring.streams.model import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mainspring.cli.follow_loop import View
    from mainspring.client.aio import AsyncClient
    from mainspring.client.blocking import Client
    from mainspring.client.outcomes import Notice, Outcome


def handle_of(client: Client, key: str) -> str:
    """Return the handle of the job or run that a handle, a handle with the number of a run, or a workflow id names.

    Raises NotFoundError if no run has the workflow id.
    """
    if key.startswith("H:"):
        return key.partition("@")[0]
    try:
        return str(call(client, ShowRun(key))["handle"])
    except UsageError:  # a store without workflows
        raise NotFoundError(f"{key} is no handle of a job: give one, such as H:node:1000000000001") from None


def print_raw(data: bytes) -> None:
    """Write a result unchanged. On a terminal, add a newline before the prompt, and describe a result that is encoded."""
    if sys.stdout.isatty() and (encoded := described(data)):
        print(printable(encoded))
        return
    sys.stdout.buffer.write(data)
    if data and not data.endswith(b"\n") and sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def describe(handle: str, outcome: Outcome | None) -> dict[str, Any]:
    """Return the JSON object for a job's outcome; None: the job has not ended. docs/reference/cli.md lists the keys."""
    described: dict[str, Any] = dict.fromkeys(
        ("handle", "state", "attempt", "result", "encoding", "error", "traceback")
    )
    described["handle"] = handle
    if outcome is not None:
        described |= {"state": outcome.state, "attempt": outcome.attempt}
        if outcome.state == "succeeded":
            described["encoding"], described["result"] = decoded_result(outcome.data)
        if outcome.error is not None:
            parts = (outcome.error.type, outcome.error.message)
            described["error"] = ": ".join(part for part in parts if part) or None
            described["traceback"] = outcome.error.traceback
    return described


@contextlib.contextmanager
def waiting_for(handle: str, timeout: float | None, json: Mapping[str, Any] | None) -> Iterator[None]:
    """Explain, if the wait for a job in this block ends before the job, that the job continues."""
    try:
        yield
    except TimeoutError:
        assert timeout is not None
        if json is not None:
            print_json({**describe(handle, None), **json})
        raise TimeoutError(
            f"job {handle} has not ended within {format_duration(timeout)}; {_continues(handle)}"
        ) from None
    except KeyboardInterrupt:
        print_error(f"job {handle} has not ended; {_continues(handle)}")
        raise


def write_outcome(handle: str, outcome: Outcome, *, json: Mapping[str, Any] | None) -> int:
    """Write a raw result, or with ``json`` an object with these keys added. Raises JobError if the job did not succeed."""
    if json is not None:
        print_json({**describe(handle, outcome), **json})
    error = failure(outcome)
    if error is not None:
        if isinstance(error, JobFailed) and not error.type_name:
            raise JobFailed(handle, "WORK_FAIL", "the worker gave no reason", None, error.attempt)
        raise error
    if json is None:
        print_raw(outcome.data)
    return EXIT_DONE


def _continues(handle: str) -> str:
    return f"it continues; wait for it with: mainspring jobs result {handle}"


COLOURS = {"debug": "2", "info": "0", "warning": "33", "error": "31", "critical": "1;31"}


@takes(ReadJobLogs)
def logs(
    handle: Handle,
    /,
    *,
    given: Given = NOTHING,
    tail: Annotated[int, Parameter(name="--tail", help="Print this many lines, the newest ones, up to 1000.")] = 200,
    whole: Annotated[bool, plain("--all", "Print all lines.", negative="")] = False,
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
    request = ReadJobLogs(handle, tail=tail, whole=whole, **given)
    client = server.client()
    for lines in _pages(client, request) if whole else [call(client, request)["items"]]:
        print_lines(lines, json=json)
    return EXIT_DONE


Key = Annotated[str, Parameter(name="KEY", help="The handle of a job, or the handle or workflow id of a run.")]
ValueName = Annotated[str | None, Parameter(name="NAME", help="Print this value alone, as JSON.")]
ANSWER_WITHIN = 5.0
"""Seconds beyond the server's own wait after which a request for items is sent again."""
VALUE_COLUMNS = ("name", "value", "at", "attempt")
VALUE_STEPS: tuple[Step, ...] = ({"value": 60}, {"at": AS_AGE}, {"attempt": LEFT_OUT}, {"value": 20}, {"value": 1})


def values(
    key: Key,
    name: ValueName = None,
    /,
    *,
    wait: Annotated[
        float | None, plain("--wait", "With NAME: wait at most this long for the value.", **DURATION_OPTION)
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Print the values that a job or a run has published: the last one of each name.

    A task publishes with current_job().publish(name, value), a workflow with workflow.publish(name, value).

    EXAMPLES
      mainspring jobs values H:laptop:3000000000017
      mainspring jobs values import-2031 stage --wait 1m

    EXIT CODES
      0 printed, 3 no server, 4 no such job, run or value, 5 --wait is over
    """
    client = server.client()
    handle = handle_of(client, key)
    if name is None:
        if wait is not None:
            raise UsageError("--wait is for one value: name it, or leave it out")
        found = call(client, ListValues(handle))["items"]
        shown = found if json else [{**one, "value": json_text(one["value"])} for one in found]
        print_rows(VALUE_COLUMNS, shown, json=json, steps=VALUE_STEPS)
        return EXIT_DONE
    found = call(client, ShowValue(handle, name)) if wait is None else _awaited(client, handle, name, wait)
    if json:
        print_json(found)
    else:
        sys.stdout.write(json_text(found["value"]) + "\n")
    return EXIT_DONE


STREAM_COLUMNS = ("name", "items", "bytes", "at", "refused")
STREAM_STEPS: tuple[Step, ...] = ({"at": AS_AGE}, {"refused": LEFT_OUT}, {"bytes": LEFT_OUT}, {"name": 20})


def stream(
    key: Key,
    name: Annotated[str | None, Parameter(name="NAME", help="Print the items of this stream.")] = None,
    /,
    *,
    offset: Annotated[
        int, plain("--offset", "With NAME: the number of the first item to print; that of a stream is 0.")
    ] = 0,
    follow: Annotated[
        bool, plain("--follow", "With NAME: print new items until the job has ended.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List the streams that a job or a run has written, or print the items of one.

    A task writes with current_job().stream(name).write(item), a workflow with workflow.stream(name).write(item). Texts are
    printed as they are, without control characters; other items are printed as JSON, one in a line. Where an attempt was given up
    and another one begins, a line on stderr says so.

    EXAMPLES
      mainspring jobs stream H:laptop:3000000000017
      mainspring jobs stream H:laptop:3000000000017 answer --follow

    EXIT CODES
      0 printed, 3 no server, 4 no such job or run
    """
    client = server.client()
    handle = handle_of(client, key)
    if name is None:
        if follow or offset:
            raise UsageError("--follow and --offset are for the items of one stream: name it, or leave them out")
        print_rows(STREAM_COLUMNS, call(client, ListStreams(handle))["items"], json=json, steps=STREAM_STEPS)
        return EXIT_DONE
    before: dict[str, Any] | None = None
    inside = False
    for one in _items(client, ReadStream(handle, check_name(name), offset), follow=follow):
        if json:
            print_json(one)
            sys.stdout.flush()
            continue
        if before is not None and one["part"] != before["part"]:
            sys.stdout.write("\n" if inside else "")
            sys.stdout.flush()
            print_error(
                f"attempt {before['attempt']} was given up; attempt {one['attempt']} begins at item {one['offset']}"
            )
            inside = False
        value = one["value"]
        is_text = isinstance(value, str)
        text = terminal_text(value) if is_text else json_text(value) + "\n"
        if inside and not is_text:
            text = "\n" + text
        sys.stdout.write(text)
        inside = not text.endswith("\n") if text else inside
        before = one
        sys.stdout.flush()
    sys.stdout.write("\n" if inside else "")
    return EXIT_DONE


def _items(client: Client, request: ReadStream, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the items of a stream; if a connection ends, it goes on behind the last one."""
    from mainspring.client.streams import StreamCursor  # noqa: PLC0415 - few commands need asyncio

    cursor = StreamCursor(request.name, request.offset, follow=follow)
    while not cursor.ended:
        try:
            answer = client.call(request.call, cursor.params(request.handle), ANSWER_WITHIN)
        except ConnectionLostError as error:
            time.sleep(cursor.lost(error, time.monotonic()))
        else:
            yield from answer["items"]
            cursor.passed(answer)


def terminal_text(text: str) -> str:
    """Return a text whose control characters, but for line feeds and tabs, are escaped: it is safe for a terminal."""
    return "".join(one if one in "\n\t" or one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _awaited(client: Client, handle: str, name: str, wait: float) -> dict[str, Any]:
    from mainspring.client.job import ValueWait, awaited_value  # noqa: PLC0415 - few commands need asyncio

    return awaited_value(client, ValueWait(handle, name, 0, wait))


def json_text(value: Any) -> str:
    """Return a value as JSON in one line, safe for a terminal; a description of one that is encoded."""
    return described_json(value) or printable(msgspec.json.encode(value).decode())


def _pages(client: Client, request: ReadJobLogs) -> Iterator[list[dict[str, Any]]]:
    while True:
        answer = call(client, request)
        yield answer["items"]
        if not answer["items"] or answer["next"] is None:
            return
        request.cursor = answer["next"]


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


@takes(FollowLogs, "level")
def follow(
    handle: Handle,
    /,
    *,
    given: Given = NOTHING,
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
        outcome = follow_job(server.aio(), handle, view, timeout, **given)
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

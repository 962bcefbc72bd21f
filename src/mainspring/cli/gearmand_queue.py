"""``mainspring import``: submit the jobs of gearmand's own SQLite queue."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

import apsw
from cyclopts import Parameter

from mainspring.cli.failures import EXIT_DONE, EXIT_FAILED, print_error
from mainspring.cli.options import LOCAL, ServerOptions
from mainspring.client.options import Options
from mainspring.client.outcomes import Submitted
from mainspring.client.session import Request
from mainspring.errors import ConnectionLostError, StoreForeignError, UsageError
from mainspring.server.settings import DAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.client.options import Priority

DEFAULT_TABLE = "gearman_queue"
PRIORITY_OF: dict[int, Priority | None] = {0: "high", 1: None, 2: "low"}
UNIQUE_LIMIT = 64


def import_queue(
    file: Annotated[Path, Parameter(help="The file of gearmand's option --libsqlite3-db.")],
    /,
    *,
    table: Annotated[
        str, Parameter(name="--table", help="The table of gearmand's option --libsqlite3-table.")
    ] = DEFAULT_TABLE,
    server: ServerOptions = LOCAL,
) -> int:
    """Submit the jobs of a gearmand SQLite queue to a running server.

    Stop gearmand first. The command only reads the file. Each job keeps its function, unique, priority, time and payload. You
    can repeat an interrupted import: the command skips jobs that the server has, or that have ended in the last day.

    EXAMPLES
      mainspring import /var/lib/gearman/queue.db --server 127.0.0.1:4730
    """
    if not file.exists():
        raise UsageError(f"there is no file {file}: name the file of gearmand's --libsqlite3-db")
    accepted = joined = refused = 0
    for answers in server.client().submit_many(read_queue(file, table)):
        for answer in answers:
            if isinstance(answer, ConnectionLostError):
                raise answer
            if not isinstance(answer, Submitted):
                refused += 1
                print_error(f"a job was refused: {answer}")
            elif answer.joined:
                joined += 1
            else:
                accepted += 1
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{accepted + joined} jobs")
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    print(f"imported {accepted} jobs; {joined} existed already; {refused} refused", flush=True)
    return EXIT_FAILED if refused else EXIT_DONE


def read_queue(file: Path, table: str = DEFAULT_TABLE) -> Iterator[Request]:
    """Yield a submit for each row of gearmand's queue, in the order of the rows.

    Raises StoreForeignError if the file or the table is not such a queue.
    """
    quoted = '"' + table.replace('"', '""') + '"'
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        raise StoreForeignError(f"cannot read {file}: {error}; name a file of gearmand's SQLite queue") from error
    try:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({quoted})")}
        if not {"unique_key", "function_name", "priority", "data"} <= columns:
            raise StoreForeignError(
                f"{file} has no table {table} of a gearmand queue; name the table with --table, or name another file"
            )
        when = "when_to_run" if "when_to_run" in columns else "0"
        rows = connection.execute(
            f"SELECT unique_key, function_name, priority, data, {when} FROM {quoted} ORDER BY rowid"  # noqa: S608 - quoted
        )
        for unique, function, priority, data, due in rows:
            yield _request(_bytes(unique), _bytes(function), int(priority or 0), _bytes(data), int(due or 0))
    except apsw.Error as error:
        raise StoreForeignError(f"cannot read {file}: {error}; name a file of gearmand's SQLite queue") from error
    finally:
        connection.close()


def _request(unique: bytes, function: bytes, priority: int, data: bytes, due: int) -> Request:
    """Return the submit for a row.

    A row without a unique gets one from its content, so that a repeated import does not submit it twice.
    """
    if not unique:
        content = hashlib.sha256(b"\0".join((function, b"%d" % priority, b"%d" % due, data)))
        unique = f"import-{content.hexdigest()[:48]}".encode()
    options = Options(priority=PRIORITY_OF.get(priority), run_at=float(due) if due > 0 else None, keep_unique=DAY)
    return Request(function, unique[:UNIQUE_LIMIT], options.wire(), data)


def _bytes(value: object) -> bytes:
    return (
        value if isinstance(value, bytes) else b"" if value is None else str(value).encode("utf-8", "surrogateescape")
    )

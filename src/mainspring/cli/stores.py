"""``mainspring migrate``, ``backup``, ``move-runs`` and ``import``: commands for stores.

``migrate`` updates a schema, and grants the right to submit in transactions. ``backup`` copies a store while a node uses it.
``move-runs`` moves open runs of workflows from SQLite to PostgreSQL. ``import`` submits the jobs of gearmand's own SQLite queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

import apsw
from cyclopts import Parameter

from mainspring.api.nodes import ShowStatus
from mainspring.cli.calls import call
from mainspring.cli.display import EXIT_DONE, EXIT_FAILED, print_error, print_json
from mainspring.cli.options import LOCAL, Json, ServerOptions, option, plain
from mainspring.client.options import Options
from mainspring.client.outcomes import Submitted
from mainspring.client.session import Request
from mainspring.engines.sqlite.store_file import check_file, copy_store
from mainspring.errors import ConnectionLostError, ServerError, StoreForeignError, UsageError
from mainspring.namespaces import DEFAULT
from mainspring.quantities import format_size
from mainspring.server.settings import DAY, parse_store
from mainspring.stores import DEFAULT_STORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.client.options import Priority


def migrate(
    *,
    store: Annotated[
        str,
        option(
            "--store",
            "The store, such as postgresql://USER@HOST/DATABASE?schema=NAME, zookeeper://HOST:2181/CHROOT or sqlite:///FILE.",
            metavar="URL",
        ),
    ] = DEFAULT_STORE,
    backup_before_migrate: Annotated[
        bool,
        plain(
            "--backup-before-migrate",
            "Copy a SQLite store beside its file, as FILE.schema-N.backup, before its schema is updated.",
            negative="--no-backup-before-migrate",
        ),
    ] = True,
    grant_submit: Annotated[
        str | None,
        plain(
            "--grant-submit",
            "Let a role of PostgreSQL submit jobs and signal runs in its transactions, and nothing else; print the statements"
            " that do it.",
            metavar="ROLE",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        plain(
            "--namespace",
            "A namespace that the role may submit in (repeatable), and in no others; '*' is all. Without it: default.",
            metavar="NAMESPACE",
            negative="",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Update the schema of a store, and print the applied migrations.

    A node updates the schema when it starts, unless --no-migrate is given. Use this command to choose the time yourself. Nodes
    of the previous version can run during the update, unless the release notes say otherwise. On ZooKeeper, the command creates
    the chroot and the permanent nodes of the tree.

    With --grant-submit it also gives a role of PostgreSQL the right to submit in transactions, and to signal runs. Repeating it
    changes nothing.

    EXAMPLES
      mainspring migrate --store postgresql://mainspring@db.example/jobs
      mainspring migrate --store postgresql://mainspring@db.example/jobs --grant-submit web --namespace shop
      mainspring migrate --store zookeeper://zk1,zk2,zk3/jobs

    EXIT CODES
      0 up to date, 1 failed, 2 wrong usage
    """
    from mainspring.server import engines  # noqa: PLC0415 - all engines, which other commands do not need

    settings = parse_store(store, backup_before_migrate=backup_before_migrate)
    if settings.engine == "memory":
        raise UsageError("a store in memory has no schema to update: name a database with --store")
    if namespace and grant_submit is None:
        raise UsageError("--namespace restricts the role of --grant-submit: give that too")
    if grant_submit is not None and settings.engine != "postgres":
        raise UsageError(
            "--grant-submit is for a store on PostgreSQL: only there, users submit in their own transactions"
        )
    applied = asyncio.run(engines.migrate_store(settings))
    granted = (
        []
        if grant_submit is None
        else asyncio.run(engines.grant_submit(settings, grant_submit, namespace or [DEFAULT]))
    )
    if json:
        print_json({"store": settings.shown, "applied": applied} | ({"granted": granted} if granted else {}))
        return EXIT_DONE
    if applied:
        print(f"{settings.shown}: applied {', '.join(f'{number:04}' for number in applied)}", flush=True)
    else:
        print(f"{settings.shown}: up to date", flush=True)
    for statement in granted:
        print(f"{statement};", flush=True)
    return EXIT_DONE


def backup(
    file: Annotated[Path, Parameter(help="The name of the copy. The file must not exist, except with --force.")],
    /,
    *,
    store: Annotated[
        str | None,
        option("--store", "The store to copy; by default the store of the server.", metavar="URL", show_default=False),
    ] = None,
    force: Annotated[bool, plain("--force", "Replace FILE if it exists.", negative="")] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Copy a SQLite store into a file, even while a node uses it.

    The copy has the state of the store at one moment. When the command returns, the copy is checked and on disk. You can open
    it as a store: mainspring serve --store sqlite:///COPY.

    The command refuses other stores. Back up a PostgreSQL store with the database's own tools, such as pg_dump, and a ZooKeeper
    store with the ensemble's snapshots and logs.

    EXAMPLES
      mainspring backup jobs-$(date +%F).db
      mainspring backup copy.db --store sqlite:////var/lib/mainspring/jobs.db
    """
    settings = parse_store(store or _store_of(server))
    if settings.engine == "postgres":
        raise UsageError(
            f"{settings.shown} is not a SQLite store: back it up with PostgreSQL's own tools, such as pg_dump"
        )
    if settings.engine == "zookeeper":
        raise UsageError(
            f"{settings.shown} is not a SQLite store: back it up with the snapshots and logs of the ensemble"
        )
    source = settings.path
    if source is None:
        raise UsageError(
            "a store in memory ends with its node and cannot be copied: run the node with --store sqlite:///FILE"
        )
    if not source.exists():
        raise UsageError(f"there is no store {source}: name the store to copy with --store")
    check_file(source)
    _check_target(file, source, force=force)
    size = copy_store(source, file, _show if sys.stderr.isatty() else None)
    print(f"{file}: {format_size(size)} of {source}", flush=True)
    return EXIT_DONE


def _check_target(file: Path, source: Path, *, force: bool) -> None:
    """Raise UsageError for a copy that would damage a store, or that cannot be created."""
    if file.is_dir():
        raise UsageError(f"{file} is a directory: name a file for the copy")
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} does not exist; create it first, or choose another directory")
    if file.exists() and file.samefile(source):
        raise UsageError(f"{file} is the store itself: choose another name for the copy")
    for end in ("-wal", "-journal"):
        log = file.with_name(f"{file.name}{end}")
        if log.exists():
            # SQLite would read it as the copy's own log, and write its content into the copy.
            raise UsageError(
                f"{log} belongs to a store of that name, which may be in use: choose another name, "
                "or remove that file if no server uses the store"
            )
    if file.exists() and not force:
        raise UsageError(f"{file} exists already: choose another name, or replace it with --force")


def _store_of(server: ServerOptions) -> str:
    """Return the URL of the server's store, or the default store if there is no server."""
    try:
        store = call(server.client(), ShowStatus(), timeout=5.0).get("store", DEFAULT_STORE)
    except (ServerError, TimeoutError):
        return DEFAULT_STORE
    if ":" not in store:
        raise UsageError("the token does not show where the server's store is: name it with --store")
    return str(store)


def _show(remaining: int, pages: int) -> None:
    sys.stderr.write(f"\r\x1b[K{100 * (pages - remaining) // pages if pages else 100} %")
    if not remaining:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def move_runs(
    *,
    source: Annotated[
        str,
        plain(
            "--from", "The SQLite store that the runs leave: sqlite:///FILE. No node may have it open.", metavar="URL"
        ),
    ],
    target: Annotated[
        str,
        plain(
            "--to",
            "The PostgreSQL store that they enter: postgresql://USER@HOST/DATABASE. No node may have used it yet.",
            metavar="URL",
        ),
    ],
    json: Json = False,
) -> int:
    """Move open runs of workflows from a SQLite store to a new PostgreSQL store.

    Stop the old server, and run mainspring migrate for the new store first. Handles and workflow ids stay valid, and the runs go
    on as soon as the first node has started there. The versions of workflows move with the runs, their histories, their
    activities and signals, and starts of workflows that wait. Other jobs, closed runs and schedules stay.

    Between its first and its last step, no node can open the old store. If the command fails or is killed, run it again: nothing
    moves twice.

    EXAMPLES
      mainspring move-runs --from sqlite:////var/lib/mainspring/jobs.db --to postgresql://mainspring@db.example/jobs

    EXIT CODES
      0 moved, 1 failed, 2 wrong usage
    """
    from mainspring.server.run_move import move_runs as move  # noqa: PLC0415 - all engines, which other commands do not need

    old, new = parse_store(source), parse_store(target)
    if old.engine != "sqlite":
        raise UsageError(f"{old.shown} is not a SQLite store: runs move from --from sqlite:///FILE")
    if new.engine != "postgres":
        raise UsageError(f"{new.shown} is not a PostgreSQL store: runs move to --to postgresql://USER@HOST/DATABASE")
    moved = asyncio.run(move(old, new))
    if json:
        print_json({"from": old.shown, "to": new.shown, "runs": moved.runs, "jobs": moved.jobs})
    else:
        print(f"{new.shown}: {moved.runs} open runs and {moved.jobs} jobs of {old.shown}", flush=True)
    return EXIT_DONE


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

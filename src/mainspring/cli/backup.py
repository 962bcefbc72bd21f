"""``mainspring backup``: copy a store while a node uses it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

import apsw
from cyclopts import Parameter

from mainspring.api.status import Show
from mainspring.cli.asking import ask
from mainspring.cli.failures import DONE
from mainspring.cli.options import LOCAL, ServerOptions, option, plain
from mainspring.engines.sqlite.opening import check_file
from mainspring.errors import ServerError, StoreCorruptError, StoreError, StoreFullError, UsageError
from mainspring.private_files import MODE, open_private
from mainspring.quantities import format_size
from mainspring.server.settings import DEFAULT_STORE, parse_store

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_PAGES = 1024


def backup(
    file: Annotated[Path, Parameter(help="The copy; it must not exist yet.")],
    /,
    *,
    store: Annotated[
        str | None,
        option("--store", "The store to copy; the server's own where not given.", metavar="URL", show_default=False),
    ] = None,
    force: Annotated[bool, plain("--force", "Replace the copy if it exists.", negative="")] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Copy a SQLite store into a file, also while a node uses it.

    The copy is the store as it was at one moment, in one file, checked and on disk when the command returns; the node
    goes on meanwhile. It is a store itself: mainspring serve --store sqlite:///COPY.

    Stores on PostgreSQL and ZooKeeper are refused: the database's own tools (pg_dump) and the ensemble's snapshots and logs
    are their backup.

    EXAMPLES
      mainspring backup jobs-$(date +%F).db
      mainspring backup copy.db --store sqlite:////var/lib/mainspring/jobs.db
    """
    settings = parse_store(store or _store_of(server))
    if settings.engine == "postgres":
        raise UsageError(
            f"{settings.shown} is copied with PostgreSQL's own tools, such as pg_dump: this command copies SQLite stores"
        )
    if settings.engine == "zookeeper":
        raise UsageError(
            f"{settings.shown} is kept by an ensemble, whose snapshots and logs are its backup: this command copies SQLite stores"
        )
    source = settings.path
    if source is None:
        raise UsageError(
            "a store in memory cannot be backed up: it ends with its node; serve --store sqlite:///FILE keeps it"
        )
    if not source.exists():
        raise UsageError(f"there is no store {source} to copy: name it with --store")
    check_file(source)
    _check_target(file, source, force=force)
    size = copy_store(source, file, _show if sys.stderr.isatty() else None)
    print(f"{file}: {format_size(size)} of {source}", flush=True)
    return DONE


def _check_target(file: Path, source: Path, *, force: bool) -> None:
    """Refuse a copy that would do harm to a store; raises UsageError."""
    if file.is_dir():
        raise UsageError(f"{file} is a directory: name the file that the copy is to be")
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} does not exist; create it first, or choose another place")
    if file.exists() and file.samefile(source):
        raise UsageError(f"{file} is the store itself: choose another name for the copy")
    for end in ("-wal", "-journal"):
        beside = file.with_name(f"{file.name}{end}")
        if beside.exists():
            # SQLite would take it for the copy's own, and write what is in it over the copy.
            raise UsageError(
                f"{beside} belongs to a store of that name, which may be in use: choose another name, "
                "or remove it where no server uses that store any more"
            )
    if file.exists() and not force:
        raise UsageError(f"{file} exists already: choose another name, or replace it with --force")


def copy_store(source: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy one moment of a SQLite file that others may write to; return the copy's bytes.

    ``progress`` is told the pages that remain and all pages. The target appears complete or not at all. Raises
    StoreCorruptError where source or copy is damaged, StoreFullError and StoreError where the copy cannot be written.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _remove_abandoned(target)
        reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            reader.set_busy_timeout(10_000)
            # The transaction holds one moment of the store for all steps; writers go on in its WAL file.
            reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            _copy_pages(reader, partial, source.stat().st_mode & MODE | 0o600, progress)
        finally:
            reader.close()
        with partial.open("rb") as copy:
            os.fsync(copy.fileno())
            size = os.fstat(copy.fileno()).st_size
        partial.replace(target)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorruptError(f"{source} is damaged or no SQLite file ({error}); nothing was copied") from error
    except apsw.FullError as error:
        raise StoreFullError(f"no space for the copy {target}: free some, or choose another place") from error
    except (apsw.IOError, OSError) as error:
        # Of a copy that SQLite could not write it says "not an error".
        raise StoreError(
            f"cannot copy {source} to {target}: a disk has failed ({getattr(error, 'strerror', None) or 'reading or writing'}); "
            "look into the system's log, or choose another place"
        ) from error
    except apsw.Error as error:
        raise StoreError(f"cannot copy {source} to {target}: {error}") from error
    finally:
        for end in ("", "-journal"):
            partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return size


def _remove_abandoned(target: Path) -> None:
    """Remove what copies to the same name have left whose processes were killed."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.partial(-journal)?")
    for path in target.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except (ProcessLookupError, OverflowError):
            path.unlink(missing_ok=True)
        except PermissionError:  # it lives, as another user's
            continue


def _copy_pages(reader: apsw.Connection, partial: Path, mode: int, progress: Callable[[int, int], None] | None) -> None:
    partial.unlink(missing_ok=True)
    # No more readable than the store: SQLite would leave that to the umask.
    os.close(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    writer = apsw.Connection(str(partial))
    try:
        with writer.backup("main", reader, "main") as steps:
            while not steps.done:
                steps.step(STEP_PAGES)
                if progress is not None:
                    progress(steps.remaining, steps.page_count)
        writer.execute("PRAGMA journal_mode=DELETE")  # one file, without a WAL beside it
        (verdict,) = writer.execute("PRAGMA quick_check(1)").fetchone() or ("",)
        if verdict != "ok":
            raise StoreCorruptError(f"the copy is damaged ({verdict}), so the store may be; nothing was kept")
    finally:
        writer.close()


def _store_of(server: ServerOptions) -> str:
    """Ask the server which store it uses; the usual one where there is no server."""
    try:
        store = ask(server.client(), Show(), timeout=5.0).get("store", DEFAULT_STORE)
    except (ServerError, TimeoutError):
        return DEFAULT_STORE
    return str(store)


def _show(remaining: int, pages: int) -> None:
    sys.stderr.write(f"\r\x1b[K{100 * (pages - remaining) // pages if pages else 100} %")
    if not remaining:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()

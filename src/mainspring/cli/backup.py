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
from mainspring.cli.calls import call
from mainspring.cli.failures import EXIT_DONE
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


def copy_store(source: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy the state of a SQLite file at one moment, even while others write to it; return the size of the copy in bytes.

    ``progress`` is called with the number of remaining pages and of all pages. The target appears complete or not at all. Raises
    StoreCorruptError if source or copy is damaged, StoreFullError and StoreError if the copy cannot be written.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _remove_abandoned(target)
        reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            reader.set_busy_timeout(10_000)
            # The transaction gives all steps the same state of the store. Writers continue in its WAL file.
            reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            _copy_pages(reader, partial, source.stat().st_mode & MODE | 0o600, progress)
        finally:
            reader.close()
        with partial.open("rb") as copy:
            os.fsync(copy.fileno())
            size = os.fstat(copy.fileno()).st_size
        partial.replace(target)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorruptError(f"{source} is damaged or is not a SQLite file ({error}); nothing was copied") from error
    except apsw.FullError as error:
        raise StoreFullError(f"no space is left for the copy {target}: free some, or choose another disk") from error
    except (apsw.IOError, OSError) as error:
        # SQLite's own text for a failed write of the copy is "not an error".
        raise StoreError(
            f"cannot copy {source} to {target}: a disk has failed ({getattr(error, 'strerror', None) or 'reading or writing'}); "
            "read the system's log, or choose another disk"
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
    """Remove the partial files of killed processes that copied to the same name."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.partial(-journal)?")
    for path in target.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except (ProcessLookupError, OverflowError):
            path.unlink(missing_ok=True)
        except PermissionError:  # the process is alive and belongs to another user
            continue


def _copy_pages(reader: apsw.Connection, partial: Path, mode: int, progress: Callable[[int, int], None] | None) -> None:
    partial.unlink(missing_ok=True)
    # The copy is no more readable than the store: SQLite would only apply the umask.
    os.close(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    writer = apsw.Connection(str(partial))
    try:
        with writer.backup("main", reader, "main") as steps:
            while not steps.done:
                steps.step(STEP_PAGES)
                if progress is not None:
                    progress(steps.remaining, steps.page_count)
        writer.execute("PRAGMA journal_mode=DELETE")  # a single file, without a WAL file
        (verdict,) = writer.execute("PRAGMA quick_check(1)").fetchone() or ("",)
        if verdict != "ok":
            raise StoreCorruptError(f"the copy is damaged ({verdict}), so the store may be, too; the copy was removed")
    finally:
        writer.close()


def _store_of(server: ServerOptions) -> str:
    """Return the URL of the server's store, or the default store if there is no server."""
    try:
        store = call(server.client(), Show(), timeout=5.0).get("store", DEFAULT_STORE)
    except (ServerError, TimeoutError):
        return DEFAULT_STORE
    return str(store)


def _show(remaining: int, pages: int) -> None:
    sys.stderr.write(f"\r\x1b[K{100 * (pages - remaining) // pages if pages else 100} %")
    if not remaining:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()

"""Copies of a store's file: backups by command, and the copy before an update of the schema."""

from __future__ import annotations

import os
import re
from itertools import chain, count
from typing import TYPE_CHECKING

import apsw

from mainspring.errors import StoreCorruptError, StoreError, StoreFullError
from mainspring.private_files import open_private
from mainspring.quantities import format_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEP_PAGES = 1024
NO_COPY = "if you have a copy of your own, start with --no-backup-before-migrate"


def copy_before_migration(source: Path, version: int, size: int) -> Path:
    """Copy a store of ``size`` bytes before its schema is updated, beside it and under a new name; return the copy's path.

    The caller keeps other writers away. Raises StoreError, with what to do, if there is no space or the copy cannot be written.
    """
    names = (f"{source.name}.schema-{version}{end}.backup" for end in chain([""], map("-{}".format, count(2))))
    target = next(path for path in map(source.with_name, names) if not os.path.lexists(path))
    disk = os.statvfs(source.parent)
    free = disk.f_bavail * disk.f_frsize
    why = f"cannot copy {source} to {target} before its schema is updated"
    if free < size:
        raise StoreError(
            f"{why}: the copy needs {format_size(size)}, and {format_size(free)} are free; free some space, or {NO_COPY}"
        )
    try:
        copy_store(source, target, check=False)
    except StoreError as error:
        raise StoreError(f"{why}; nothing was changed: {error}; or {NO_COPY}") from error
    return target


def copy_store(
    source: Path, target: Path, progress: Callable[[int, int], None] | None = None, *, check: bool = True
) -> int:
    """Copy the state of a SQLite file at one moment, even while others write to it; return the size of the copy in bytes.

    ``check``: whether to look for damage in the copy, which takes longer than to copy it. ``progress`` is called with the number
    of remaining pages and of all pages. The target appears complete or not at all. Raises StoreCorruptError if source or copy is
    damaged, StoreFullError and StoreError if the copy cannot be written.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _remove_abandoned(target)
        reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            reader.set_busy_timeout(10_000)
            # The transaction gives all steps the same state of the store. Writers continue in its WAL file.
            reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            _copy_pages(reader, partial, progress, check=check)
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


def _copy_pages(
    reader: apsw.Connection,
    partial: Path,
    progress: Callable[[int, int], None] | None,
    *,
    check: bool,
) -> None:
    partial.unlink(missing_ok=True)
    # For its owner alone: copies are moved to places with other groups. SQLite would only apply the umask.
    os.close(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    writer = apsw.Connection(str(partial))
    try:
        with writer.backup("main", reader, "main") as steps:
            while not steps.done:
                steps.step(STEP_PAGES)
                if progress is not None:
                    progress(steps.remaining, steps.page_count)
        writer.execute("PRAGMA journal_mode=DELETE")  # a single file, without a WAL file
        (verdict,) = (writer.execute("PRAGMA quick_check(1)").fetchone() or ("",)) if check else ("ok",)
        if verdict != "ok":
            raise StoreCorruptError(f"the copy is damaged ({verdict}), so the store may be, too; the copy was removed")
    finally:
        writer.close()

"""Power cuts of a SQLite store: writes that no sync has followed are lost, kept or torn, at random.

In the node's process, `record_writes` makes SQLite write a journal of all its writes and syncs. After the process was killed,
`cut_power` gives the files the content that a disk may have after a power cut: all writes up to the last sync of each file, and
some of the others, sector by sector.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw

from mainspring.engines.sqlite import store_file

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

SECTOR = 512
LOG_PAGES = 100
"""Pages of the log after which the store folds it into the file: often, since a power cut may come then, too."""
SYNC_SECONDS = 0.002
"""Seconds that a sync takes: so many power cuts come during one."""
SUFFIXES = ("", "-wal", "-journal")
_WRITE, _TRUNCATE, _SYNC, _DELETE = range(4)
_HEADER = struct.Struct("<BBQL")

_installed: list[apsw.VFS] = []
"""SQLite uses it as long as it is referenced."""


class Write(NamedTuple):
    """A write or a truncation (``data`` is None) that may not be on the disk."""

    place: int
    data: bytes | None


# ---- in the node ----


def record_writes(store: Path, journal: Path) -> None:
    """Write a journal of what SQLite writes to a store from now on. The process must open no other store."""
    _installed.append(Recorder(store, journal))
    store_file.LOG_BYTES = 0  # the zeros would not be in the journal
    store_file.Folding.__init__.__defaults__ = (LOG_PAGES,)


class Recorder(apsw.VFS):
    """SQLite's access to files, with a journal."""

    def __init__(self, store: Path, journal: Path) -> None:
        self._files = {f"{store}{suffix}": number for number, suffix in enumerate(SUFFIXES)}
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        super().__init__("journal", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            return apsw.VFSFile("unix", name, flags)
        return RecordedFile(self, self._files[path], name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.note(self._files[filename], _DELETE)

    def note(self, file: int, kind: int, place: int = 0, data: bytes = b"") -> None:
        """Append a line; a killed process leaves it whole or not at all."""
        os.write(self._journal, _HEADER.pack(kind, file, place, len(data)) + data)


class RecordedFile(apsw.VFSFile):
    """A file with a journal of its writes."""

    def __init__(self, recorder: Recorder, number: int, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._recorder = recorder
        self._number = number
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._recorder.note(self._number, _WRITE, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._recorder.note(self._number, _TRUNCATE, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        del flags  # the disk gets its content from the journal
        time.sleep(SYNC_SECONDS)
        self._recorder.note(self._number, _SYNC)


# ---- after its death ----


def read_store(store: Path) -> dict[int, bytes]:
    """Return the content of a store's files, all of which is on the disk."""
    paths = {number: Path(f"{store}{suffix}") for number, suffix in enumerate(SUFFIXES)}
    return {number: path.read_bytes() for number, path in paths.items() if path.exists()}


def cut_power(store: Path, before: dict[int, bytes], journal: Path, chance: random.Random) -> int:
    """Give the files the content that a disk may have after a power cut; return the number of writes that were lost.

    ``before`` is their content when the journal began.
    """
    disk = {number: bytearray(content) for number, content in before.items()}
    unsynced: dict[int, list[Write]] = {}
    for kind, number, place, data in _lines(journal.read_bytes()):
        pending = unsynced.setdefault(number, [])
        if kind == _WRITE:
            pending.append(Write(place, data))
        elif kind == _TRUNCATE:
            pending.append(Write(place, None))
        elif kind == _DELETE:
            disk.pop(number, None)
            pending.clear()
        else:
            for write in pending:
                _apply(disk.setdefault(number, bytearray()), write)
            pending.clear()
    kept = chance.choice([0.0, 0.5, 0.9])
    lost = 0
    for number, pending in unsynced.items():
        for write in pending:
            for sector in _sectors(write):
                if chance.random() < kept:
                    _apply(disk.setdefault(number, bytearray()), sector)
                else:
                    lost += 1
    Path(f"{store}-shm").unlink(missing_ok=True)
    for number, suffix in enumerate(SUFFIXES):
        path = Path(f"{store}{suffix}")
        if number in disk:
            path.write_bytes(disk[number])
        else:
            path.unlink(missing_ok=True)
    return lost


def _lines(journal: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(journal):
        kind, number, place, size = _HEADER.unpack_from(journal, at)
        at += _HEADER.size
        if at + size > len(journal):
            return  # the process was killed while it wrote this
        yield kind, number, place, journal[at : at + size]
        at += size


def _sectors(write: Write) -> Iterator[Write]:
    """Return the parts of a write that a disk keeps whole."""
    if write.data is None:
        yield write
        return
    at = 0
    while at < len(write.data):
        size = SECTOR - (write.place + at) % SECTOR
        yield Write(write.place + at, write.data[at : at + size])
        at += size


def _apply(content: bytearray, write: Write) -> None:
    if write.data is None:
        del content[write.place :]
        return
    content.extend(bytes(max(write.place - len(content), 0)))
    content[write.place : write.place + len(write.data)] = write.data

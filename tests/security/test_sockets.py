"""A connection to a Unix socket needs no token, so the mode of its file decides who has all rights."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.process_options import socket_mode
from mainspring.errors import SettingsError
from mainspring.server import sockets
from mainspring.server.settings import UnixAddress
from mainspring.server.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("mask", "given", "expected"),
    [
        (0, None, 0o660),
        (0o022, None, 0o640),
        (0o077, None, 0o600),
        (0o111, None, 0o660),
        (0, "0600", 0o600),
        (0o077, "0660", 0o660),
        (0o027, "666", 0o666),
    ],
)
def test_the_umask_never_gives_a_socket_more_rights(
    tmp_path: Path, mask: int, given: str | None, expected: int
) -> None:
    path = tmp_path / "s"
    with umask(mask):
        (opened,) = bind(UnixAddress(str(path)), mode=None if given is None else socket_mode(given))
    with opened, socket.socket(socket.AF_UNIX) as client:
        assert mode_of(path) == expected
        client.connect(str(path))


def test_nobody_connects_before_the_mode_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    seen: list[int] = []
    limit = sockets._limit_mode  # noqa: SLF001 - the moment before the mode is set has no other name

    def look(name: str, mode: int | None) -> None:
        with socket.socket(socket.AF_UNIX) as early, pytest.raises(ConnectionRefusedError):
            early.connect(name)
        seen.append(mode_of(path))
        limit(name, mode)

    monkeypatch.setattr(sockets, "_limit_mode", look)
    with umask(0):
        (opened,) = bind(UnixAddress(str(path)))
    opened.close()
    assert all(not mode & 0o007 for mode in seen), "Linux creates the file with its mode"
    assert len(seen) == 1


def test_a_link_in_place_of_the_socket_changes_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, secret = tmp_path / "s", tmp_path / "secret"
    secret.touch(mode=0o600)
    limit = sockets._limit_mode  # noqa: SLF001 - the moment in which somebody replaces the file

    def replace(name: str, mode: int | None) -> None:
        path.unlink()
        path.symlink_to(secret)
        limit(name, mode)

    monkeypatch.setattr(sockets, "_limit_mode", replace)
    with pytest.raises(sockets.PortError, match="cannot listen"):
        bind(UnixAddress(str(path)), mode=0o666)
    assert mode_of(secret) == 0o600


@pytest.mark.parametrize("text", ["", "0", "777", "0770", "0066", "660x", "rw", "0o660", "4660", "640 "])
def test_other_modes_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not the mode of a socket"):
        socket_mode(text)

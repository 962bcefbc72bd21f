from __future__ import annotations

import os
import pwd
import resource
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from mainspring.errors import SettingsError
from mainspring.server.process import PidFile, raise_limits, switch_user

if TYPE_CHECKING:
    from pathlib import Path


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=30
    )


def test_the_pid_file_lives_as_long_as_the_node(tmp_path: Path) -> None:
    path = tmp_path / "node.pid"
    with PidFile(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


def test_a_removed_pid_file_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "node.pid"
    with PidFile(path):
        path.unlink()


def test_other_users_cannot_read_a_pid_file(tmp_path: Path) -> None:
    path = tmp_path / "node.pid"
    original = os.umask(0)
    try:
        with PidFile(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(original)


def test_a_pid_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "node.pid"
    precious.write_text("precious")
    path.symlink_to(precious)
    with (
        pytest.raises(SettingsError, match=r"cannot write the pid file .*node\.pid: it is a symbolic link"),
        PidFile(path),
    ):
        pass
    assert precious.read_text() == "precious"
    assert path.is_symlink()


def test_a_file_that_replaced_the_pid_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "node.pid"
    with PidFile(path):
        path.rename(tmp_path / "moved")
        path.write_text("1\n")
    assert path.read_text() == "1\n"


def test_a_pid_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match=r"cannot write the pid file .*: No such file"),
        PidFile(tmp_path / "x" / "y"),
    ):
        pass


def test_unknown_users_are_named() -> None:
    with pytest.raises(SettingsError, match="no user 'nobody-of-this-name'"):
        switch_user("nobody-of-this-name")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may switch to another user")
def test_another_user_has_a_home_of_its_own() -> None:
    result = run_python("""
        import os, pathlib
        from mainspring.server.process import switch_user
        os.environ.update(HOME="/root", USER="root")
        switch_user("nobody")
        print(pathlib.Path.home(), os.environ["USER"], os.environ["LOGNAME"], os.geteuid())
        """)
    entry = pwd.getpwnam("nobody")
    assert result.stdout.split() == [entry.pw_dir, "nobody", "nobody", str(entry.pw_uid)], result.stderr


def test_more_files_than_allowed_is_an_error() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = run_python(f"""
        import resource
        from mainspring.server.process import raise_limits
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, {min(hard, 4096)}))
        raise_limits(None, core_dumps=False)
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        raise_limits(128, core_dumps=True)
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        """)
    assert result.stdout.split() == [str(min(hard, 4096)), "128"], result.stderr
    if os.geteuid() != 0:
        with pytest.raises(SettingsError, match="open files"):
            raise_limits(hard + 1, core_dumps=False)


def test_the_starting_process_waits_for_the_code_of_the_background(tmp_path: Path) -> None:
    code = f"""
        import os, sys
        from mainspring.server.process import DaemonProcess
        detachment = DaemonProcess()
        print("listening", flush=True)
        verdict = sys.argv[1]
        if verdict == "ready":
            detachment.ready()
            print("not seen", flush=True)
            open({str(tmp_path / "sid")!r}, "w").write(str(os.getsid(0)))
        elif verdict == "failed":
            detachment.failed(2)
        """
    for verdict, expected in [("ready", 0), ("failed", 2), ("dead", 1)]:
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), verdict],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (result.returncode, result.stdout) == (expected, "listening\n"), (verdict, result.stderr)
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)

"""The servers that other tests rely on: they come up, die, come back and leave nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import keeper
from .server import Ensemble, ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 20.0


@pytest.fixture
def own(zookeeper_program: str, tmp_path: Path) -> Iterator[Ensemble]:
    """Return a server that may be disturbed."""
    with Ensemble(parent=tmp_path) as server:
        yield server


def test_a_server_is_killed_and_is_back_at_its_port(own: Ensemble) -> None:
    assert own.ask(b"ruok") == "imok"
    pid = own.pid()
    own.kill()
    assert not own.is_running()
    assert own.mode() == ""
    own.restart()
    assert own.pid() != pid
    assert own.mode() == "standalone"
    own.restart()
    own.shut_down()
    assert own.mode() == ""


def test_a_held_server_does_not_answer(own: Ensemble) -> None:
    own.pause()
    assert own.is_running()
    assert own.ask(b"ruok") == ""
    own.resume()
    own.await_ready()


def test_nothing_is_left_of_a_server_in_whatever_state(zookeeper_program: str, tmp_path: Path) -> None:
    with Ensemble(parent=tmp_path) as server:
        server.pause()
    assert keeper.processes(tmp_path) == []
    assert [*tmp_path.iterdir()] == []
    server.close()


def test_an_unknown_setting_is_reported_at_the_start(zookeeper_program: str) -> None:
    with pytest.raises(ZooKeeperError, match="NumberFormatException"), Ensemble(settings={"tickTime": "x"}):
        pass


def test_servers_end_with_the_process_that_started_them(zookeeper_program: str, tmp_path: Path) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests.zookeeper.server import Ensemble
        with Ensemble(parent=Path({str(tmp_path)!r})) as server:
            print(server.ports[0], flush=True)
            sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        assert int(owner.stdout.readline())
        (pid,) = keeper.processes(tmp_path)
        owner.send_signal(signal.SIGKILL)
        owner.wait(TIMEOUT)
        subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], check=True, timeout=TIMEOUT)
    finally:
        owner.kill()
        owner.communicate()

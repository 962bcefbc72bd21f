"""A forked command is a process like one that was started as usual."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests import commands
from tests.commands import ForkServer, ForkServerError
from tests.commands.forks import HIGHEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIRROR = [sys.executable, str(Path(__file__).with_name("mirror.py"))]
COMMAND = [sys.executable, "-m", "mainspring"]

WAYS = pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])


def shows(*, fresh: bool, program: Sequence[str] = MIRROR, **options: Any) -> dict[str, Any]:
    done = commands.run([*program, "state"], input="text", capture_output=True, text=True, fresh=fresh, **options)
    assert (done.returncode, done.stderr) == (7, "")
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_a_fork_has_the_state_of_a_fresh_process(tmp_path: Path) -> None:
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    strange = {**os.environ, "PYTHONUNBUFFERED": "1", "TZ": "Asia/Tokyo", "odd": "\udcff\u2713"}
    module = [sys.executable, "-m", "tests.commands.mirror"]
    ways: list[dict[str, Any]] = [
        {"env": buffered},
        {"env": buffered, "program": module, "cwd": Path(__file__).parents[2]},
        {"env": strange, "start_new_session": True, "cwd": tmp_path},
    ]
    for options in ways:
        forked = shows(fresh=False, **options)
        assert forked == shows(fresh=True, **options)
        assert forked["parent"] == os.getpid()


def test_a_fork_inherits_the_umask_of_the_moment() -> None:
    before = os.umask(0o027)
    try:
        assert shows(fresh=False, env=os.environ) == shows(fresh=True, env=os.environ)
    finally:
        os.umask(before)


def test_a_fork_inherits_files_blocked_signals_and_a_group() -> None:
    with contextlib.ExitStack() as files:
        numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
        for number in numbers:
            files.callback(os.close, number)
        higher = os.dup2(numbers[0], 700)
        files.callback(os.close, higher)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
        files.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        options: dict[str, Any] = {"env": os.environ, "pass_fds": [higher, *numbers], "process_group": 0}
        forked = shows(fresh=False, **options)
        assert forked == shows(fresh=True, **options)
    assert {str(higher), *map(str, numbers)} <= set(forked["descriptors"])
    assert {signal.SIGINT, signal.SIGUSR1} <= set(forked["blocked"])
    assert forked["leads"] == [False, True]


def streams_on_a_terminal(*, fresh: bool) -> Any:
    ours, theirs = pty.openpty()
    try:
        with commands.start([*MIRROR, "state"], stdin=theirs, stdout=theirs, stderr=theirs, fresh=fresh) as process:
            os.write(ours, b"\x04")
            shown = b""
            while b"}" not in shown.rpartition(b'"read"')[2]:
                shown += os.read(ours, 65536)
            assert process.wait(60) == 7
    finally:
        os.close(ours)
        os.close(theirs)
    return json.loads(shown[shown.index(b"{") :])["streams"]


def test_a_fork_on_a_terminal_has_the_streams_of_a_fresh_process() -> None:
    assert streams_on_a_terminal(fresh=False) == streams_on_a_terminal(fresh=True)


@WAYS
@pytest.mark.parametrize(
    ("way", "code", "output", "errors"),
    [
        ("never awaited", 1, "", ["was never awaited", "it ends"]),
        ("error", 1, "", ["Traceback", "ValueError: error"]),
        ("threads", 0, "a thread has ended", []),
        ("nothing", 0, "", []),
    ],
)
def test_a_process_ends_as_python_ends(fresh: bool, way: str, code: int, output: str, errors: list[str]) -> None:
    done = commands.run([*MIRROR, way], capture_output=True, text=True, fresh=fresh)
    assert (done.returncode, done.stdout) == (code, output)
    assert [word for word in errors if word not in done.stderr] == []
    assert bool(done.stderr) == bool(errors)


@contextlib.contextmanager
def waiting(way: str, *, fresh: bool) -> Iterator[subprocess.Popen[bytes]]:
    with commands.start([*MIRROR, way], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, fresh=fresh) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"
            yield process
        finally:
            process.kill()


@WAYS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it(fresh: bool, number: signal.Signals) -> None:
    with waiting("waits", fresh=fresh) as process:
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_signal_may_come_before_a_fork_is_what_was_ordered() -> None:
    for _ in range(10):
        with commands.start([*MIRROR, "waits"], stdout=subprocess.DEVNULL) as process:
            process.terminate()
            assert process.wait(60) == -signal.SIGTERM


def test_sigkill_ends_a_fork_that_ignores_sigterm() -> None:
    with waiting("ignores", fresh=False) as process:
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_the_time_of_a_fork_counts_as_that_of_a_child() -> None:
    before = time_of_children()
    while time_of_children() == before:  # a short command may take less than the system counts
        assert commands.run([*COMMAND, "jobs", "list", "--help"], stdout=subprocess.DEVNULL).returncode == 0


def time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_time_out_ends_a_fork() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run([*MIRROR, "waits"], stdout=subprocess.PIPE, timeout=0.1)


def test_variables_that_python_reads_at_its_start_have_a_fresh_process() -> None:
    shown = shows(fresh=False, env={**os.environ, "PYTHONOPTIMIZE": "1"})
    assert shown == shows(fresh=True, env={**os.environ, "PYTHONOPTIMIZE": "1"})
    assert shown["flags"] != shows(fresh=False)["flags"]


def test_a_server_of_forks_that_has_ended_fails_the_test_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer()
    try:
        monkeypatch.setattr(commands, "fork_server", lambda: server)
        assert commands.run([*COMMAND, "--version"], capture_output=True).returncode == 0
        os.kill(server.pid, signal.SIGSEGV)
        for _ in range(2):
            with pytest.raises(ForkServerError, match=r"ended with -11|BrokenPipe|ConnectionReset"):
                commands.run([*COMMAND, "--version"])
    finally:
        server.close()


def test_a_server_of_forks_ends_with_its_tester() -> None:
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from tests import commands;"
        "print(commands.fork_server().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", program, root], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(int(done.stdout))
        try:
            assert select.select([descriptor], [], [], 60)[0]
        finally:
            os.close(descriptor)


APP = """
import mirror
from mainspring import App

app = App()

@app.task
def here():
    return mirror.state()

@app.task(executor="process")
def in_a_process():
    return mirror.state()
"""


class Running(NamedTuple):
    process: subprocess.Popen[bytes]
    address: str

    def state(self, task: str) -> dict[str, Any]:
        """Return the state of the process that runs a task."""
        done = commands.run(
            [*COMMAND, "submit", "--server", self.address, task],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown


@contextlib.contextmanager
def running(directory: Path, *, fresh: bool) -> Iterator[Running]:
    """Run a node with a worker, for tasks that show the states of their processes."""
    directory.mkdir()
    shutil.copy(MIRROR[1], directory)
    (directory / "app.py").write_text(APP)
    options = [
        "run",
        "app.py",
        "--store",
        "memory://",
        "--gearman",
        "127.0.0.1:0",
        "--http",
        "none",
        "--log-level",
        "error",
    ]
    with commands.start(
        [*COMMAND, *options],
        cwd=directory,
        env=os.environ,
        stdout=subprocess.PIPE,
        start_new_session=True,
        fresh=fresh,
    ) as process:
        try:
            assert process.stdout is not None
            yield Running(process, process.stdout.readline().decode().split()[-1])
        finally:
            process.kill()


def test_the_processes_of_a_fork_have_the_state_of_fresh_ones(tmp_path: Path) -> None:
    def shown(fresh: bool) -> list[dict[str, Any]]:
        with running(tmp_path / "app", fresh=fresh) as run:
            states = [run.state(task) for task in ("here", "in_a_process")]
            command, worker = (state.pop("parent") for state in states)
            assert command == run.process.pid
            assert worker in children(command)
            assert [len(children(command)), len(children(worker))] == ([1, 1] if fresh else [2, 2])
        shutil.rmtree(tmp_path / "app")
        for state in states:
            del state["children"], state["environment"]["MAINSPRING_SERVER"]  # pids and ports
            assert state.pop("arguments")[1:] == state["command"][4:]
            state["command"] = state["command"][:4]
            state["descriptors"] = [one for one in state["descriptors"] if int(one) < HIGHEST]
        return states

    pairs = zip(shown(False), shown(True), strict=True)
    assert [
        (name, forked[name], fresh[name]) for forked, fresh in pairs for name in fresh if forked[name] != fresh[name]
    ] == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("group", [False, True], ids=["command", "group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_their_command(group: bool, number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path / "app", fresh=False) as run, contextlib.ExitStack() as ends:
        run.state("in_a_process")
        descriptors = [os.pidfd_open(pid) for pid in descendants(run.process.pid)]
        for descriptor in descriptors:
            ends.callback(os.close, descriptor)
        assert len(descriptors) == 4  # a worker, a process for tasks, and one beside each command that forks
        (os.killpg if group else os.kill)(run.process.pid, number)
        assert run.process.wait(60) == (-number if number == signal.SIGKILL else 0)
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 60)[0]


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which programs stand in for the command and for Python."""
    commands.fork_server().stand_ins(tmp_path)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def test_a_stand_in_runs_the_command(stand_ins: dict[str, str], tmp_path: Path) -> None:
    first = f"mainspring --version; echo text | python {MIRROR[1]} state; echo $?"
    script = f"{first}; python -c 'print(1 + 1)'; mainspring nothing"
    done = subprocess.run(
        ["sh", "-c", script], env=stand_ins, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    version, shown, two = done.stdout.splitlines()
    state = json.loads(shown.removesuffix("7"))
    assert (done.returncode, two, len(version.split("."))) == (2, "2", 3)
    assert "mainspring: " in done.stderr
    assert (state["read"], state["directory"], state["parent"]) == ("text\n", str(tmp_path), commands.fork_server().pid)
    assert state["descriptors"] == ["0", "1", "2", "3"]  # the last one lists them


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stand_in_and_its_command_end_together(stand_ins: dict[str, str], number: signal.Signals) -> None:
    with subprocess.Popen(["python", MIRROR[1], "waits"], env=stand_ins, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stdout.read() == b""  # nobody has it open

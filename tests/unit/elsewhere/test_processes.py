"""Programs on this host run once for a key, survive the process that started them, and end when they are cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.external import Done, Failed, Running
from mainspring.elsewhere import Command, ProcessMeta, Subprocess
from mainspring.elsewhere.keeper import locked, members, start_time
from mainspring.elsewhere.processes import Ended, OtherHostError, ProcessError, ProcessFiles
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 30.0


class Programs(Subprocess):
    """The work of these tests."""

    def __init__(self, directory: Path, grace: float, output: int) -> None:
        self.directory = directory
        self.grace = grace
        self.output = output

    async def submit(self, args: list[str], key: str) -> ProcessMeta:
        return await self.start(Command(args), key)


class Host:
    """The work on this host, and its files."""

    def __init__(self, root: Path, *, grace: float = 5.0, output: int = 65_536) -> None:
        self.root = root
        self.work = Programs(root, grace, output)
        self.files = self.work.files()

    def start(self, key: str, *argv: str, **options: Any) -> ProcessMeta:
        return asyncio.run(self.work.start(Command(argv, **options), key))

    def status(self, meta: ProcessMeta) -> Running | Done[Any] | Failed:
        return asyncio.run(self.work.status(meta))

    def cancel(self, meta: ProcessMeta) -> None:
        asyncio.run(self.work.cancel(meta))

    def end_all(self) -> None:
        """End all programs, whose keepers kill them soon."""
        self.work.grace = 0.0
        for directory in self.root.iterdir() if self.root.exists() else ():
            self.cancel(ProcessMeta(self.files.host, self.files.boot, directory.name))

    def started(self, meta: ProcessMeta) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / meta.directory / "started").read_bytes())
        return found

    def wait(self, meta: ProcessMeta) -> Running | Done[Any] | Failed:
        """Await the end of a program and of its keeper, and return its status."""
        started = self.started(meta)
        await_end(started["pid"], started["start"])
        await_end(started["keeper"], started["keeper_start"])
        return self.status(meta)


def await_end(pid: int, start: int) -> None:
    """Await the end of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) == start:
            assert select.select([descriptor], [], [], LIMIT)[0], f"{pid} has not ended"
    finally:
        os.close(descriptor)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "processes")
    yield host
    host.end_all()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO: a program that reads it goes on when the test has opened it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def pass_through(gate: Path) -> None:
    gate.write_text("go\n")


def test_a_program_gives_its_output(host: Host) -> None:
    meta = host.start("one", "sh", "-c", "echo result; echo problem >&2")
    assert host.wait(meta) == Done("result\n")
    assert asyncio.run(host.work.logs(meta)) == "result\nproblem\n"


def test_a_running_program_shows_its_last_line(host: Host, gate: Path) -> None:
    meta = host.start("one", "sh", "-c", f"echo 'line\x1b1'; read x < {gate}; echo end")
    descriptor = os.open(gate, os.O_WRONLY)  # the program reads
    assert host.status(meta) == Running(text="line 1")
    os.write(descriptor, b"go\n")
    os.close(descriptor)
    assert host.wait(meta) == Done("line\x1b1\nend\n")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no licence >&2; exit 3", "the program ended with exit code 3: no licence"),
        ("exit 4", "the program ended with exit code 4"),
        ("kill -SEGV $$", "the program ended with signal 11"),
    ],
)
def test_another_exit_code_is_a_failure(host: Host, script: str, error: str) -> None:
    assert host.wait(host.start("one", "sh", "-c", script)) == Failed(error)


def test_a_program_that_does_not_exist_fails_for_good(host: Host) -> None:
    found = host.wait(host.start("one", "/no/such/program"))
    assert found == Failed("the program could not be started: /no/such/program: No such file or directory", retry=False)


def test_no_shell_reads_the_arguments(host: Host) -> None:
    assert host.wait(host.start("one", "printf", "%s", "$HOME; `id` > x")) == Done("$HOME; `id` > x")


def test_programs_get_few_variables_and_a_directory(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_TOKEN", "secret")
    script = 'echo "$MAINSPRING_TOKEN,$SIZE,${PATH:+path}"; pwd; cat'
    meta = host.start("one", "sh", "-c", script, env={"SIZE": "4"}, input=b"given")
    work = host.root / meta.directory / "work"
    assert host.wait(meta) == Done(f",4,path\n{work}\ngiven")
    assert host.wait(host.start("two", "pwd", cwd="/")) == Done("/\n")
    modes = [path.stat().st_mode & 0o777 for path in (host.root, work.parent, work.parent / "stdout")]
    assert modes == [0o700, 0o700, 0o600]


def test_a_directory_that_others_can_write_is_refused(host: Host, tmp_path: Path) -> None:
    host.root.mkdir(mode=0o700)
    host.root.chmod(0o770)
    with pytest.raises(ProcessError, match="can be written by others"):
        host.start("one", "touch", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    host.root.chmod(0o750)
    host.wait(host.start("one", "true"))


@pytest.mark.parametrize("argv", ["ls", [], [1], ["a\0b"]])
def test_arguments_are_texts(argv: Any) -> None:
    with pytest.raises(UsageError):
        Command(argv)


def test_the_end_of_much_output_is_read(tmp_path: Path) -> None:
    host = Host(tmp_path, output=1000)
    found = host.wait(host.start("one", "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; printf end"))
    assert found == Done("x" * 997 + "end")


# ---- once ----


def test_many_starts_with_one_key_start_one_program(host: Host, tmp_path: Path, gate: Path) -> None:
    script = f"echo run >> {tmp_path}/runs; read x < {gate}"
    barrier = threading.Barrier(12)

    def start(_: int) -> ProcessMeta:
        files = ProcessFiles(host.root, grace=5.0, output=1000)
        barrier.wait(LIMIT)
        return files.start("one", Command(["sh", "-c", script]))

    with ThreadPoolExecutor(12) as pool:
        metas = set(pool.map(start, range(12)))
    pass_through(gate)
    assert len(metas) == 1
    assert host.wait(metas.pop()) == Done("")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_program_that_has_ended_is_not_started_again(host: Host, tmp_path: Path) -> None:
    argv = ("sh", "-c", f"echo run >> {tmp_path}/runs")
    meta = host.start("one", *argv)
    host.wait(meta)
    assert host.start("one", *argv) == meta
    assert asyncio.run(host.work.find("one")) == meta
    assert asyncio.run(host.work.find("two")) is None
    assert host.wait(host.start("two", *argv)) == Done("")
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_keeper_reads_what_its_worker_has_missed(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("sh", "-c", f"echo run >> {tmp_path}/runs")
    meta = host.start("one", *argv)
    host.wait(meta)
    (host.root / meta.directory / "ended").unlink()  # as if its keeper had been killed
    found = [None, meta]
    monkeypatch.setattr(host.files, "find", lambda _: found.pop(0))
    assert host.files.start("one", Command(argv)) == meta
    assert found == []
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_keeper_that_cannot_record_its_program_lets_none_run(host: Host, tmp_path: Path) -> None:
    argv = ("sh", "-c", f"echo run >> {tmp_path}/runs")
    meta = host.start("probe", "true")
    directory = host.root / meta.directory
    host.wait(meta)
    shutil.rmtree(directory)
    (directory / "started.new").mkdir(parents=True)  # it is in the way of the record
    with pytest.raises(ProcessError, match="started"):
        host.start("probe", *argv)
    assert not (tmp_path / "runs").exists()
    (directory / "started.new").rmdir()
    assert host.wait(host.start("probe", *argv)) == Done("")
    assert (tmp_path / "runs").read_text() == "run\n"


# ---- the end of the worker, and of others ----

WORKER = """
import asyncio, signal, sys, os
from mainspring.elsewhere import Command, Subprocess
work = Subprocess()
work.directory = sys.argv[1]
asyncio.run(work.start(Command(["sh", "-c", sys.argv[2]]), "one"))
os.killpg(0, signal.SIGKILL)
"""


def test_a_program_survives_the_kill_of_its_worker_and_is_found(host: Host, gate: Path) -> None:
    script = f"read x < {gate}; echo alive"
    done = subprocess.run([sys.executable, "-c", WORKER, host.root, script], start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    meta = asyncio.run(host.work.find("one"))
    assert meta is not None
    assert isinstance(host.status(meta), Running)
    assert host.start("one", "false") == meta
    pass_through(gate)
    assert host.wait(meta) == Done("alive\n")


def test_without_its_keeper_a_program_runs_on_and_its_exit_code_is_unknown(host: Host, gate: Path) -> None:
    meta = host.start("one", "sh", "-c", f"read x < {gate}")
    started = host.started(meta)
    os.kill(started["keeper"], signal.SIGKILL)
    await_end(started["keeper"], started["keeper_start"])
    assert isinstance(host.status(meta), Running)
    assert host.start("one", "false") == meta
    pass_through(gate)
    found = host.wait(meta)
    assert found == Failed("the program has ended, and its exit code is unknown: its keeper was killed")


def test_a_restart_of_the_machine_has_ended_it(host: Host, gate: Path) -> None:
    meta = host.start("one", "sh", "-c", f"read x < {gate}")
    later = ProcessFiles(host.root, grace=5.0, output=1000, boot="another start")
    found = later.look(meta)
    assert found == Failed(f"the machine {meta.host} was restarted while the program ran")
    assert later.cancel(meta, signal.SIGTERM)
    assert isinstance(host.status(meta), Running), "its process id may be that of another process now"


def test_a_program_that_ended_before_the_restart_has_its_result(host: Host) -> None:
    meta = host.start("one", "echo", "done")
    host.wait(meta)
    later = ProcessFiles(host.root, grace=5.0, output=1000, boot="another start")
    assert later.look(meta) == Ended(0, None, "done\n", "")


def test_another_host_waits_and_then_gives_up(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("mainspring.elsewhere.processes.monotonic", lambda: now)
    meta = ProcessMeta("elsewhere", host.files.boot, "0" * 32)
    found = host.status(meta)
    assert isinstance(found, Running)
    assert found.text == f"runs on elsewhere, and this worker on {host.files.host} cannot see it"
    with pytest.raises(OtherHostError, match="runs on elsewhere"):
        host.cancel(meta)
    assert asyncio.run(host.work.logs(meta)) == ""
    now += 3599
    assert isinstance(host.status(meta), Running)
    now += 2
    found = host.status(meta)
    assert isinstance(found, Failed)
    assert found.retry


# ---- cancel ----


def test_a_cancel_ends_the_whole_group(host: Host, gate: Path) -> None:
    child = "trap '' TERM; echo ready; while true; do sleep 100; done"
    script = f"trap 'exit 0' TERM; sh -c \"{child}\" > {gate} & while true; do sleep 100; done"
    host = Host(host.root, grace=0.2)
    meta = host.start("one", "sh", "-c", script)
    with gate.open() as opened:
        assert opened.readline() == "ready\n"
    group = host.started(meta)["pid"]
    assert len(members(group)) >= 2
    host.cancel(meta)
    left = members(group)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert host.status(meta) == Failed("the program was cancelled", retry=False)
    host.cancel(meta)


def test_a_cancelled_program_can_clean_up(host: Host, gate: Path, tmp_path: Path) -> None:
    script = f"trap 'echo clean > {tmp_path}/clean; exit 0' TERM; echo ready > {gate}; while true; do sleep 0.01; done"
    meta = host.start("one", "sh", "-c", script)
    assert gate.read_text() == "ready\n"
    host.cancel(meta)
    assert (tmp_path / "clean").read_text() == "clean\n"


def test_a_cancel_before_the_start_prevents_it(host: Host, tmp_path: Path) -> None:
    meta = ProcessMeta(host.files.host, host.files.boot, host.start("one", "true").directory)
    host.wait(meta)
    shutil.rmtree(host.root / meta.directory)
    host.cancel(meta)
    assert host.start("one", "touch", str(tmp_path / "runs")) == meta
    assert host.status(meta) == Failed("the program was cancelled", retry=False)
    assert not (tmp_path / "runs").exists()


def test_a_cancel_after_the_end_changes_nothing(host: Host) -> None:
    meta = host.start("one", "echo", "done")
    host.wait(meta)
    host.cancel(meta)
    assert host.status(meta) == Done("done\n")


def test_a_cancel_without_the_keeper_ends_the_group_too(host: Host, gate: Path) -> None:
    meta = host.start("one", "sh", "-c", f"sleep 100 & read x < {gate}")
    started = host.started(meta)
    os.kill(started["keeper"], signal.SIGKILL)
    await_end(started["keeper"], started["keeper_start"])
    host.cancel(meta)
    await_end(started["pid"], started["start"])
    assert members(started["pid"]) == []
    assert host.status(meta) == Failed("the program was cancelled", retry=False)


def test_another_process_with_the_same_id_is_not_killed(host: Host) -> None:
    meta = host.start("one", "true")
    host.wait(meta)
    other = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        started = host.started(meta)
        path = host.root / meta.directory
        (path / "ended").unlink()
        (path / "started").write_text(json.dumps(started | {"pid": other.pid, "keeper": other.pid}))
        found = host.status(meta)
        assert found == Failed("the program has ended, and its exit code is unknown: its keeper was killed")
        host.cancel(meta)
        assert other.poll() is None
        assert start_time(other.pid)
    finally:
        other.kill()
        assert other.wait(LIMIT) == -signal.SIGKILL, "the test has killed it"


# ---- old directories ----


def test_old_directories_are_removed(host: Host, gate: Path) -> None:
    old = host.start("old", "true")
    recent = host.start("recent", "true")
    host.wait(old)
    host.wait(recent)
    running = host.start("running", "sh", "-c", f"read x < {gate}")
    for meta in (old, running):
        os.utime(host.root / meta.directory, (0, 0))
    stray = host.root / "0"
    stray.touch()
    os.utime(stray, (0, 0))
    assert host.files.clean(3600) == 1, "a file of somebody else keeps no directory"
    stray.unlink()
    assert {path.name for path in host.root.iterdir()} == {recent.directory, running.directory}
    assert host.status(old) == Failed(f"the program's directory {host.root / old.directory} was removed")
    os.kill(host.started(running)["keeper"], signal.SIGKILL)
    await_end(host.started(running)["keeper"], host.started(running)["keeper_start"])
    assert host.files.clean(3600) == 0, "the program runs"
    pass_through(gate)
    await_end(host.started(running)["pid"], host.started(running)["start"])
    assert host.files.clean(3600) == 1


def test_a_start_removes_old_directories_once_an_hour(host: Host) -> None:
    for key in ("a", "b"):
        meta = host.start(key, "true")
        host.wait(meta)
        os.utime(host.root / meta.directory, (0, 0))
    host = Host(host.root)
    last = host.start("c", "true")
    assert [path.name for path in host.root.iterdir()] == [last.directory]
    host.wait(last)


def test_a_locked_directory_is_busy(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = host.root / host.start("one", "true").directory
    host.wait(ProcessMeta(host.files.host, host.files.boot, directory.name))
    shutil.rmtree(directory)
    directory.mkdir()
    descriptor = locked(os.fspath(directory))
    assert descriptor is not None
    assert locked(os.fspath(directory)) is None
    monkeypatch.setattr("mainspring.elsewhere.processes.START_LIMIT", 0.3)
    with pytest.raises(ProcessError, match="another worker has begun"):
        host.files.start("one", Command(["true"]))
    os.close(descriptor)

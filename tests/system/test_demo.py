"""The demo counts correctly, fails and retries once, and leaves no processes or files behind."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system

DEMO = Path(__file__).resolve().parents[2] / "examples" / "wordcount" / "demo.py"
LAST_LINE = re.compile(r"jobs=(\d+) failed=(\d+) retries=(\d+) rate=[\d.]+/s")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Return the directory for the demo's temporary files; its path also identifies the demo's processes."""
    place = tmp_path / "workplace"
    place.mkdir()
    return place


def start(
    workplace: Path, *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        stdout=stdout,
        stderr=stderr,
        text=True,
        cwd=workplace,
        env=environment | {"TMPDIR": str(workplace)} | variables,
    )


def processes_of(workplace: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={workplace}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def expect_nothing_left(workplace: Path) -> None:
    deadline = time.monotonic() + 10
    while processes_of(workplace) and time.monotonic() < deadline:
        time.sleep(0.05)  # a killed process disappears once it is reaped
    assert processes_of(workplace) == []
    assert list(workplace.iterdir()) == []


def independent_count(directory: Path) -> list[str]:
    counts: Counter[str] = Counter()
    for path in [*directory.rglob("*.py"), *directory.rglob("*.txt")]:
        counts.update(re.findall("[a-z]+", path.read_text("utf-8", errors="replace").lower()))
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
    return [f"{word} {count}" for word, count in best]


def test_the_demo_counts_correctly_and_retries_the_failed_job(workplace: Path) -> None:
    directory = Path(sysconfig.get_path("stdlib")) / "email"
    demo = start(workplace, str(directory))
    output, errors = demo.communicate(timeout=60)

    assert demo.returncode == 0, errors
    *words, last = output.splitlines()
    assert words == independent_count(directory)
    match = LAST_LINE.fullmatch(last)
    assert match, last
    jobs, failed, retries = (int(group) for group in match.groups())
    assert (jobs > 1, failed, retries) == (True, 0, 1)
    assert "batches counted" in errors
    expect_nothing_left(workplace)


def test_at_a_terminal_the_demo_shows_its_pages_until_it_is_interrupted(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word")
    reading, writing = pty.openpty()
    with open(reading, encoding="utf-8") as screen:  # noqa: PTH123 - a descriptor
        try:
            demo = start(workplace, str(tmp_path), stdout=writing, stderr=writing)
        finally:
            os.close(writing)
        try:
            link = next(found[0] for line in screen if (found := re.search(r"http://\S+/login\?link=\S+", line)))
            with urllib.request.urlopen(link, timeout=30) as page:
                assert page.status == 200
            assert demo.poll() is None
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(30)

    assert demo.returncode == 0
    expect_nothing_left(workplace)


def test_files_may_have_any_name_and_content(workplace: Path, tmp_path: Path) -> None:
    directory = tmp_path / "any names, 100%"
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "empty.txt").touch()
    (directory / "one.md").write_text("not counted")
    (directory / "a folder.py").mkdir()
    (directory / "deep" / "er" / "ünï cödé %41.txt").write_text("Word word\nWORD, x2y\n")
    Path(os.fsdecode(os.fsencode(directory) + b"/caf\xe9.py")).write_bytes(b"caf\xe9 \x00\xff word")
    (directory / "long.txt").write_text("word " * 400_000)  # one line, longer than a block

    demo = start(workplace, str(directory))
    output, errors = demo.communicate(timeout=60)

    assert demo.returncode == 0, errors
    assert output.splitlines()[:-1] == ["word 400004", "caf 1", "x 1", "y 1"]
    expect_nothing_left(workplace)


def test_an_unreadable_file_is_skipped_and_named(workplace: Path, tmp_path: Path) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    (directory / "good.txt").write_text("word " * 3)
    for name in ("c.py", "a\tb.py"):
        (directory / name).symlink_to("/proc/self/mem")  # not even root can read its first byte

    demo = start(workplace, str(directory))
    output, errors = demo.communicate(timeout=60)

    assert demo.returncode == 0, errors
    *words, last = output.splitlines()
    assert words == ["word 3"]
    assert "failed=0" in last
    assert f"could not be read, and are not counted: 2, the first {str(directory / name)!r}" in errors
    expect_nothing_left(workplace)


def test_an_interrupt_during_the_import_ends_the_demo_silently(workplace: Path, tmp_path: Path) -> None:
    package = tmp_path / "path" / "mainspring"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    demo = start(workplace, PYTHONPATH=str(package.parent))
    output, errors = demo.communicate(timeout=60)

    assert (demo.returncode, output, errors) == (130, "", "")
    expect_nothing_left(workplace)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(workplace: Path, number: int) -> None:
    demo = start(workplace, sysconfig.get_path("stdlib"))
    assert demo.stderr is not None
    while "batches counted" not in (line := demo.stderr.readline()):
        assert line, "the demo ended before it could be interrupted"
    demo.send_signal(number)
    demo.communicate(timeout=30)

    assert demo.returncode == 128 + number
    expect_nothing_left(workplace)


def test_a_directory_without_texts_is_refused(workplace: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for directory in (empty, tmp_path / "missing"):
        demo = start(workplace, str(directory))
        output, errors = demo.communicate(timeout=60)
        assert (demo.returncode, output) == (2, "")
        assert str(directory) in errors
    expect_nothing_left(workplace)


@pytest.mark.parametrize("name", ["a b$c", "$(shell echo no)", 'it\'s "quoted" `no` #1', ""])
def test_make_passes_any_name_unchanged(tmp_path: Path, name: str, require: Callable[[str], str]) -> None:
    shutil.copy(DEMO.parents[2] / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".project").touch()  # newer than pyproject.toml: make installs nothing
    script = tmp_path / "examples" / "wordcount" / "run.sh"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\nprintf "%s" "$#:$*"\n')
    script.chmod(0o755)

    command = [require("make"), "--silent", "demo", f"DIR={name}"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # as if outside of make
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"1:{name}" if name else "0:", "")

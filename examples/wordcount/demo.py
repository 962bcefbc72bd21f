"""The demo: starts a node with workers, lets them count the words of a directory's files, and prints the most frequent ones.

    python demo.py [DIR]

At a terminal it then prints a link to the node's pages, and serves them until Ctrl-C; elsewhere it ends at once. The node, its
SQLite file and its workers use a temporary directory and end with this process.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO
from urllib.parse import unquote_to_bytes

try:
    from wordcount import app, as_text, count_words, most_frequent

    from mainspring import Job, JobError, MainspringError
except KeyboardInterrupt:  # during the imports
    sys.exit(130)

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_BYTES = 512 * 1024
BATCH_FILES = 100
"""Size of a map job: large enough to outweigh the cost of a job, small enough for a small result."""

PLACES = 10
NO_FILES = 2
"""The exit code if there is nothing to count."""
HERE = Path(__file__).resolve().parent


class Node(NamedTuple):
    """A running node."""

    process: subprocess.Popen[bytes]
    output: TextIO
    address: str

    def wait(self) -> None:
        """Print the link that signs a browser in, and return when the node ends or the user presses Ctrl-C."""
        with suppress(KeyboardInterrupt):
            if link := rest_of_line(self.output, "sign in, once and within 10 minutes: "):
                print(f"until Ctrl-C, a browser shows these jobs; this link signs it in once: {link}", flush=True)
                self.process.wait()


@contextmanager
def running_node(directory: Path, processes: int, *, pages: bool) -> Iterator[Node]:
    """Start a node with worker processes, yield it, and end all processes in every outcome."""
    command = [sys.executable, "-m", "mainspring.cli.main", "run", str(HERE / "wordcount.py")]
    http = "127.0.0.1:0" if pages else "none"
    options = [f"--store=sqlite:///{directory / 'jobs.db'}", "--gearman=127.0.0.1:0", f"--http={http}"]
    workers = [f"--processes={processes}", "--concurrency=2", "--grace=1s", "--log-level=error"]
    # A node prints the link to its pages only at a terminal.
    reading, writing = pty.openpty() if pages else os.pipe()
    with open(reading, encoding="utf-8") as output:  # noqa: PTH123 - a descriptor
        try:
            # A separate process group: Ctrl-C signals only this process, which stops the node in order.
            node = subprocess.Popen([*command, *options, *workers], stdout=writing, start_new_session=True)
        finally:
            os.close(writing)
        try:
            address = rest_of_line(output, "listening gearman ")
            if not address:
                raise SystemExit(f"the node did not start (exit code {node.wait()})")
            yield Node(node, output, address)
        finally:
            node.terminate()
            try:
                node.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


def rest_of_line(output: TextIO, beginning: str) -> str:
    """Return the rest of the next line with a beginning; empty if the output ends without one."""
    with suppress(OSError):  # a terminal ends with an error
        for line in output:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
    return ""


def batches(directory: Path) -> Iterator[list[str]]:
    """Yield the *.py and *.txt files under a directory in batches."""
    batch: list[str] = []
    size = 0
    for parent, folders, names in os.walk(os.fsencode(directory)):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)  # noqa: PTH118 - a path of bytes
            if not name.endswith((b".py", b".txt")) or not os.path.isfile(path):  # noqa: PTH113
                continue
            batch.append(as_text(path))
            with suppress(OSError):  # the file was deleted: the task that counts it reports that
                size += os.path.getsize(path)  # noqa: PTH202
            if size >= BATCH_BYTES or len(batch) >= BATCH_FILES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


class Progress:
    """The progress: one line on a terminal, otherwise a line for each tenth."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._tenth = 0

    def show(self, done: int, words: int) -> None:
        """Show the number of counted batches and of their words."""
        text = f"{done} of {self._total} batches counted, {words:,} words"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if done == self._total else ""))
        elif 10 * done // self._total > self._tenth:
            self._tenth = 10 * done // self._total
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def count(directory: Path) -> int:
    """Submit the jobs, wait for them, and print the result; return the exit code."""
    plan = list(batches(directory))
    if not plan:
        print(f"there are no *.py or *.txt files under {directory}: make demo DIR=…", file=sys.stderr)
        return NO_FILES
    begun = time.monotonic()

    # Map: one job per batch, submitted in bulk; one of them fails at its first attempt.
    broken = len(plan) // 2
    maps = count_words.submit_many({"files": files, "fails_at_first": n == broken} for n, files in enumerate(plan))
    jobs: list[Job[Any]] = [*maps]
    progress = Progress(len(maps))
    failures: list[JobError] = []
    unread: list[str] = []
    words = 0
    for number, job in enumerate(maps, start=1):
        try:
            counted = job.result()
            words += sum(counted["words"].values())
            unread += counted["unread"]
        except JobError as error:
            failures.append(error)
        progress.show(number, words)

    if unread:
        first = os.fsdecode(unquote_to_bytes(unread[0]))
        print(f"files that could not be read, and are not counted: {len(unread)}, the first {first!r}", file=sys.stderr)

    # Reduce: one job that fetches the results by the jobs' handles.
    if not failures:
        reduce = most_frequent.submit([job.handle for job in maps], PLACES)
        jobs.append(reduce)
        try:
            for word, times in reduce.result():
                print(word, times)
        except JobError as error:
            failures.append(error)

    for failure in failures:
        print(failure, file=sys.stderr)
    retries = sum(job.info()["attempt"] - 1 for job in jobs)
    rate = len(jobs) / (time.monotonic() - begun)
    print(f"jobs={len(jobs)} failed={len(failures)} retries={retries} rate={rate:.1f}/s")
    return 1 if failures else 0


def main() -> int:
    """Run the demo.

    Exit codes: 0: all files are counted; 1: a job failed, or no server could be started; 2: there are no files to count.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))  # runs all `finally` blocks
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("stdlib"))
    if not directory.is_dir():
        print(f"there is no directory {directory}", file=sys.stderr)
        return NO_FILES
    processes = min(4, max(2, len(os.sched_getaffinity(0))))
    print(f"counting the words of {directory} with {processes} worker processes", file=sys.stderr)
    workplace = Path(tempfile.mkdtemp(prefix="mainspring-demo-"))
    try:
        with running_node(workplace, processes, pages=sys.stdout.isatty()) as node:
            os.environ["MAINSPRING_SERVER"] = node.address
            try:
                code = count(directory.resolve())
            finally:
                app.close()
            if code != NO_FILES and sys.stdout.isatty():
                node.wait()
            return code
    except MainspringError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

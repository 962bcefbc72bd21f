"""Takes away the guards that ``checks/guards/*.toml`` lists, one at a time, and checks that a test fails without each."""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "src" / "mainspring"
TABLES: Final = ROOT / "checks" / "guards"
SUITE: Final = ROOT / "tests" / "conformance" / "suite"
"""The tests that classes of other files derive from."""
KINDS: Final = frozenset({".py", ".sql", ".html", ".js"})
"""The files of the package in which guards are looked for."""
LONGEST: Final = 300.0
"""Seconds for the tests of one guard."""
BROKEN: Final = (
    "NameError",
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "UnboundLocalError",
)
"""Errors of a replacement that does not fit its place: such a failure proves nothing."""

MANUAL: Final = """\
A guard is a line or an expression of src/mainspring whose removal breaks a promise: a check of a term or a permission, a limit,
a condition of SQL, an escape in HTML, the order of two steps. The files checks/guards/*.toml list them, a file for each area:

    [[guard]]
    promise = "A duration of any length fits into a store's 64 bits."
    text = 'return round(min(seconds * 1_000_000, _MAX_DURATION_US))'
    instead = 'return round(seconds * 1_000_000)'
    tests = ["tests/unit/jobs/test_rules.py::test_no_policy_leaves_the_stores_integers"]

"text" occurs exactly once in the package, in whichever file; "instead" replaces it. "tests" are files or ids of tests; one
of them must fail without the guard.

The command copies the package into a temporary directory and leaves the checkout as it is. It runs all named tests once with
the unchanged copy, and they must pass. Then it takes away one guard after the other and runs its tests:

    noticed       a test failed
    NOT NOTICED   all tests passed: a test is missing, or the guard has no effect and can be deleted
    BROKEN        the package could not be imported, a fixture failed, or a name was missing: the entry wants a repair
    NOT FOUND     the text occurs nowhere in the package, or more than once: the entry wants the new text
    left out      all tests were skipped, because PostgreSQL or ZooKeeper is not installed
"""
EPILOGUE: Final = """\
The exit code is 0 if all guards were noticed or left out, and 1 otherwise. A run of all guards takes about 15 minutes on two
cores. The simulation's own faults are in tests/simulation/test_*planted.py, and are tests of the suite; this list does not
repeat them.
"""


@dataclass(frozen=True)
class Guard:
    """One entry of the tables; ``area`` is its file's name."""

    area: str
    promise: str
    text: str
    instead: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        """Return the area and the promise."""
        return f"{self.area}: {self.promise}"


@dataclass(frozen=True)
class Verdict:
    """The result of the tests of a guard: ``word`` as in the manual, and the reason or the test that failed."""

    word: str
    detail: str


def read_guards(tables: Path = TABLES) -> list[Guard]:
    """Return all guards in the order of the files. Raises KeyError or tomllib.TOMLDecodeError for a malformed table."""
    return [
        Guard(path.stem, row["promise"], row["text"], row["instead"], tuple(row["tests"]))
        for path in sorted(tables.glob("*.toml"))
        for row in tomllib.loads(path.read_text("utf-8"))["guard"]
    ]


def read_sources(package: Path = PACKAGE) -> dict[Path, str]:
    """Return the text of each file of a package that may hold guards, by its path in the package."""
    files = (path for path in sorted(package.rglob("*")) if path.suffix in KINDS)
    return {path.relative_to(package): path.read_text("utf-8") for path in files}


def locate(guard: Guard, sources: dict[Path, str]) -> Path:
    """Return the file with a guard's text. Raises LookupError if the text does not occur exactly once."""
    places = [(path, number) for path, source in sources.items() if (number := source.count(guard.text))]
    if len(places) == 1 and places[0][1] == 1:
        return places[0][0]
    where = ", ".join(f"{number} times in {path}" for path, number in places) or "nowhere"
    raise LookupError(f"the text occurs {where}")


def flaws(guards: Sequence[Guard], sources: dict[Path, str]) -> Iterator[str]:
    """Yield a sentence for each entry that cannot be run: its text, its tests, or a duplicate."""
    whole = "\0".join(sources.values())
    promises: set[str] = set()
    removals: set[tuple[str, str]] = set()
    for guard in guards:
        if str(guard) in promises or (guard.text, guard.instead) in removals:
            yield f"{guard}: the entry occurs twice"
        promises.add(str(guard))
        removals.add((guard.text, guard.instead))
        if whole.count(guard.text) != 1:
            try:
                locate(guard, sources)
            except LookupError as error:
                yield f"{guard}: {error}"
        if not guard.tests:
            yield f"{guard}: no tests are named"
        yield from (f"{guard}: there is no test {test}" for test in guard.tests if not exists(test))


def exists(test: str) -> bool:
    """Return whether a file of tests exists, and the named test is in it or in the suite that its class derives from."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    definition = f"def {name.rpartition('::')[2].partition('[')[0]}("
    return not name or any(definition in _read(path) for path in (ROOT / file, *SUITE.glob("*.py")))


@cache
def _read(path: Path) -> str:
    return path.read_text("utf-8")


class Copy:
    """A copy of the package in a directory of its own, from which one guard at a time is taken."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.package = directory / "src" / "mainspring"
        shutil.copytree(PACKAGE, self.package)

    def without(self, guard: Guard, path: Path) -> Verdict:
        """Run the tests of a guard without it; ``path`` is its file in the package."""
        file = self.package / path
        before, times = file.read_text("utf-8"), file.stat()
        file.write_text(before.replace(guard.text, guard.instead), "utf-8")
        try:
            return self.run(["--exitfirst", *guard.tests])
        finally:
            # Bytecode is found by the second and the size of its source: the next guard of this file may have the same ones.
            Path(cache_from_source(file)).unlink(missing_ok=True)
            file.write_text(before, "utf-8")
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, arguments: Iterable[str], *, longest: float = LONGEST) -> Verdict:
        """Run pytest with the copy, and judge by its report."""
        report = self._directory / "report.xml"
        report.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--quiet",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={report}",
            *arguments,
        ]
        environment = os.environ | {
            "PYTHONPATH": str(self._directory / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "",  # to compile all tests takes longer than to run a few
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._directory / "hypothesis"),
        }
        try:
            done = subprocess.run(  # noqa: S603 - the tests of this project
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=longest, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict("BROKEN", f"the tests took more than {longest:.0f} s")
        if not report.exists():
            return Verdict("BROKEN", (done.stdout + done.stderr).strip()[-2000:])
        return judge(ET.parse(report).getroot())  # noqa: S314 - pytest has just written it

    def is_imported(self) -> bool:
        """Return whether tests would import the copy, and not the installed package."""
        program = "import mainspring; print(mainspring.__file__)"
        environment = os.environ | {"PYTHONPATH": str(self._directory / "src")}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        return Path(done.stdout.strip()).is_relative_to(self.package)


def judge(report: ET.Element) -> Verdict:
    """Return the verdict of a JUnit report of pytest."""
    cases = list(report.iter("testcase"))
    for case in cases:
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        if (error := case.find("error")) is not None:
            return Verdict("BROKEN", f"{name}: {first_line(error)}")
        if (failure := case.find("failure")) is not None:
            word = "BROKEN" if first_line(failure).startswith(BROKEN) else "noticed"
            return Verdict(word, f"{name}: {first_line(failure)}")
    if not cases:
        return Verdict("BROKEN", "no test was found")
    if all(case.find("skipped") is not None for case in cases):
        return Verdict("left out", "all tests were skipped")
    return Verdict("NOT NOTICED", f"{len(cases)} tests passed")


def first_line(element: ET.Element) -> str:
    """Return the first line of the message of a failure."""
    return (element.get("message") or "").strip().partition("\n")[0]


def check(guards: Sequence[Guard], jobs: int, *, verbose: bool = False) -> int:
    """Take away the guards, print a line for each, and return the exit code."""
    sources = read_sources()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guards-") as directory:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        first = Copy(Path(directory, "0"))
        if not first.is_imported():
            say("The installed package hides the copy. Run this with the Python of the checkout's .venv.")
            return 1
        tests = sorted({test for guard in guards for test in guard.tests})
        base = first.run([f"--numprocesses={jobs}", *tests], longest=LONGEST * 10)
        if base.word != "NOT NOTICED":
            say(f"Nothing was taken away: the tests must pass with all guards, but {base.word} {base.detail}")
            return 1
        say(f"all guards in place: {base.detail} in {time.monotonic() - began:.0f} s")
        copies.put(first)
        for number in range(1, min(jobs, len(guards))):
            copies.put(Copy(Path(directory, str(number))))

        def take(guard: Guard) -> tuple[Guard, Verdict, float]:
            start = time.monotonic()
            try:
                path = locate(guard, sources)
            except LookupError as error:
                return guard, Verdict("NOT FOUND", str(error)), 0.0
            copy = copies.get()
            try:
                return guard, copy.without(guard, path), time.monotonic() - start
            finally:
                copies.put(copy)

        found: dict[str, int] = {}
        with ThreadPoolExecutor(jobs) as pool:
            for guard, verdict, seconds in pool.map(take, guards):
                found[verdict.word] = found.get(verdict.word, 0) + 1
                say(f"{verdict.word:<12} {seconds:5.1f} s  {guard}")
                if verbose or verdict.word not in {"noticed", "left out"}:
                    say(f"{'':<22}{verdict.detail}")
    counts = ", ".join(f"{number} {word}" for word, number in sorted(found.items()))
    say(f"{len(guards)} guards in {time.monotonic() - began:.0f} s: {counts}")
    return 0 if found.keys() <= {"noticed", "left out"} else 1


def say(line: str) -> None:
    """Print a line at once: a run takes minutes."""
    print(line, flush=True)  # noqa: T201 - the command prints its findings


def choose(guards: Iterable[Guard], words: str) -> list[Guard]:
    """Return the guards whose area, promise, text or tests have all words."""
    wanted = words.lower().split()
    return [
        guard
        for guard in guards
        if all(word in f"{guard} {guard.text} {' '.join(guard.tests)}".lower() for word in wanted)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run the checks."""
    parser = argparse.ArgumentParser(
        prog="python -m checks.guards",
        description=f"{__doc__}\n\n{MANUAL}",
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="guards whose area, promise, text or tests have all words"
    )
    parser.add_argument("--list", action="store_true", help="print the guards and where they are, and run nothing")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="guards at a time, each in its own copy (default: 2)"
    )
    parser.add_argument("--verbose", action="store_true", help="also print which test noticed each guard")
    options = parser.parse_args(arguments)
    guards = choose(read_guards(), options.only)
    if not guards:
        say("No guard has these words; --list shows all of them.")
        return 1
    if not options.list:
        return check(guards, max(options.jobs, 1), verbose=options.verbose)
    sources = read_sources()
    for guard in guards:
        try:
            place = str(locate(guard, sources))
        except LookupError as error:
            place = f"NOT FOUND: {error}"
        say(f"{guard}\n    {place}")
    say(f"{len(guards)} guards")
    return 0


if __name__ == "__main__":
    sys.exit(main())

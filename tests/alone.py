"""Runs the tests that failed beside others again, alone: `make test` passes if each of a few passes twice.

Four processes share two cores with the servers, JVMs and browsers that they start. There, an answer is sometimes later than
the longest wait that a test can sensibly have. Such a test is listed as the last thing of the run, with its first failure above:
it wants a repair. A defect that is there without load fails again.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

MOST: Final = 6
"""Number of failed tests that are run again: one stall of the disk fails a test or two in each process. More are no accident."""
TIMES: Final = 2
OPTION: Final = "--failed-alone"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        action="store_true",
        help=f"run up to {MOST} failed tests again, alone; pass if each passes {TIMES} times",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """After the summary, run failed tests again; the exit status is 0 if they pass."""
    yield
    config = session.config
    if (
        hasattr(config, "workerinput")
        or not config.getoption(OPTION)
        or session.exitstatus != pytest.ExitCode.TESTS_FAILED
    ):
        return
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    failed = sorted({report.nodeid for key in ("failed", "error") for report in reporter.stats.get(key, ())})
    long = ["--long"] if config.getoption("--long", default=False) else []
    if len(failed) > MOST or not pass_alone(failed, config.rootpath, long):
        return
    reporter.section("failed beside other tests, and passed alone")
    for one in failed:
        reporter.line(one)
    session.exitstatus = pytest.ExitCode.OK


def pass_alone(tests: Sequence[str], directory: Path, options: Sequence[str] = ()) -> bool:
    """Return whether tests pass, each time, in a process with nothing beside it."""
    command = [sys.executable, "-m", "pytest", "--numprocesses", "0", "-p", "no:cacheprovider", *options, *tests]
    return all(subprocess.run(command, cwd=directory, check=False).returncode == 0 for _ in range(TIMES))

"""Tests that failed beside others pass a run if they pass alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import alone

BESIDE = """
import os

def test_one():
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""
NEVER = """
def test_two():
    assert False
"""
ONCE = """
from pathlib import Path

def test_three():
    with Path("runs").open("a+") as runs:
        runs.write("x")
    assert Path("runs").read_text() == "xx"
"""
MANY = """
import os, pytest

@pytest.mark.parametrize("number", range(7))
def test_seven(number):
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""


@pytest.mark.parametrize(
    ("tests", "status"),
    [([BESIDE], 0), ([BESIDE, NEVER], 1), ([ONCE], 1), ([MANY], 1)],
    ids=["passes alone", "never passes", "passes alone once", "too many"],
)
def test_the_exit_status_is_that_of_failed_tests_alone(tmp_path: Path, tests: list[str], status: int) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.alone import add_option as pytest_addoption, pytest_sessionfinish\n"
    )
    for number, text in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--numprocesses", "1", alone.OPTION]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(root), "PATH": ""}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == status, done.stdout.decode()
    shown = b"passed alone" in done.stdout
    assert shown == (status == 0)
    if shown:
        assert done.stdout.endswith(b"test_0.py::test_one\n")

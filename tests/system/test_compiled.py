"""The package with its hot core compiled (``MAINSPRING_COMPILE=1``) behaves like the pure one."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from .packaging import COMMAND_TIMEOUT, ROOT, build, install, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * COMMAND_TIMEOUT)]

SUITES = (
    "tests/unit/wire",
    "tests/unit/faces/gearman",
    "tests/conformance/test_engines.py",
    "tests/system/test_extension.py",
    "tests/system/test_workflows.py",
)
"""Tests that exercise the compiled modules: bytes, packets, SQLite's statements, and jobs and runs from end to end."""
SELECTION = "not postgres and not zookeeper and not memory"
"""Excludes other engines, which are not compiled."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Without optimizations of the C compiler: they take as long as the rest of the build.
    return build(tmp_path_factory.mktemp("wheel"), "--wheel", MAINSPRING_COMPILE="1", MYPYC_OPT_LEVEL="0")


@pytest.fixture(scope="module")
def compiled(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("compiled"))


def test_the_wheel_has_each_of_the_named_modules_and_its_source(wheel: Path) -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    named = set(hook["custom"]["modules"])
    packed = zipfile.ZipFile(wheel).namelist()
    libraries = {name.partition(".")[0] + ".py" for name in packed if name.endswith(".so")}
    assert {name for name in libraries if "/" in name} == named
    assert named < set(packed)
    assert "-none-any" not in wheel.name, "the wheel is for this Python and this machine"


def test_an_installation_reports_its_core(compiled: Path) -> None:
    program = "from mainspring.version import core; print(core())"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(compiled)).strip() == "compiled"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(ROOT / "src")).strip() == "pure Python"


def test_the_suites_pass_on_the_compiled_package(compiled: Path) -> None:
    # Two at a time: the tests mostly wait for processes.
    options = ("-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadfile", "-k", SELECTION)
    output = run(sys.executable, "-m", "pytest", *options, *SUITES, PYTHONPATH=str(compiled))
    assert "core: compiled" in output, "not the sources of the checkout"
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None, output
    assert int(passed[1]) > 500, output

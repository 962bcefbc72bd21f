"""Builds the package from the checkout, and installs the result in a separate directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT = 1500.0
"""Seconds after which a command counts as hanging; compiling takes 45 on two idle cores, and 150 beside other tests."""


def run(*command: str | Path, **environment: str) -> str:
    """Run a command in the checkout, and return its output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(directory: Path, *options: str, **environment: str) -> Path:
    """Build what the options select (by default an archive, and the wheel from it), and return the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", directory, ROOT, **environment)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, place: Path) -> Path:
    """Install a wheel without its dependencies in a directory for ``PYTHONPATH``."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", place, wheel)
    return place

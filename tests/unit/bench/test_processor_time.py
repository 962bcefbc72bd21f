"""The processor time of a worker in the benchmarks includes its children, which do the work."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

SPINNER = "import sys, time\nwhile time.process_time() < 0.25: pass\nprint('spun', flush=True)\nsys.stdin.read(1)"
PARENT_CODE = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPINNER!r}])\n"
    "print('ended', flush=True)\nsys.stdin.read()"
)


def test_the_time_of_children_counts_while_they_run_and_after_their_end() -> None:
    spec = importlib.util.spec_from_file_location(
        "processor_time", Path(__file__).parents[3] / "bench/processor_time.py"
    )
    assert spec is not None
    assert spec.loader is not None
    processor_time = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(processor_time)
    with subprocess.Popen([sys.executable, "-c", PARENT_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"spun\n"
        assert processor_time.seconds(parent.pid) >= 0.2
        parent.stdin.write(b"x")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"ended\n"
        assert processor_time.seconds(parent.pid) >= 0.2
        parent.stdin.close()
    assert processor_time.seconds(parent.pid) == 0.0

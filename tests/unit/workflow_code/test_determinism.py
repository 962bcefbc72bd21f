"""Random workflows make the same commands in every process, wherever their histories end.

Seen to fail with futures and tasks hashed by their addresses, without the number of ``gather``'s future, with coroutines in
``as_completed``, with step results resolved in the order of their numbers, with the ends of children given to a live decision
in the order of their starts, and with the refusal of a child compared with the code's commands.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.workflows.history import WorkflowExecutionFailed

from .fake_node import FakeNode, FakeWorker, code_of
from .recordings import digest_of_prefixes, digest_of_turn, record_chain

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SHORT, LONG = 20, 1000


def compare(programs: int, interpreters: list[tuple[str, str]]) -> None:
    """Record programs, replay their prefixes here and in processes with other hash seeds, and compare the commands."""
    histories = [one for seed in range(programs) for one in record_chain(seed)]
    expected = [" ".join([str(one.seed), *digest_of_prefixes(one)]) for one in histories]
    data = msgspec.msgpack.encode(histories)
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    for python, hash_seed in interpreters:
        done = subprocess.run(
            [python, "-m", "tests.unit.workflow_code.recordings"],
            input=data,
            env={**environment, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=False,
            capture_output=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        assert done.stdout.decode().splitlines() == expected, (python, hash_seed)


def other_interpreters() -> Iterator[str]:
    """Return the installed interpreters of other versions that have this project's dependencies."""
    for minor in (11, 12, 13, 14):
        found = shutil.which(f"python3.{minor}")
        if found and sys.version_info.minor != minor:
            works = subprocess.run([found, "-c", "import msgspec, structlog"], check=False, capture_output=True)
            if works.returncode == 0:
                yield found


def failing_at(line: int) -> FakeWorker:
    """Return a run whose code, the same in each process, raises an error in another line of its file."""
    names: dict[str, Any] = {}
    exec("\n" * line + "async def failing():\n    raise ValueError('no')\n", names)
    return FakeWorker(code_of(names["failing"]), FakeNode())


def test_the_lines_of_a_traceback_make_no_difference() -> None:
    one, other = failing_at(1), failing_at(2)
    turn, other_turn = one.decide_only(), other.decide_only()
    assert turn.decisions != other_turn.decisions  # by their tracebacks
    assert digest_of_turn(turn, one.instance) == digest_of_turn(other_turn, other.instance)


def test_the_lines_of_a_traceback_park_no_run_that_could_not_close() -> None:
    one, other = failing_at(1), failing_at(2)
    turn = one.decide_only()
    one.node.signal("news")  # refuses the close
    one.finish_turn(turn)
    assert one.node.closed is None
    other.node = one.node
    assert other.decide().parked is None
    assert isinstance(one.node.closed, WorkflowExecutionFailed)


def test_random_workflows_make_the_same_commands_in_every_process() -> None:
    compare(SHORT, [(sys.executable, "1"), (sys.executable, "2")])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_workflows_make_the_same_commands_with_every_interpreter() -> None:
    others = [(python, "5") for python in other_interpreters()]
    compare(LONG, [(sys.executable, str(seed)) for seed in (3, 4, 101)] + others)

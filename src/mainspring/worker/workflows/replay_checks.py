"""Checks of an App's workflow code by replays of whole histories: from files, in the worker, and in another process.

The code of a cached run goes on from decision to decision, so a difference between the code and the history would stay unseen
until another worker replays the run. `ReplayChecks` evicts the code from memory at some decisions, and replays it from the first
event on. If its commands are not those of the history, the run is parked as after any other replay.

The order of a set of strings follows from their hashes. All replays of one process see the same order, so code that depends on it
agrees with its history there, and differs in the next process. `OtherSeed` is a process whose strings have other hashes.

A decision that is checked by a replay waits for that process (`OtherReplays`), which has imported the App once. If the code
differs from the history there, the run is parked, as any later worker would park it. The process starts with the worker, so
that both import the same files. It is not replaced: a later one could import newer code.

`replay` compares code with what earlier code has recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import random
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from mainspring.errors import UsageError
from mainspring.worker.processes import die_with, python
from mainspring.worker.selector import load_registry
from mainspring.worker.workflows.run_payloads import RunPayloads
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.matching import Mismatch
from mainspring.workflow_code.model import EndOfHistory
from mainspring.workflows import history
from mainspring.workflows.history import decode_events, encode_events
from mainspring.workflows.model import (
    Limits,  # noqa: TC001 - msgspec reads the annotations
    Parked,  # noqa: TC001 - msgspec reads the annotations
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.worker.registry import Registry, WorkflowFunction
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflow_code.model import Code
    from mainspring.workflows.history import Event
    from mainspring.workflows.history_json import HistoryFile


class Replayed(NamedTuple):
    """The outcome of a replay."""

    events: int
    decisions: int
    """The recorded decisions."""
    difference: Parked | None
    """The first difference between the history and the code; None: they agree."""


def replay(code: Code, events: Sequence[Event], limits: Limits | None = None) -> Replayed:
    """Compare the code of a workflow with a history from its first event on.

    It executes nothing: neither steps nor side effects. It therefore ends where code would do something that is not recorded,
    such as the work of a decision that no worker has completed.
    """
    instance = _ReplayedInstance(code, getattr(events[0], "run", 0), limits=limits)
    try:
        difference = instance.compare(events)
    finally:
        instance.evict()
    return Replayed(len(events), sum(type(event) is history.DecisionTaskCompleted for event in events), difference)


class _ReplayedInstance(Instance):
    """A run that makes no new decision."""

    def compare(self, events: Sequence[Event]) -> Parked | None:
        """Replay the whole history. Return the first difference."""
        self.only_replays = True
        try:
            self._take(events)
            if self._parked is None:
                self._resolve_markers()
        except Mismatch as found:
            self._parked = self._commands.park(found, ())
        except EndOfHistory:
            pass
        finally:
            self._activation.end()
        return self._parked


def replay_history(registry: Registry, found: HistoryFile) -> Replayed:
    """Compare a history with the App's code for its workflow and version. Raises UsageError if the App has none.

    Raises CodecError if it cannot decode the payloads.
    """
    workflow = registry.workflows.get((found.type, found.version))
    if workflow is None:
        there = ", ".join(f"{name}@{version}" for name, version in registry.workflows) or "none"
        raise UsageError(
            f"{found.name} is a run of {found.type}@{found.version}, and the App has no such workflow: it has {there}; give the "
            "App that runs this workflow, or keep the code of the version as long as runs of it are open"
        )
    return replay(workflow.code, RunPayloads(registry.codecs).plain(found.events))


CHECKED_EVENTS: Final = 1_000
"""Events of a history above which its replay takes too long for a check."""
ONE_IN: Final = 1_000
"""One of so many decisions of cached runs is checked."""


class ReplayChecks:
    """Chooses the decisions to check: one in ``ONE_IN`` by ``chance``, or each one."""

    def __init__(self, *, each: bool, chance: Callable[[], float] = random) -> None:
        self._each = each
        self._chance = chance

    def choose(self, run: Run, last: int) -> bool:
        """Return whether to replay a cached run with ``last`` events for the decision that was assigned."""
        if not run.instance.position or last > CHECKED_EVENTS or not run.quiet:
            return False
        chosen = run.check or self._draw()
        run.check = False
        return chosen

    def prevent_fusing(self, run: Run) -> bool:
        """Return whether to check the decision that follows ended activities.

        It must be assigned then, and not be fused with their ends: the worker reads the history first.
        """
        run.check = run.instance.position <= CHECKED_EVENTS and self._draw()
        return run.check

    def _draw(self) -> bool:
        return self._each or self._chance() < 1 / ONE_IN


SEEDS: Final = ("1", "2", "3", "4")
"""Values of PYTHONHASHSEED."""
LIMIT: Final = 30.0
"""Seconds for the answer of a process, its start included."""
_ANSWERS: Final = "MAINSPRING_REPLAY_ANSWERS"
"""The environment variable with the file descriptor of a child's answers: what user code prints does not disturb them."""


def other_seeds() -> Sequence[str]:
    """Return the seeds that this process does not have."""
    return [seed for seed in SEEDS if seed != os.environ.get("PYTHONHASHSEED")]


class OtherSeed:
    """A process of this interpreter under another hash seed: it runs ``code``, with ``arguments``, which calls `serve`.

    Raises OSError if it cannot be started.
    """

    def __init__(self, seed: str, code: str, arguments: Sequence[str] = ()) -> None:
        reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONHASHSEED": seed, _ANSWERS: str(writing)}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                python("-c", code, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(writing,),
                bufsize=0,
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert self._process.stdin is not None
        self._requests = self._process.stdin
        os.set_blocking(self._requests.fileno(), False)
        self._answers = os.fdopen(reading, "rb", buffering=0)

    def ask(self, request: bytes) -> bytes:
        """Return the answer to a request. Raises OSError or EOFError if the process ends or takes too long."""
        until = time.monotonic() + LIMIT
        rest = memoryview(len(request).to_bytes(8, "big") + request)
        while rest:
            if not select.select([], [self._requests], [], max(0.0, until - time.monotonic()))[1]:
                raise TimeoutError("it does not read its requests")
            rest = rest[os.write(self._requests.fileno(), rest) :]
        if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(f"it has not answered in {LIMIT:.0f} s")
        return self._read(int.from_bytes(self._read(8), "big"))

    def _read(self, number: int) -> bytes:
        parts: list[bytes] = []
        while number:
            part = self._answers.read(number)
            if not part:
                raise EOFError("it has ended")
            parts.append(part)
            number -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        """End the process. A thread that waits for an answer gets an error."""
        self._process.kill()

    def end(self) -> None:
        """End the process, and close its pipes."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(OSError):
            self._requests.close()


def serve_replays(answer: Callable[[bytes], bytes]) -> None:
    """Answer requests until the input ends: the part of the process."""
    requests = sys.stdin.buffer
    with os.fdopen(int(os.environ.pop(_ANSWERS)), "wb") as answers:
        while head := requests.read(8):
            body = answer(requests.read(int.from_bytes(head, "big")))
            answers.write(len(body).to_bytes(8, "big") + body)
            answers.flush()


_CODE: Final = "from mainspring.worker.workflows.replay_checks import main; main()"

_log = structlog.get_logger("mainspring.workflows")


class _CheckedHistory(msgspec.Struct, array_like=True):
    type: str
    version: str
    events: bytes
    limits: Limits


class _Answer(msgspec.Struct, array_like=True):
    difference: Parked | None = None
    problem: str = ""
    """Why the process could not replay, such as an import that fails."""


class OtherReplays:
    """Compares histories with the code of the App that ``selector`` names, in another process. None: it compares nothing."""

    def __init__(self, selector: str | None) -> None:
        self._selector = selector
        self._process: OtherSeed | None = None
        self._thread = ThreadPoolExecutor(1, "mainspring-replays")
        self._waiting: dict[Run, asyncio.Future[_Answer]] = {}

    def start(self) -> None:
        """Start the process. The calling thread lives as long as the worker: the end of either ends the process."""
        if self._selector is None:
            return
        try:
            self._process = OtherSeed(other_seeds()[0], _CODE, (str(os.getpid()), self._selector))
        except OSError as error:
            self._give_up(str(error))

    def compare(self, run: Run, events: Sequence[Event], then: Callable[[Parked | None], None]) -> bool:
        """Call ``then`` with the first difference; return False if the process does not compare these events.

        The run is ``reading`` meanwhile.
        """
        if self._process is None or not events or events[0].id != 1 or len(events) > CHECKED_EVENTS:
            return False
        code = run.instance.code
        history = _CheckedHistory(code.name, code.version, encode_events(events), run.instance.limits)
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._thread, self._ask, self._process, msgspec.msgpack.encode(history))
        self._waiting[run] = answer
        run.reading = True

        def answered(answer: asyncio.Future[_Answer]) -> None:
            if self._waiting.get(run) is answer:
                self.drop(run)
                then(self._difference(answer.result()))

        answer.add_done_callback(answered)
        return True

    @staticmethod
    def _ask(process: OtherSeed, request: bytes) -> _Answer:
        try:
            return msgspec.msgpack.decode(process.ask(request), type=_Answer)
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
            return _Answer(problem=f"the process failed: {error}")

    def _difference(self, answer: _Answer) -> Parked | None:
        if answer.problem:
            self._give_up(answer.problem)
        if answer.difference is None:
            return None
        message = f"in another process, where sets of strings have another order: {answer.difference.message}"
        return msgspec.structs.replace(answer.difference, message=message)

    def _give_up(self, why: str) -> None:
        """End the comparisons; the worker goes on with the replays of its own."""
        if self._process is not None or self._selector is not None:
            _log.warning("decisions are no longer checked in another process", why=why)
        self._selector = None
        self.close()

    def drop(self, run: Run) -> None:
        """Forget the comparison for a run."""
        if (answer := self._waiting.pop(run, None)) is not None:
            run.reading = False
            answer.cancel()  # nothing, if it is done

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._thread.submit(process.end)  # after the requests, which fail now
        self._thread.shutdown(wait=False)


# ---- the process ----


def main() -> None:
    """Load the App and compare histories until the input ends."""
    parent, selector = int(sys.argv[1]), sys.argv[2]
    die_with(parent, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker ends it after its last decision
    try:
        workflows = load_registry(selector).workflows
    except BaseException as error:  # noqa: BLE001 - of user code, and a worker waits
        failed = msgspec.msgpack.encode(_Answer(problem=str(error)))
        serve_replays(lambda _request: failed)
    else:
        serve_replays(lambda request: msgspec.msgpack.encode(_answer(workflows, request)))


def _answer(workflows: Mapping[tuple[str, str], WorkflowFunction], request: bytes) -> _Answer:
    try:
        history = msgspec.msgpack.decode(request, type=_CheckedHistory)
        workflow = workflows[history.type, history.version]
        return _Answer(replay(workflow.code, decode_events(history.events), history.limits).difference)
    except BaseException as error:  # noqa: BLE001 - of user code, and a worker waits
        return _Answer(problem=repr(error))

"""Replays of checked decisions in another process, where sets of strings have other orders.

A decision that is checked by a replay waits for the process, which has imported the App once. If the code differs from the
history there, the run is parked, as any later worker would park it. The process starts with the worker, so that both import the
same files. It is not replaced: a later one could import newer code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.deciding.replays import replay
from mainspring.worker.other_seed import OtherSeed, other_seeds, serve
from mainspring.worker.parent_death import die_with
from mainspring.worker.selector import load_registry
from mainspring.worker.workflows.replay_checks import CHECKED_EVENTS
from mainspring.workflows.history import decode_events, encode_events
from mainspring.workflows.model import Limits, Parked  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.worker.registry import WorkflowFunction
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflows.history import Event

_CODE: Final = "from mainspring.worker.workflows.other_replays import main; main()"

_log = structlog.get_logger("mainspring.workflows")


class _History(msgspec.Struct, array_like=True):
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
        history = _History(code.name, code.version, encode_events(events), run.instance.limits)
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
        serve(lambda _request: failed)
    else:
        serve(lambda request: msgspec.msgpack.encode(_answer(workflows, request)))


def _answer(workflows: Mapping[tuple[str, str], WorkflowFunction], request: bytes) -> _Answer:
    try:
        history = msgspec.msgpack.decode(request, type=_History)
        workflow = workflows[history.type, history.version]
        return _Answer(replay(workflow.code, decode_events(history.events), history.limits).difference)
    except BaseException as error:  # noqa: BLE001 - of user code, and a worker waits
        return _Answer(problem=repr(error))

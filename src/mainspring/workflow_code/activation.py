"""An activation of workflow code: its surroundings, and its commands until events record them."""

from __future__ import annotations

import gc
import sys
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from typing import TYPE_CHECKING, Any

from mainspring.workflow_code import guards
from mainspring.workflow_code.api import is_patch
from mainspring.workflow_code.matching import (
    RECORDS,
    SHOWN,
    Comparison,
    Mismatch,
    describe_decision,
    describe_event,
    matches,
)
from mainspring.workflows import history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflow_code.loop import WorkflowLoop
    from mainspring.workflow_code.matching import Same
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Parked
    from mainspring.workflows.requests import Decision


class Activation:
    """Makes a run's loop the running one for a time, and guards its code.

    It begins in a plain callback of the worker's loop, outside of tasks: CPython has one current task for each thread from 3.14
    on. The collector is off: it would end objects of the workflow at a time that no replay repeats.
    """

    __slots__ = ("_collects", "_hooks", "_loop", "_outer")

    def __init__(self) -> None:
        self._loop: WorkflowLoop | None = None
        self._outer: Any = None
        self._hooks: Any = None
        self._collects = False

    def begin(self, loop: WorkflowLoop) -> None:
        """Begin, unless it has begun."""
        if self._loop is not None:
            return
        self._loop = loop
        self._outer = _get_running_loop()
        self._hooks = sys.get_asyncgen_hooks()
        self._collects = gc.isenabled()
        gc.disable()
        guards.enter()
        _set_running_loop(loop)
        sys.set_asyncgen_hooks(loop.begin_generator, loop.end_generator)
        loop.begin()

    def end(self) -> None:
        """End, if it has begun."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.end()
        guards.leave()
        _set_running_loop(self._outer)
        sys.set_asyncgen_hooks(*self._hooks)
        self._outer = None
        if self._collects:
            gc.enable()


class CommandLog:
    """Collects commands for the next turn, and compares them with the record of their decision."""

    def __init__(self) -> None:
        self._fresh: list[Decision] = []
        """Commands that no turn has returned."""
        self._unrecorded: deque[Decision] = deque()
        """Commands that no event has confirmed, in order."""
        self._same: dict[tuple[type[Decision], int], Same] = {}
        """How to compare the payloads of unconfirmed commands of replays."""
        self._decision = 0
        """The DecisionTaskCompleted whose commands are being compared; 0: none."""
        self._comparison = Comparison()

    @property
    def unrecorded(self) -> bool:
        """Whether commands are not recorded yet."""
        return bool(self._unrecorded)

    def issue(self, decision: Decision, same: Same | None = None) -> None:
        """Add a command. ``same`` compares its payload with a recorded one whose bytes differ."""
        if same is not None:
            self._same[type(decision), decision.number] = same
        self._fresh.append(decision)
        self._unrecorded.append(decision)

    def issue_close(self, close: Decision, same: Same | None = None) -> None:
        """Add the close as the last command of the decision."""
        if close in self._unrecorded:
            self._unrecorded.remove(close)
            self._fresh.remove(close)
        self.issue(close, same)

    def take_fresh(self) -> tuple[Decision, ...]:
        """Return the commands since the last turn."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    def begin_record(self, decision: int) -> None:
        """Compare the events that follow a DecisionTaskCompleted."""
        self._decision = decision
        self._fresh.clear()

    def take(self, event: Any) -> bool:
        """Compare an event with the code's next command, if it records one. Return whether it does. Raises Mismatch."""
        if not self._decision:
            return False
        kind = type(event)
        # A child that could not begin has an answer besides the record of its command.
        is_answer = kind is history.StartChildWorkflowExecutionFailed and event.initiated
        if kind not in RECORDS or event.decision_completed != self._decision or is_answer:
            self.end_record(f"the end of a decision, {kind.__name__}")
            return False
        if not self._unrecorded or not self._matches(event, self._unrecorded[0]):
            # A replay does not record patches again, and the code may have lost one: the commands after it are compared.
            if is_patch(event):
                return True
            code = describe_decision(self._unrecorded[0]) if self._unrecorded else "nothing"
            raise Mismatch(describe_event(event), code)
        self._unrecorded.popleft()
        self._comparison.agree(event)
        return True

    def _matches(self, event: Any, decision: Decision) -> bool:
        """Return whether an event records a command."""
        same = self._same.pop((type(decision), decision.number), None) if self._same else None
        return matches(event, decision, same)

    def end_record(self, recorded: str = "nothing") -> None:
        """Raise Mismatch if the code has issued more commands than the decision has recorded."""
        if self._decision and self._unrecorded:
            raise Mismatch(recorded, describe_decision(self._unrecorded[0]))
        self._decision = 0

    def agree(self, event: Any) -> None:
        """Note the recorded result of a step that the code has called."""
        self._comparison.agree(event)

    def park(self, found: Mismatch, rest: Sequence[Event]) -> Parked:
        """Return why the run is parked. ``rest`` has the events from the first difference on."""
        commands = [event for event in rest if type(event) in RECORDS and not is_patch(event)]
        recorded = [describe_event(event) for event in commands[: SHOWN + 1]]
        if not recorded or recorded[0] != found.recorded:
            recorded.insert(0, found.recorded)
        code = [describe_decision(one) for one in self._unrecorded][: SHOWN + 1]
        if not code or code[0] != found.code:
            code.insert(0, found.code)
        return self._comparison.park(recorded, code)

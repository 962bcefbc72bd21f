"""Slots of resources that workflow code holds in a block.

The block's begin issues a request, and its end gives the slots back. A timeout is a durable timer of the code: when it is over,
the code gives the request up, and the node answers with the slots after all, or with what was lacking.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mainspring.client.resources import HeldSlots
from mainspring.errors import HoldTimedOut, WorkflowUsageError
from mainspring.workflow_code.model import Evicted
from mainspring.workflows.history import MarkerName
from mainspring.workflows.history_json import digest_of
from mainspring.workflows.hold_calls import MOST_HOLDS, HoldCall, decode_answer, encode_call
from mainspring.workflows.model import Parked
from mainspring.workflows.requests import RecordMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from mainspring.resources.holds import HoldAnswer
    from mainspring.resources.rules import UseSpec
    from mainspring.workflow_code.loop import WorkflowLoop
    from mainspring.workflow_code.model import RunState
    from mainspring.workflow_code.workflow_jobs import Numbers
    from mainspring.workflows.history import WorkflowExecutionSignaled

T = TypeVar("T")

_EARLIER_NODE: Final = (
    "the code holds slots of resources, and the node of this worker has an earlier version, which grants none to runs: update "
    "the node, and `mainspring workflows unpark` the run"
)


class Holds:
    """The requests and holds of a run. ``issue`` adds a command, and ``numbers`` numbers it."""

    def __init__(
        self,
        state: RunState,
        loop: WorkflowLoop,
        issue: Callable[..., None],
        numbers: Numbers,
    ) -> None:
        self._state = state
        self._loop = loop
        self._issue = issue
        self._numbers = numbers
        self.defect: Parked | None = None
        """Why the run is parked, because its node grants nothing to runs, and takes nothing back."""
        self._open: dict[int, str] = {}
        """The requests and holds as texts, by their numbers."""
        self._waiting: dict[int, asyncio.Future[HoldAnswer]] = {}

    # ---- called by the code ----

    def request(self, uses: Sequence[UseSpec], timeout: float | None) -> tuple[int, asyncio.Future[HoldAnswer]]:
        """Ask for slots; return the number of the request, and its answer."""
        if self._state.evicted:
            raise Evicted
        if len(self._open) >= MOST_HOLDS:
            raise WorkflowUsageError(
                f"the run has {MOST_HOLDS} requests and holds of resources, and no more are allowed: ask for several at once "
                "with workflow.hold, or give some back before"
            )
        self._check_node()
        number = self._numbers.next()
        details = encode_call(HoldCall([*uses], timeout or 0))
        text = self._open[number] = ", ".join(map(_text_of, uses))
        digest = digest_of(
            encode_call(HoldCall([*uses]))
        )  # as with timers, another timeout is no difference of the code
        self._issue(RecordMarker(number, MarkerName.HOLD, details, native=True, digest=digest, function=text[:256]))
        return number, self._wait(number)

    def give_up(self, number: int) -> asyncio.Future[HoldAnswer]:
        """Wait no longer than the node needs to decide; return the answer."""
        self._check_node()
        self._issue(RecordMarker(number, MarkerName.WITHDRAW, native=True))
        return self._wait(number)

    def release(self, number: int) -> None:
        """Give slots back, or take their request back."""
        self._waiting.pop(number, None)
        if self._open.pop(number, None) is not None and not self._state.evicted:
            self._check_node()
            self._issue(RecordMarker(number, MarkerName.RELEASE, native=True))

    def refused(self, number: int) -> None:
        """Note that a request has ended without slots."""
        self._open.pop(number, None)

    def waits(self) -> tuple[str, ...]:
        """Return what the code waits for, in the order of its requests."""
        return tuple(self._open[number] for number, future in self._waiting.items() if not future.done())

    def _check_node(self) -> None:
        """Park the run if its node would record a marker, and do nothing about it."""
        if not (self._state.takes_holds or self._state.replaying):
            self.defect = Parked("missing", _EARLIER_NODE)
            raise Evicted

    def _wait(self, number: int) -> asyncio.Future[HoldAnswer]:
        future = self._waiting[number] = self._loop.create_future()
        return future

    # ---- called by the run ----

    def answered(self, event: WorkflowExecutionSignaled) -> int:
        """Give the answer to a request to the code; return its bytes."""
        future = self._waiting.pop(event.external_initiated, None)
        if future is not None and not future.done():
            future.set_result(decode_answer(event.input))
        return len(event.input)

    def close(self) -> list[asyncio.Future[Any]]:
        """Forget everything, and return the futures."""
        futures: list[asyncio.Future[Any]] = [*self._waiting.values()]
        self._waiting.clear()
        self._open.clear()
        return futures


def _text_of(use: UseSpec) -> str:
    labels = f"[{', '.join(use.labels)}]" if use.labels else ""
    return f"{use.resource}{labels} {use.units}"


class Hold(Generic[T]):
    """A block that has slots: ``async with`` waits for them. ``pick`` returns the block's value for what was granted."""

    def __init__(
        self, holds: Holds, uses: Sequence[UseSpec], timeout: float | None, pick: Callable[[dict[str, HeldSlots]], T]
    ) -> None:
        self._holds = holds
        self._uses = uses
        self._timeout = timeout
        self._pick = pick
        self._number = 0

    async def __aenter__(self) -> T:
        """Wait for the slots. Raises HoldTimedOut if there are none in time."""
        if self._number:
            raise WorkflowUsageError("a hold is for one block: call hold(…) again for another one")
        holds = self._holds
        self._number, future = holds.request(self._uses, self._timeout)
        try:
            answer = await self._answer(future)
            if answer.items:
                return self._pick(slots_of(answer))  # raises PayloadError for a meta that the class cannot read
        except BaseException:
            holds.release(self._number)
            raise
        holds.refused(self._number)
        names = ", ".join(use.resource for use in self._uses)
        raise HoldTimedOut(names, answer.lacks, answer.before, impossible=answer.impossible)

    async def _answer(self, future: asyncio.Future[HoldAnswer]) -> HoldAnswer:
        if self._timeout is None:
            return await future
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            if future.done() and not future.cancelled():  # granted at the last moment
                return future.result()
            return await self._holds.give_up(self._number)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the slots back."""
        self._holds.release(self._number)


def slots_of(answer: HoldAnswer) -> dict[str, HeldSlots]:
    """Return what was granted, by the names of the resources."""
    items: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    metas: dict[str, dict[str, Any]] = {}
    for one in answer.items:
        items.setdefault(one.resource, {})[one.item] = one.units
        numbers[one.resource] = one.number
        if one.meta is not None:
            metas.setdefault(one.resource, {})[one.item] = one.meta
    return {name: HeldSlots(of_name, numbers[name], name, metas.get(name, {})) for name, of_name in items.items()}

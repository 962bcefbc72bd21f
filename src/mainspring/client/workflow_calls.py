"""The calls that workflow code makes: on a workflow's loop, a submit schedules an activity of the run.

The loop of a run has the attribute ``workflow_calls`` (a `WorkflowCalls`); other loops do not have it.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.job import Job
    from mainspring.client.options import Options
    from mainspring.client.payload import Signature

R = TypeVar("R")


class Call(NamedTuple, Generic[R]):
    """A call of a function as a submit sends it, with its arguments encoded."""

    function: str
    payload: bytes
    options: Options
    unique: str
    decode: Callable[[bytes], R]
    """Decodes the result."""


class StepFunction(Protocol):
    """A function that a worker can run as a local step."""

    @property
    def name(self) -> str:
        """Return the name in histories."""

    @property
    def call(self) -> Callable[..., Any]:
        """Return the function itself."""

    @property
    def signature(self) -> Signature:
        """Return the encoder of arguments and results."""

    @property
    def executor(self) -> Literal["thread", "process", "coroutine"]:
        """Return where it runs."""


class WorkflowCalls(Protocol):
    """The run whose code makes a call."""

    def submit(self, call: Call[R], /) -> Job[R]:
        """Schedule an activity."""

    def invoke(self, call: Call[R], function: StepFunction, /) -> Any:
        """Answer a direct call of a task's function: it is short for an activity, or refused."""

    def step(self, call: Call[R], function: StepFunction, record: Literal["each", "together"], /) -> Job[R]:
        """Run a function as a local step."""


def running_workflow() -> WorkflowCalls | None:
    """Return the run whose code calls this; None outside of workflows."""
    loop = _get_running_loop()
    return None if loop is None else getattr(loop, "workflow_calls", None)

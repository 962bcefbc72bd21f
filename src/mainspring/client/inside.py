"""The seam between submissions and the workflow that they are called in.

The event loop of a workflow has the attribute ``workflow_calls``; the package `mainspring.deciding` sets it.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mainspring.errors import WorkflowUsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Options


class ActivityCall(NamedTuple):
    """A submission as a workflow needs it."""

    name: str
    codec: Any
    options: Options
    unique: bool
    key: Any
    transactional: bool
    """Whether it was given a database connection."""
    connections: Any
    decode: Callable[[bytes], Any]


class ChildCall(NamedTuple):
    """The start of a run as a workflow needs it."""

    name: str
    codec: Any
    options: Options
    unique: str
    connections: Any
    decode: Callable[[bytes], Any]
    is_part: bool = False
    """Whether it runs a part of a map in place of the workflow's function."""


class WorkflowCalls(Protocol):
    """The calls that workflow code makes on tasks."""

    def log(self, line: Any, size: int) -> None:
        """Add a line of the code, of about so many bytes, to the log of the run."""

    def submit(self, call: ActivityCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Schedule an activity."""

    def start_child(self, call: ChildCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a child."""

    def step(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a task as a local step."""


def workflow_calls() -> WorkflowCalls | None:
    """Return the receiver of calls in the workflow whose code is running; None outside of workflows."""
    loop = _get_running_loop()
    return None if loop is None else getattr(loop, "workflow_calls", None)


def keeps_inexact_values() -> bool:
    """Return whether the running code belongs to a run that began before values which JSON changes were refused.

    Its replay has to record what it recorded then. The loop's ``semantics`` is that of `mainspring.workflows.model`.
    """
    loop = _get_running_loop()
    return loop is not None and getattr(loop, "semantics", _REFUSES_INEXACT) < _REFUSES_INEXACT


_REFUSES_INEXACT: Final = 2


def check_outside(what: str, remedy: str) -> None:
    """Raise WorkflowUsageError inside of a workflow."""
    if workflow_calls() is not None:
        raise WorkflowUsageError(f"{what} does not work inside of a workflow: {remedy}")

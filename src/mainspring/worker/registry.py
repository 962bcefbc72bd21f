"""The functions that a worker runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from mainspring.client.options import check_name, check_text, seconds
from mainspring.codecs import NO_CODECS, Codecs
from mainspring.errors import UsageError
from mainspring.jobs.model import FUNCTION_LIMIT
from mainspring.resources.rules import NO_TIMES, UNLIMITED, Limits, Times, limits_to_wire
from mainspring.workflows.model import decision_function

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from mainspring.client.options import Duration, Retry
    from mainspring.client.payload import Signature
    from mainspring.client.providers import Provider
    from mainspring.client.resources import Resource
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.external_work import Elsewhere
    from mainspring.workflow_code.model import Code

    Middleware = Callable[[CurrentJob], Iterator[Any] | AsyncIterator[Any]]
    """A generator function around the attempts of functions: it yields once, where the function runs."""

Executor = Literal["thread", "process", "coroutine"]


@dataclass(frozen=True, slots=True)
class Kept:
    """The parts of a function's succeeded jobs that the store keeps, and for how long."""

    arguments: int | None = None
    """Bytes of the largest arguments that are kept; None: as the node's settings say."""
    seconds: float | None = None
    """Seconds for which a job is kept with its result; None: as the node's settings say."""
    ignores_result: bool = False
    """Whether results are not sent."""


KEPT: Final = Kept()


def kept_seconds(keep_result: Duration | None) -> float | None:
    """Return the seconds of ``keep_result``.  Raises UsageError for less than a second."""
    if keep_result is None:
        return None
    found = seconds(keep_result, "keep_result")
    if found < 1:
        raise UsageError(
            f"keep_result must be at least 1s, and is {keep_result!r}: to keep no result, give ignore_result=True"
        )
    return found


class Surrounding(Protocol):
    """Runs attempts inside of what is around them, as `around.Around` does. The results are settlements."""

    def execute(self, function: Function, payload: bytes, job: CurrentJob) -> Any:
        """Run a plain function in this thread. Raises nothing."""

    async def run(self, function: Function, payload: bytes, job: CurrentJob) -> Any:
        """Run a function on the loop. Raises nothing."""

    async def call(self, function: Function, job: CurrentJob, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function with arguments, and return its result. Raises the error of the attempt."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function, its executor, and the defaults of its jobs (durations in seconds)."""

    name: str
    call: Callable[..., Any]
    signature: Signature
    executor: Executor
    retry: Retry | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    limits: Limits = UNLIMITED
    times: Times = NO_TIMES
    """Within which its jobs should begin and end, if a submit does not say so itself."""
    resources: tuple[Resource, ...] = ()
    """The resources that its jobs use."""
    kept: Kept = KEPT
    middleware: tuple[Middleware, ...] = ()
    """That of the function alone, inside of the App's."""
    from_node: bool = False
    """Whether nodes make its jobs and read their results: no codec is used for them."""
    elsewhere: Elsewhere | None = None
    """The work, if it runs in another system; then its jobs are watched, and ``call`` is not called."""
    around: Surrounding | None = None
    """Runs each attempt in a worker; None for a function without middleware and provided parameters."""

    def registration(self) -> bytes:
        """Return the function's options for the protocol's REGISTER; empty if there are none."""
        options: dict[str, Any] = {}
        if self.timeout is not None:
            options["timeout"] = self.timeout
        if self.heartbeat is not None:
            options["heartbeat"] = self.heartbeat
        if self.retry is not None:
            options["retry"] = self.retry.wire()
        if self.elsewhere is not None:
            options["elsewhere"] = "leave" if self.elsewhere.leaves else "cancel"
        if self.limits != UNLIMITED:
            options["limits"] = limits_to_wire(self.limits)
        if self.resources:
            options["resources"] = {one.name: one.spec for one in self.resources}
        return msgspec.json.encode(options) if options else b""


@dataclass(frozen=True, slots=True)
class WorkflowFunction:
    """One version of a workflow. No worker runs it as a task: workers decide its runs."""

    code: Code
    timeout: float | None = None
    """Seconds that a run may last."""
    times: Times = NO_TIMES
    """The same of its runs."""
    limits: Limits = UNLIMITED
    """Of its open runs."""

    @property
    def signature(self) -> Signature:
        """The encoder of its arguments and result."""
        return self.code.signature


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that runs when a process of a worker starts, or when it ends; a generator does both."""

    call: Callable[[], Any]
    at_stop: bool = False
    """Whether it runs at the end alone."""
    in_task_processes: bool = True
    """Whether it also runs in the processes of ``executor="process"``."""


@dataclass(slots=True)
class Registry:
    """Functions by name, workflows by name and version, and signals. A name is that of a function or of a workflow.

    It also has what runs around them: middleware, the hooks of processes, and providers in the place of others.
    """

    _functions: dict[str, Function] = field(default_factory=dict)
    workflows: dict[tuple[str, str], WorkflowFunction] = field(default_factory=dict)
    signals: list[Callable[[], str]] = field(default_factory=list)
    """For each signal whose type names something that was not defined before it: returns why its values cannot be read."""
    middleware: list[Middleware] = field(default_factory=list)
    """That of all functions; the first is the outermost."""
    hooks: list[Hook] = field(default_factory=list)
    """In the order in which processes start them."""
    replaced: dict[Provider, Provider] = field(default_factory=dict)
    """Providers, each with the one that tests use in its place."""
    resources: list[Resource] = field(default_factory=list)
    """Those that the App defines: its workflows may hold them."""
    codecs: Codecs = NO_CODECS
    """Encode and decode payloads."""

    def add(self, function: Function) -> None:
        """Add a function.  Raises UsageError if its name is in use or invalid."""
        name = function.name
        check_name(name)
        present = self._functions.get(name)
        if present is not None:
            raise UsageError(
                f"two tasks are named {name!r} ({_full_name(present.call)} and {_full_name(function.call)}): "
                "give one of them another name with @app.task(name=…)"
            )
        for workflow in self.workflows.values():
            if workflow.code.name == name:
                raise _both(name, function.call, workflow.code.call)
        self._functions[name] = function

    def add_workflow(self, workflow: WorkflowFunction) -> None:
        """Add a version of a workflow.  Raises UsageError if a task or the same version has the name, or if it is invalid."""
        name, version, call = workflow.code.name, workflow.code.version, workflow.code.call
        check_version(name, version)
        task = self._functions.get(name)
        if task is not None:
            raise _both(name, task.call, call)
        present = self.workflows.get((name, version))
        if present is not None:
            raise UsageError(
                f"two workflows are named {name!r} in version {version!r} ({_full_name(present.code.call)} and "
                f"{_full_name(call)}): give one of them another version, such as @{name}.version('2'), or another name with "
                "@app.workflow(name=…)"
            )
        self.workflows[name, version] = workflow

    def get(self, name: str) -> Function | None:
        """Return the function of a name; None if there is none."""
        return self._functions.get(name)

    def subset(self, names: Iterable[str]) -> Registry:
        """Return a registry of some of the functions and workflows.  Raises KeyError for a name that it does not have."""
        wanted = set(names)
        workflows = {key: workflow for key, workflow in self.workflows.items() if key[0] in wanted}
        wanted -= {name for name, _ in workflows}
        functions = {name: self._functions[name] for name in names if name in wanted}
        signals = self.signals if workflows else []
        return Registry(
            functions, workflows, signals, self.middleware, self.hooks, self.replaced, self.resources, self.codecs
        )

    def names(self) -> list[str]:
        """Return the names of the functions, then those of the workflows."""
        return list(dict.fromkeys([*self._functions, *(name for name, _ in self.workflows)]))

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)


def check_version(name: str, version: object) -> None:
    """Raise UsageError unless the values can be the name and the version of a workflow."""
    check_name(name)
    text = check_text(version, "version")
    if not text or not text.isprintable() or "@" in text:
        raise UsageError(f"{text!r} is not a version of a workflow: use printable text without @, such as '2'")
    if not name.isprintable():
        raise UsageError(f"{name!r} is not a name for a workflow: use printable text")
    if (size := len(decision_function("default", name, text))) > FUNCTION_LIMIT:
        raise UsageError(
            f"{name!r} with version {text!r} is too long for a workflow: shorten them by {size - FUNCTION_LIMIT} bytes"
        )


def _both(name: str, task: Callable[..., Any], workflow: Callable[..., Any]) -> UsageError:
    return UsageError(
        f"a task and a workflow are named {name!r} ({_full_name(task)} and {_full_name(workflow)}): give one of them another "
        "name, with @app.task(name=…) or @app.workflow(name=…)"
    )


def _full_name(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', '?')}"

"""Tasks and workflows of an App as Python objects, and the decorators that define them.

A client encodes the arguments of a call before the server chooses the version of a workflow that gets them. So a new
version has to take all calls of the old ones (`misfit`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

from mainspring.client.declarations import build_schedule
from mainspring.client.inbox import DEFAULT_SCHEMA, inbox_of
from mainspring.client.inside import ChildCall, workflow_calls
from mainspring.client.listening import check_listener
from mainspring.client.options import (
    Options,
    build_options,
    check_key,
    check_retry,
    check_text_or_function,
    check_unique,
    refusal,
    seconds,
)
from mainspring.client.providers import check_given, is_marked
from mainspring.client.run import Run, check_run_key
from mainspring.client.submission import Check, Key, Submission, Unique, accept_options
from mainspring.errors import UsageError, WorkflowUsageError
from mainspring.resources.rules import UNLIMITED
from mainspring.worker.external_functions import build_canceller, build_external
from mainspring.worker.functions import build_function, build_workflow, times_of
from mainspring.worker.instance_steps import step_functions
from mainspring.worker.registry import KEPT, check_version
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import datetime

    from mainspring.client.connections import Connections
    from mainspring.client.declarations import Arguments, Declarations, Timing
    from mainspring.client.external import ExternalWork
    from mainspring.client.inbox import Inbox
    from mainspring.client.inside import WorkflowCalls
    from mainspring.client.job import Job
    from mainspring.client.listening import EventFilter, Listeners
    from mainspring.client.options import CancelMode, ChildPolicy, Duration, Priority, Retry
    from mainspring.client.resources import Resource
    from mainspring.client.session import Request
    from mainspring.resources.rules import Limits
    from mainspring.worker.registry import Function, Kept, Middleware, Registry, WorkflowFunction
    from mainspring.workflow_code.handlers import RunsWorkflow


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def signature_misfit(old: Callable[..., Any], new: Callable[..., Any]) -> str:
    """Return why ``new`` cannot take all calls of ``old``; empty if it can. Types are not compared."""
    before = list(signature(old).parameters.values())
    after = list(signature(new).parameters.values())
    old_positional = [one for one in before if one.kind in _BY_POSITION]
    new_positional = [one for one in after if one.kind in _BY_POSITION]
    takes_rest = any(one.kind is Parameter.VAR_POSITIONAL for one in after)
    takes_names = any(one.kind is Parameter.VAR_KEYWORD for one in after)
    by_name = {one.name for one in after if one.kind in _BY_NAME}
    for place, one in enumerate(old_positional):
        if place >= len(new_positional) and not takes_rest:
            return f"it lacks the parameter {one.name!r}"
        if place < len(new_positional) and one.kind is Parameter.POSITIONAL_OR_KEYWORD:
            named = new_positional[place].name
            if named != one.name:
                return f"its parameter {place + 1} is named {named!r}, not {one.name!r}"
    for one in before:
        if one.kind in _BY_NAME and one.name not in by_name and not takes_names:
            return f"it lacks the parameter {one.name!r}, or takes it by position only"
        if one.kind is Parameter.VAR_POSITIONAL and not takes_rest:
            return f"it lacks *{one.name}"
        if one.kind is Parameter.VAR_KEYWORD and not takes_names:
            return f"it lacks **{one.name}"
    required = {one.name for one in before if _is_required(one)}
    for place, one in enumerate(after):
        is_old = one.name in required
        if one.kind is Parameter.POSITIONAL_ONLY:  # the old name may differ
            is_old = place < len(old_positional) and _is_required(old_positional[place])
        if _is_required(one) and not is_old:
            return f"its parameter {one.name!r} needs a default, because other versions can be called without it"
    return ""


def _is_required(one: Parameter) -> bool:
    return one.default is Parameter.empty and one.kind in {*_BY_POSITION, *_BY_NAME}


A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Workflow(Submission[P, R]):
    """A workflow, with the default options of its runs. ``submit`` starts a run, or joins the open one with the same id.

    ``function`` is the code of its version, ``add`` defines another version.
    """

    def __init__(
        self,
        function: WorkflowFunction,
        connections: Connections,
        options: Options,
        unique: Unique,
        check: Check,
        add: Callable[[WorkflowFunction], None],
        inbox: Inbox | None = None,
        key: Key = "",
    ) -> None:
        code = function.code
        super().__init__(code.name, code.signature, connections, options, unique, inbox, key, check)
        self.function = function
        self._add = add
        self.defaults = options
        if options.version is None:
            # Without it, a node that keeps no workflows would keep the run as a job that no worker takes.
            self._options = replace(self._options, version="")
            self._wire_options = self._options.wire()
        functools.update_wrapper(cast("Any", self), function.code.call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a child, inside of a workflow: ``await order(17)`` is ``await order.submit(17)``.

        Raises UsageError outside of workflows.
        """
        if workflow_calls() is not None:
            return self.submit(*args, **kwargs)
        name = self.name
        raise UsageError(f"{name} is a workflow, which only workers run: start a run with {name}.submit(…)")

    def __repr__(self) -> str:
        return f"Workflow({self.name!r}, version={self.function.code.version!r})"

    def options(  # type: ignore[override] # a run has fewer options than the job of a task
        self,
        *,
        id: str | Callable[P, str] | None = None,  # noqa: A002 - the option's name everywhere
        priority: Priority | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        timeout: Duration | None = None,
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        version: str | None = None,
        cancel: CancelMode | None = None,
        child_policy: ChildPolicy | None = None,
        concurrency_key: str | Callable[P, str] | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> Workflow[P, R]:
        """Return the same workflow with other options for its runs; omitted options stay the same.

        ``id`` is the workflow id, or a function that computes it from the arguments. A workflow id
        has one open run, which a submit joins. ``priority`` is high, normal or low. ``delay`` or ``run_at`` (an aware datetime)
        sets the earliest start. ``timeout`` limits the whole run, to at most 366 days. A run that has not begun within
        ``start_within``, or not ended within ``deadline``, is overdue, and has an event. ``version`` states the version of the
        run, by default the newest that has workers; the server refuses one that no worker has registered.

        ``child_policy`` and ``cancel`` are for children, which workflows start. ``child_policy`` says what happens to the child
        if its parent is terminated or times out: ``"terminate"``, the default, ``"cancel"`` or ``"abandon"``. ``cancel`` says
        what happens to it if the parent's code cancels its wait for it: ``"try"``, ``"wait"`` or ``"abandon"``, as for an
        activity.

        ``concurrency_key``, or a function that computes it from the arguments, is the key whose limits of open runs it shares.

        ``connection`` and ``schema`` are as of a task's options: the run exists if and only if the transaction of the connection
        commits. A version that no worker has registered then waits for a worker.

        Raises UsageError if an option is wrong, or the App's store does not support it.
        """
        self._check({"connection": connection, "concurrency_key": concurrency_key})
        limit = None if timeout is None else run_limit(timeout)
        key: Key = self._key
        if concurrency_key is not None:
            key = check_text_or_function(concurrency_key, "concurrency_key", check_key)
        if version is not None:
            check_version(self.name, version)
        newer = build_options(
            priority=priority,
            delay=delay,
            run_at=run_at,
            run_timeout=limit,
            start_within=start_within,
            deadline=deadline,
            version=version,
            cancel=cancel,
            child_policy=child_policy,
        )
        chosen = self._unique if id is None else workflow_id(id)
        inbox = inbox_of(connection, schema) or self._inbox
        options = replace(self.defaults.merged(newer), concurrency_key=None)
        return type(self)(self.function, self._connections, options, chosen, self._check, self._add, inbox, key)

    def version(
        self,
        version: str,
        /,
        *,
        timeout: Duration | None = None,
        park_on: Sequence[type[BaseException]] | None = None,
        retry: Retry | None = None,
    ) -> DefineVersion[P, R]:
        """Define another version of the workflow: ``@order.version("2")``, on a function with another name.

        Each run stays with the version with which it was started; new runs get the newest. The function takes the same arguments,
        and may take more if they have defaults. Options that are not given are those of this version.

        Raises UsageError if an option is wrong, and the decorator does if the function does not fit or the version is taken.
        """
        this = self.function
        limit = this.timeout if timeout is None else run_limit(timeout)
        errors = this.code.park_on if park_on is None else check_park_on(park_on)
        check_retry(retry)
        policy = this.code.retry if retry is None else retry

        def define(call: Any) -> Workflow[P, R]:
            function = build_workflow(call, self.name, version, limit, errors, policy, this.times, this.limits)
            kind = ClassWorkflow if isinstance(call, type) else Workflow
            if problem := signature_misfit(this.code.call, function.code.call):
                raise UsageError(
                    f"{_name_of(function.code.call)} cannot be version {version!r} of the workflow {self.name}: {problem}. A run "
                    "may begin with either version, so both need the same parameters; define a workflow with another name"
                )
            self._add(function)
            options = replace(self.defaults, version=None)
            return kind(function, self._connections, options, self._unique, self._check, self._add, key=self._key)

        return DefineVersion(define)

    if TYPE_CHECKING:  # as in Submission, with a more precise result

        def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
            """Start a run and return when it is on disk."""
            raise NotImplementedError

        async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
            """Start a run, like ``submit``."""
            raise NotImplementedError

        def job(self, handle: str) -> Run[R]:
            """Return the run of a handle."""
            raise NotImplementedError

    def get(self, key: str) -> Run[R]:
        """Return the open or last run of a handle or a workflow id. This sends nothing to the server.

        Raises UsageError if the text can be neither.
        """
        return Run(self._connections, check_run_key(key), self._decode)

    def activity(self) -> None:
        """Return None: inside of workflows, a run is a child."""

    def _submit_inside(self, calls: WorkflowCalls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R]:
        if self._inbox is not None:
            raise UsageError(f"{self.name}: a child begins with a decision of its parent: leave connection out")
        unique = self.unique_of(args, kwargs)
        key = self._options.concurrency_key or ""
        if callable(self._key):
            key = check_key(self._key(*args, **kwargs), f"{self.name}: the concurrency_key of these arguments")
        options = replace(self._options, concurrency_key=key or None)
        call = ChildCall(self.name, self._codec, options, unique, self._connections, self._decode)
        child: Job[R] = calls.start_child(call, args, kwargs)
        return child

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        for option in ("child_policy", "cancel"):
            if getattr(self._options, option) is not None:
                raise UsageError(
                    f"{self.name}: {option} is for a child, which a workflow starts; a run that a program starts has no parent"
                )
        return super()._request(args, kwargs)

    def _job(self, handle: str, *, joined: bool = False) -> Run[R]:
        return Run(self._connections, handle, self._decode, joined=joined)


class ClassWorkflow(Workflow[P, R]):
    """A workflow that is a class. It has the class's handlers as attributes: ``run.signal(Order.approve, value)``."""

    def __getattr__(self, name: str) -> Any:
        kind = self.__dict__.get("workflow_class")
        found = None if kind is None else getattr(kind, name, None)
        if not hasattr(found, "handler"):
            raise AttributeError(f"{self!r} has no handler and no attribute {name!r}")
        return found


class DefineWorkflow:
    """The decorator ``@app.workflow(…)``."""

    def __init__(self, define: Callable[[Any], Any]) -> None:
        self._define = define

    @overload
    def __call__(self, call: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, call: Callable[[], RunsWorkflow[P, R]], /) -> ClassWorkflow[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define a workflow from a coroutine function, or from a class. Raises UsageError if it cannot be a workflow."""
        return self._define(call)


class DefineVersion(Generic[P, R]):
    """The decorator ``@order.version(…)``, for functions with the parameters and the result of the workflow."""

    def __init__(self, define: Callable[[Any], Any]) -> None:
        self._define = define

    @overload
    def __call__(self, call: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, call: Callable[[], RunsWorkflow[P, R]], /) -> ClassWorkflow[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define the version. Raises UsageError if the function or class cannot be one, or the version is taken."""
        return self._define(call)


def _name_of(call: Callable[..., Any]) -> str:
    return str(getattr(call, "__qualname__", call))


def no_activity(name: str) -> WorkflowUsageError:
    """Return the error for a workflow that another one submits by its name."""
    return WorkflowUsageError(
        f"{name} is a workflow, and an activity is a task's: start a child with the workflow itself, {name}.submit(…)"
    )


def workflow_id(given: Unique) -> Unique:
    """Return a workflow id, or the function that computes it. Raises UsageError for an invalid one."""
    return check_text_or_function(given, "id", check_unique)


def run_limit(timeout: Duration) -> float:
    """Return the seconds that a run may last.  Raises UsageError for 0 and for more than 366 days."""
    limit = seconds(timeout, "timeout")
    if not 0 < limit <= YEAR:
        raise UsageError(f"a run may last more than 0 and at most 366 days: timeout is {timeout!r}")
    return limit


def check_park_on(given: object) -> tuple[type[BaseException], ...]:
    """Return the errors that park a run.  Raises UsageError unless they are a tuple or list of exceptions."""
    if not isinstance(given, (tuple, list)) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in given
    ):
        raise refusal("park_on", "a tuple of exceptions, such as (TypeError, AssertionError)", given)
    return tuple(given)


C = TypeVar("C")


class Defined(Submission[P, R], Generic[P, R, C]):
    """A function that workers run, with the default options of its jobs. ``C`` is the return type of a call."""

    def __init__(
        self,
        call: Callable[P, C],
        function: Function,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        key: Key = "",
        check: Check = accept_options,
    ) -> None:
        super().__init__(function.name, function.signature, connections, options, unique, key=key, check=check)
        self.function = function
        self.defaults = options
        self._call = call
        self._marked = [name for name in function.signature.provided if is_marked(call, name)]
        """Parameters with a mark as their default, which a plain call would pass to the function."""
        functools.update_wrapper(self, call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function in this process, without a server."""
        if workflow_calls() is not None:
            return self._call_in_workflow(*args, **kwargs)
        if self._marked:
            check_given(self.name, self._call, self._marked, args, kwargs)
        return self._call(*args, **kwargs)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Run the function as a local step of a workflow: on its worker, with a recorded result.

        Raises WorkflowUsageError outside of a workflow.
        """
        calls = workflow_calls()
        if calls is None:
            raise WorkflowUsageError(
                f"{self.name}.step(…) works only inside of a workflow: write {self.name}.submit(…), or call {self.name}(…)"
            )
        job: Job[R] = calls.step(self, args, kwargs)
        return job

    def _call_in_workflow(self, *_args: P.args, **_kwargs: P.kwargs) -> C:
        raise WorkflowUsageError(
            f"{self.name} is called inside of a workflow, which would run it again in each replay: write `await "
            f"{self.name}.step(…)` to run it on this worker, or `await {self.name}.submit(…)` for an activity"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Task(Defined[P, R, R]):
    """A function that workers run. A call runs it in this process; ``submit`` creates a job."""


class CoroutineTask(Defined[P, R, "Coroutine[Any, Any, R]"]):
    """A coroutine function that workers run. An awaited call runs it in this process; ``submit`` creates a job.

    Inside of a workflow, an awaited call is an activity, as with ``submit``.
    """

    def _call_in_workflow(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.submit(*args, **kwargs)


class ExternalTask(Defined[P, R, "Coroutine[Any, Any, R]"]):
    """Work that runs in another system, watched by workers. ``submit`` creates a job.

    Inside of a workflow, an awaited call is an activity, as with ``submit``.
    """

    _takes_json = True

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:  # noqa: ARG002 - as of a task
        """Raise WorkflowUsageError: no worker runs this work as a local step."""
        raise WorkflowUsageError(f"{self.name} runs elsewhere, so it is no step: write `await {self.name}.submit(…)`")

    def _call_in_workflow(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.submit(*args, **kwargs)


class DefineExternal:
    """The decorator ``@app.external(…)``, for a class, or for an object whose class has the methods."""

    def __init__(self, define: Callable[[Any], Any]) -> None:
        self._define = define

    @overload
    def __call__(self, work: Callable[[], ExternalWork[A, Any, R]], /) -> ExternalTask[[A], R]: ...
    @overload
    def __call__(self, work: ExternalWork[A, Any, R], /) -> ExternalTask[[A], R]: ...
    def __call__(self, work: Any, /) -> Any:
        """Define the task. Raises UsageError if the class cannot be one."""
        return self._define(work)


class Define:
    """The decorator ``@app.task(…)``, typed for functions and for coroutine functions."""

    def __init__(self, define: Callable[[Callable[..., Any]], Any]) -> None:
        self._define = define

    @overload
    def __call__(  # type: ignore[overload-overlap] # type checkers use the first overload that fits
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define a task from a function. Raises UsageError if the function cannot be a task."""
        return self._define(call)


class Schedule(Define):
    """The decorator ``@app.scheduled(…)``, which also schedules a workflow."""

    @overload  # type: ignore[override] # a workflow can be called inside of another one, and is no function
    def __call__(self, call: Workflow[P, R], /) -> Workflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define a schedule for a function or a workflow. Raises UsageError if the function cannot be a task."""
        return self._define(call)


class JobRules(NamedTuple):
    """The options, limits and resources of the jobs of a function, as its definition gives them."""

    options: Options
    unique: Unique = ""
    limits: Limits = UNLIMITED
    key: Key = ""
    kept: Kept = KEPT
    resources: tuple[Resource, ...] = ()


class Definitions:
    """Creates the tasks, workflows, schedules and listeners of one App, and adds them to what its workers run and declare."""

    def __init__(
        self,
        registry: Registry,
        schedules: Declarations,
        listeners: Listeners,
        connections: Connections,
        check: Check,
    ) -> None:
        self._registry = registry
        self._schedules = schedules
        self._listeners = listeners
        self._connections = connections
        self._check = check

    def task(
        self,
        call: Any,
        name: str | None,
        executor: Literal["thread", "process"],
        rules: JobRules,
        middleware: tuple[Middleware, ...] = (),
    ) -> Any:
        """Define a task. Raises UsageError if the function cannot be a task, or the name is taken."""
        if isinstance(call, Workflow):
            raise UsageError(
                f"{call.name} is a workflow, and not a function for a task: schedule it with @app.scheduled(…)"
            )
        given = call.function.call if isinstance(call, Defined) else call
        options, unique, limits, key, kept, resources = rules
        function = build_function(
            given, name, executor, options, limits, kept=kept, middleware=middleware, resources=resources
        )
        self._registry.add(function)
        kind: Any = CoroutineTask if function.executor == "coroutine" else Task
        return kind(function.call, function, self._connections, options, unique, key, self._check)

    def external(
        self,
        given: Any,
        name: str | None,
        every: float,
        rules: JobRules,
        *,
        leaves: bool,
    ) -> ExternalTask[..., Any]:
        """Define work that runs elsewhere. Raises UsageError if the class has not its methods, or the name is taken."""
        options, unique, limits, key, kept, resources = rules
        function = build_external(given, name, every, options, limits, leaves=leaves, kept=kept, resources=resources)
        self._registry.add(function)
        self._registry.add(build_canceller(function, self._registry.codecs))
        return ExternalTask(function.call, function, self._connections, options, unique, key, self._check)

    def steps(self, resource: Resource) -> None:
        """Define the functions that create, check and release instances of a managed resource. Raises UsageError."""
        assert resource.kind is not None
        for step, call in step_functions(resource.kind).items():
            name = f"{resource.name}.{step}"
            function = build_function(call, name, "thread", Options(), resources=(resource,))
            self._registry.add(replace(function, from_node=True))

    def listener(
        self,
        call: Any,
        name: str | None,
        executor: Literal["thread", "process"],
        rules: JobRules,
        middleware: tuple[Middleware, ...],
        chosen: EventFilter,
    ) -> Any:
        """Define a listener: a task that takes an event. Raises as ``task``, and UsageError if it takes anything else."""
        if isinstance(call, (Defined, Workflow)):
            raise UsageError(f"{call.name} is a task or a workflow already: give on a function that takes an event")
        function = build_function(call, name, executor, rules.options)
        provided = function.signature.provided
        parameters = [one for one in signature(function.call).parameters.values() if one.name not in provided]
        check_listener(function.call, function.name, parameters)
        task = self.task(call, name, executor, rules, middleware)
        self._listeners.declare(task.name, chosen, rules.options)
        return task

    def workflow(
        self,
        call: Any,
        name: str | None,
        version: str,
        timeout: float | None,
        park_on: tuple[type[BaseException], ...],
        rules: JobRules,
        retry: Retry | None,
    ) -> Workflow[..., Any]:
        """Define a workflow. Raises UsageError if the function or class cannot be one, or the name is taken."""
        function = build_workflow(call, name, version, timeout, park_on, retry, times_of(rules.options), rules.limits)
        kind = ClassWorkflow if isinstance(call, type) else Workflow
        add = self._registry.add_workflow
        add(function)
        return kind(function, self._connections, rules.options, rules.unique, self._check, add, key=rules.key)

    def scheduled(
        self,
        call: Any,
        name: str | None,
        executor: Literal["thread", "process"],
        options: Options,
        unique: Unique | None,
        timing: Timing,
        args: Arguments,
    ) -> Any:
        """Define a schedule for a task or a workflow, or for a function, which becomes a task.

        Raises as ``task``, and TypeError and PayloadError if the arguments do not fit.
        """
        task = call
        if not isinstance(call, (Defined, Workflow)):
            task = self.task(call, name, executor, JobRules(options, unique or ""))
        chosen = task.defaults.merged(options)
        positional, named = ((), dict(args)) if isinstance(args, Mapping) else (tuple(args), {})
        payload = task.function.signature.encode(positional, named)
        submission = task
        if unique is not None:  # a workflow has its id as the unique of its jobs
            submission = task.options(id=unique) if isinstance(task, Workflow) else task.options(unique=unique)
        job_unique = submission.unique_of(positional, named)
        schedule = build_schedule(name or task.name, task.name, timing, chosen, job_unique, payload)
        self._schedules.check_parents(timing.parent)
        self._schedules.declare(schedule)
        return task

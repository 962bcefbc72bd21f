"""Checks of code that is to become tasks or workflows.

Functions are checked when an App defines them. Refusals say what to write instead. The lint of workflows follows at the start
of a worker: by then all of their modules are loaded.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from mainspring.client.options import Options, check_text, refusal
from mainspring.client.payload import Signature
from mainspring.client.providers import name_of
from mainspring.errors import SettingsError, UsageError
from mainspring.resources.rules import NO_TIMES, UNLIMITED, Limits, Times
from mainspring.worker.registry import KEPT, Function, Kept, Registry, WorkflowFunction
from mainspring.workflow_code.model import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Retry
    from mainspring.client.resources import Resource
    from mainspring.worker.registry import Middleware
    from mainspring.workflow_code.handlers import HandlerMethod

EXECUTORS = ("thread", "process")


def check_definition(name: object, executor: object) -> None:
    """Raise UsageError unless the values can be the name and the executor of a task."""
    if name is not None:
        check_text(name, "name")
    if executor not in EXECUTORS:
        raise refusal("executor", "'thread' or 'process'", executor)


def build_function(
    given: object,
    name: str | None,
    executor: Any,
    options: Options,
    limits: Limits = UNLIMITED,
    *,
    kind: str = "task",
    kept: Kept = KEPT,
    middleware: tuple[Middleware, ...] = (),
    resources: tuple[Resource, ...] = (),
) -> Function:
    """Return the worker's function for a callable, under the callable's own name if ``name`` is None.

    Raises UsageError, which says ``kind``, if the value cannot be a task.
    """
    call = _function_of(given, kind)
    chosen = name or getattr(call, "__name__", "")
    if not chosen:
        raise UsageError(f"{call!r} has no __name__: give the {kind} one, app.{kind}(name=…)")
    coroutine = inspect.iscoroutinefunction(call)
    if coroutine and executor == "process":
        raise UsageError(f"{chosen} is a coroutine function: it runs on the worker's loop, not in a process")
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise UsageError(f"{chosen} is a generator: a {kind} returns one result")
    try:
        signature = Signature(call, chosen)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the parameters of {chosen} cannot be read ({error}): define a function that calls it, and make that the {kind}"
        ) from None
    _check_parameters(call, chosen, signature)
    if problem := signature.problem(results=not kept.ignores_result, is_loading=True):
        raise UsageError(f"{problem}{_line_of(call)}")
    return Function(
        name=chosen,
        call=call,
        signature=signature,
        executor="coroutine" if coroutine else executor,
        retry=options.retry,
        timeout=options.timeout,
        heartbeat=options.heartbeat,
        limits=limits,
        times=times_of(options),
        kept=kept,
        middleware=middleware,
        resources=resources,
    )


def times_of(options: Options) -> Times:
    """Return the times within which jobs with these options should begin and end."""
    return Times(options.start_within, options.deadline)


def build_workflow(
    given: object,
    name: str | None,
    version: str,
    timeout: float | None,
    park_on: tuple[type[BaseException], ...],
    retry: Retry | None = None,
    times: Times = NO_TIMES,
    limits: Limits = UNLIMITED,
) -> WorkflowFunction:
    """Return a version of a workflow, under the function's own name if ``name`` is None.

    Raises UsageError if the value cannot be a workflow.
    """
    methods: tuple[HandlerMethod, ...] = ()
    if isinstance(given, type):
        from mainspring.workflow_code.handlers import function_of  # noqa: PLC0415 - with the code that runs workflows

        given, methods = function_of(given)
    function = build_function(given, name, "thread", Options(), kind="workflow")
    if function.executor != "coroutine":
        raise UsageError(f"{function.name} is no coroutine function: a workflow is an `async def`, or make it a task")
    if function.signature.provided:
        parameter = next(iter(function.signature.provided))
        raise UsageError(
            f"{function.name}: {parameter!r} is provided, and a workflow has no such parameters: its code is replayed on other "
            "workers and at other times, where the value would be another one; use it in a task or in a step"
        )
    return WorkflowFunction(
        Code(function.name, version, function.call, function.signature, park_on, retry, methods), timeout, times, limits
    )


def check_middleware(given: object) -> Middleware:
    """Return a middleware. Raises UsageError for a value that cannot be one."""
    call: Any = given
    if hasattr(given, "submit"):
        is_task = hasattr(given, "step")
        raise UsageError(
            f"{given!r} is a task, and no middleware: give a generator function"
            if is_task
            else f"{given!r} is a workflow, and no middleware: give a generator function"
        )
    if not (inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given)):
        raise UsageError(
            f"{name_of(given)} is no generator function, as a middleware is: write `yield` where the job runs, code for before "
            "and after it around that, and try/except for its errors"
        )
    try:
        inspect.signature(call).bind(None)
    except TypeError:
        raise UsageError(f"{name_of(given)} takes one argument, as a middleware does: the job") from None
    middleware: Middleware = call
    return middleware


NO_MIDDLEWARE_FOR_WORKFLOWS = (
    "a workflow has no middleware: its code is replayed, by any worker and any number of times, so what a middleware does would "
    "be repeated, and what it reads would differ. Middleware runs around the tasks and the local steps of the workflow"
)


def check_hook(given: object, name: str, *, at_stop: bool = False) -> Callable[[], Any]:
    """Return a hook of ``@app.NAME``. Raises UsageError for a value that cannot be one."""
    call: Any = given
    if hasattr(given, "submit"):
        raise UsageError(f"{given!r} is not a function for {name}: call what it runs from a function of its own")
    if not (inspect.isroutine(given) or isinstance(given, functools.partial)):
        raise refusal(name, "a function without parameters", given)
    try:
        inspect.signature(call).bind()
    except TypeError:
        raise UsageError(f"{name_of(given)} has parameters: {name} calls it without arguments") from None
    if at_stop and (inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given)):
        raise UsageError(
            f"{name_of(given)} is a generator: give it to on_worker_start, which runs the part after its `yield` at the end"
        )
    hook: Callable[[], Any] = call
    return hook


def check_annotations(registry: Registry) -> None:
    """Raise SettingsError for functions and signals with values that can never be read from JSON, all of them at once.

    A worker calls it at its start, when the modules of its App are loaded: annotations may name types that are defined later.
    """
    found = [
        f"{problem}{_line_of(function.call)}"
        for function in registry
        if (problem := function.signature.problem(results=not function.kept.ignores_result))
    ]
    found += [
        f"{problem}{_line_of(workflow.code.call)}"
        for workflow in registry.workflows.values()
        if (problem := workflow.signature.problem())
    ]
    found += [
        f"{problem}{_line_of(method.method)}"
        for workflow in registry.workflows.values()
        for method in workflow.code.handlers
        if (problem := method.signature.problem(results=method.has_result))
    ]
    if found:
        raise SettingsError(
            f"functions have annotations with which none of their jobs could succeed: {'; '.join(found)}"
        )
    if signals := [problem for signal in registry.signals if (problem := signal())]:
        raise SettingsError(f"signals have types that no value can be read as: {'; '.join(signals)}")


def _line_of(call: Any) -> str:
    """Return the place of a function's definition, `` (FILE:LINE)``; empty for one that is not written in Python."""
    while isinstance(call, functools.partial):
        call = call.func
    code = getattr(inspect.unwrap(call), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def _function_of(given: Any, kind: str) -> Callable[..., Any]:
    """Return the function of a decorated value.  Raises UsageError if it is not a function."""
    if isinstance(given, str):
        raise UsageError(f"{given!r} is not a function: write @app.{kind}(name=…) to give a {kind} another name")
    if isinstance(given, staticmethod):
        return given.__func__
    if isinstance(given, classmethod):
        raise UsageError(
            f"{given.__name__} is a class method, and a job has no class: make it a static method, or a function of the module"
        )
    if isinstance(given, type):
        raise UsageError(
            f"{given.__name__} is a class: define a function that creates an instance of it, and make that the {kind}"
        )
    if not callable(given):
        raise refusal(f"a {kind}", "a function", given)
    # Wrappers, such as those of functools.cache, behave like the function that they wrap.
    if inspect.isroutine(given) or isinstance(given, functools.partial) or hasattr(given, "__wrapped__"):
        function: Callable[..., Any] = given
        return function
    raise UsageError(f"{given!r} is a callable object: define a function that calls it, and make that the {kind}")


def _check_parameters(call: Callable[..., Any], name: str, signature: Signature) -> None:
    """Raise UsageError for a method, which would use its first argument as its object."""
    first = signature.first
    outside = getattr(call, "__qualname__", "").rpartition(".")[0]
    in_class = bool(outside) and not outside.endswith("<locals>")
    if not inspect.ismethod(call) and (first == "self" or (first == "cls" and in_class)):
        raise UsageError(
            f"the first parameter of {name} is {first!r}, as of a method, but a job has no object to call it on: omit "
            f"{first!r} and define a function of the module, or a static method"
        )


def check_workflows(registry: Registry, *, strict: bool = False) -> None:
    """Log a warning for code of workflows that a replay cannot repeat.

    Raises SettingsError for it if ``strict``.
    """
    if not registry.workflows:
        return
    # Loaded at the start of a worker: an App that only submits needs neither.
    import structlog  # noqa: PLC0415

    from mainspring.workflow_code.lint import lint  # noqa: PLC0415

    findings = list(dict.fromkeys(one for workflow in registry.workflows.values() for one in lint(workflow.code.call)))
    if strict and findings:
        listed = "; ".join(map(str, findings))
        raise SettingsError(f"workflows have code that a replay cannot repeat: {listed}")
    for finding in findings:
        structlog.get_logger("mainspring.workflows").warning(
            "a replay cannot repeat this code of a workflow",
            at=f"{finding.file}:{finding.line}",
            function=finding.function,
            problem=finding.message,
        )

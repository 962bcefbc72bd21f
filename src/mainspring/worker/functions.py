"""Checks of functions that are to become tasks. Refusals say what to write instead."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from mainspring.client.payload import Signature
from mainspring.client.validation import check_text, refusal
from mainspring.errors import UsageError
from mainspring.resources.model import UNLIMITED, Limits
from mainspring.worker.registry import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Options

EXECUTORS = ("thread", "process")


def check_definition(name: object, executor: object) -> None:
    """Raise UsageError unless the values can be the name and the executor of a task."""
    if name is not None:
        check_text(name, "name")
    if executor not in EXECUTORS:
        raise refusal("executor", "'thread' or 'process'", executor)


def build_function(
    given: object, name: str | None, executor: Any, options: Options, limits: Limits = UNLIMITED
) -> Function:
    """Return the worker's function for a callable, under the callable's own name if ``name`` is None.

    Raises UsageError if the value cannot be a task.
    """
    call = _function_of(given)
    chosen = name or getattr(call, "__name__", "")
    if not chosen:
        raise UsageError(f"{call!r} has no __name__: give the task one, app.task(name=…)")
    coroutine = inspect.iscoroutinefunction(call)
    if coroutine and executor == "process":
        raise UsageError(f"{chosen} is a coroutine function: it runs on the worker's loop, not in a process")
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise UsageError(f"{chosen} is a generator: a task returns one result")
    try:
        signature = Signature(call, chosen)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the parameters of {chosen} cannot be read ({error}): define a function that calls it, and make that the task"
        ) from None
    _check_parameters(call, chosen, signature)
    return Function(
        name=chosen,
        call=call,
        signature=signature,
        executor="coroutine" if coroutine else executor,
        retry=options.retry,
        timeout=options.timeout,
        heartbeat=options.heartbeat,
        limits=limits,
    )


def _function_of(given: Any) -> Callable[..., Any]:
    """Return the function of a decorated value.  Raises UsageError if it is not a function."""
    if isinstance(given, str):
        raise UsageError(f"{given!r} is not a function: write @app.task(name=…) to give a task another name")
    if isinstance(given, staticmethod):
        return given.__func__
    if isinstance(given, classmethod):
        raise UsageError(
            f"{given.__name__} is a class method, and a job has no class: make it a static method, or a function of the module"
        )
    if isinstance(given, type):
        raise UsageError(
            f"{given.__name__} is a class: define a function that creates an instance of it, and make that the task"
        )
    if not callable(given):
        raise refusal("a task", "a function", given)
    # Wrappers, such as those of functools.cache, behave like the function that they wrap.
    if inspect.isroutine(given) or isinstance(given, functools.partial) or hasattr(given, "__wrapped__"):
        function: Callable[..., Any] = given
        return function
    raise UsageError(f"{given!r} is a callable object: define a function that calls it, and make that the task")


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

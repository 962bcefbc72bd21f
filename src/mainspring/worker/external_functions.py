"""The functions of a class whose work runs in another system: NAME, whose jobs are watched, and NAME.cancel.

Jobs of NAME.cancel cancel submissions. They are ordinary jobs, so they have a history, and are repeated until they are answered.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.external import Failed, Throttled
from mainspring.client.options import Options, Retry, check_text, refusal
from mainspring.client.payload import Signature
from mainspring.errors import PayloadError, UsageError
from mainspring.worker.current import Snooze, current_job
from mainspring.worker.external_work import Elsewhere, WorkSignature
from mainspring.worker.functions import times_of
from mainspring.worker.registry import KEPT, Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.resources import Resource
    from mainspring.codecs import Codecs
    from mainspring.resources.rules import Limits
    from mainspring.worker.registry import Kept

METHODS: Final = ("submit", "status", "cancel")
OPTIONAL: Final = ("logs", "find")
UNKNOWN_ATTEMPTS: Final = 10
"""Attempts to learn what was submitted under a key before a cancellation gives up."""


class SubmissionUnknownError(Exception):
    """Nobody knows whether the work was submitted: ``submit`` fails, and the class has no ``find``."""


def build_external(
    given: Any,
    name: str | None,
    every: float,
    options: Options,
    limits: Limits,
    *,
    leaves: bool,
    kept: Kept = KEPT,
    resources: tuple[Resource, ...] = (),
) -> Function:
    """Return the worker's function for a class or an object. Raises UsageError, which says what to write instead."""
    kind = given if isinstance(given, type) else type(given)
    chosen = name or (kind.__name__ if given is kind else "")
    if not chosen:
        raise UsageError(f"give the work of {kind.__name__} a name: app.external(name=…)(…)")
    for method in METHODS + OPTIONAL:
        call = getattr(kind, method, None)
        if call is None and method in METHODS:
            raise UsageError(
                f"{chosen} has no method {method}: work that runs elsewhere is a class with the coroutine methods submit, "
                "status and cancel"
            )
        if call is not None and not inspect.iscoroutinefunction(call):
            raise UsageError(
                f"{chosen}.{method} is no coroutine method: write `async def {method}`, and call blocking code by `await "
                "asyncio.to_thread(…)`, so that it holds up no other work"
            )
    parameters = list(inspect.signature(getattr(kind, "submit")).parameters.values())[1:]  # noqa: B009 - of any class
    if len(parameters) != 2 or parameters[1].name != "key":
        raise UsageError(
            f"{chosen}.submit takes one argument and the key: write `async def submit(self, args: …, key: str)`, with a "
            "dataclass for several values"
        )

    call = _call_of(kind, chosen, parameters[0])
    signature = WorkSignature(kind, call, chosen)
    if problem := signature.problem(results=not kept.ignores_result, is_loading=True):
        raise UsageError(problem)
    return Function(
        name=chosen,
        call=call,
        signature=signature,
        executor="coroutine",
        retry=options.retry,
        timeout=options.timeout,
        limits=limits,
        times=times_of(options),
        kept=kept,
        resources=resources,
        elsewhere=Elsewhere(given, chosen, every, leaves=leaves),
    )


def _call_of(kind: type, name: str, parameter: inspect.Parameter) -> Callable[..., Any]:
    """Return a function with the argument of the work, for its signature: calls of it are refused."""

    def refuse(args: Any) -> None:
        del args
        raise UsageError(f"{name} runs elsewhere, and no program runs it itself: write {name}.submit(…)")

    call: Any = refuse
    call.__signature__ = inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty)])
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = kind.__module__, kind.__doc__
    function: Callable[..., Any] = call
    return function


def build_canceller(function: Function, codecs: Codecs) -> Function:
    """Return the function whose jobs cancel the work of another one."""
    elsewhere = function.elsewhere
    assert elsewhere is not None, "it runs elsewhere"

    async def cancel(key: str, meta: Any, args: Any, number: int) -> None:
        del number  # of the submission, for people
        try:
            submitted = await _meta_of(
                function, elsewhere, key, meta, codecs.decode_json(args, "arguments", function.name)
            )
            if submitted is not _NOTHING:
                await elsewhere.work.cancel(submitted)
        except Throttled as throttled:
            raise Snooze(throttled.pause) from None

    cancel.__module__ = elsewhere.kind.__module__
    name = f"{function.name}.cancel"
    cancel.__qualname__ = name
    retry = Retry(max_attempts=1_000_000, never=(SubmissionUnknownError, PayloadError))
    return Function(name, cancel, Signature(cancel, name), "coroutine", retry, timeout=120.0, from_node=True)


_NOTHING: Final = object()


async def _meta_of(function: Function, elsewhere: Elsewhere, key: str, meta: Any, args: Any) -> Any:
    """Return what was submitted under a key; `_NOTHING` if that is known to be nothing.

    A worker has ended between its ``submit`` and the record of the answer: without ``find``, ``submit`` is called again.
    """
    if meta is not None:
        return elsewhere.decode_meta(msgspec.json.encode(meta))
    find = getattr(elsewhere.work, "find", None)
    if find is not None:
        found = await find(check_text(key, "key"))
        return _NOTHING if found is None else found
    try:
        given, named = function.signature.decode(msgspec.json.encode(args))
        submitted = await elsewhere.work.submit(*given, *named.values(), key=key)
    except Throttled:
        raise
    except Exception as error:
        if current_job().attempt < UNKNOWN_ATTEMPTS:
            raise
        raise SubmissionUnknownError(
            f"it is unknown whether {function.name} was submitted under the key {key}: submit fails ({error}), and the class "
            "has no find(key)"
        ) from error
    return _NOTHING if isinstance(submitted, Failed) else submitted


def check_every(every: float) -> float:
    """Return the seconds between two looks. Raises UsageError for less than a tenth, and for more than a day."""
    if not 0.1 <= every <= 86_400:
        raise refusal("every", "a time from 0.1 s to a day", every)
    return every

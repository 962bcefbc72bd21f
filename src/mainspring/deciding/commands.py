"""Builds the commands of workflow code: activities and local steps with their arguments, sizes and options."""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from mainspring.client.payload import Signature
from mainspring.client.validation import check_key, check_short
from mainspring.deciding.model import StepCall
from mainspring.deciding.same_arguments import earlier_payloads
from mainspring.errors import PayloadError, UsageError, WorkflowUsageError
from mainspring.jobs.model import Options, Priority, Retry, encode_options
from mainspring.workflows.decisions.model import ScheduleActivityTask
from mainspring.workflows.payloads import digest_of, same_digest

if TYPE_CHECKING:
    from mainspring.client.inside import ActivityCall
    from mainspring.deciding.job import WorkflowJob
    from mainspring.deciding.model import Record

_ELSEWHERE: Final = "store it elsewhere and pass its name"


def check_size(data: bytes, largest: int, what: str, remedy: str = _ELSEWHERE) -> None:
    """Raise PayloadError for a value that no history of the store can hold."""
    if len(data) > largest:
        raise PayloadError(f"{what} has {len(data):,} bytes, and the store takes at most {largest:,}: {remedy}")


class Numbers:
    """Numbers the commands of a run."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return the number of a new command."""
        self.last += 1
        return self.last


# ---- activities ----

PRIORITIES: Final = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW, None: Priority.NORMAL}


def build_activity(
    number: int, call: ActivityCall, args: tuple[Any, ...], kwargs: dict[str, Any], largest: int
) -> ScheduleActivityTask:
    """Return the command for an activity. Raises WorkflowUsageError for options of jobs that no activity has."""
    _check_options(call)
    title = f"{call.name} #{number}"
    payload = call.codec.encode_recorded(args, kwargs)
    check_size(payload, largest, f"the input of {title}")
    given = call.options
    options = Options(
        retry=None if given.retry is None else Retry(**given.retry.wire()),
        timeout=given.timeout,
        heartbeat=given.heartbeat,
    )
    key = given.concurrency_key or ""
    if callable(call.key):
        key = check_key(call.key(*args, **kwargs), f"{call.name}: the concurrency_key of these arguments")
    return ScheduleActivityTask(
        number=number,
        activity_id=str(number),
        function=call.name.encode(),
        input=payload,
        task_priority=PRIORITIES[given.priority],
        schedule_to_start=given.schedule_to_start or given.expires or 0,
        schedule_to_close=given.schedule_to_close or 0,
        options=b"" if options == _NO_OPTIONS else encode_options(options),
        key=key.encode(),
        abandoned=given.cancel == "abandon",
    )


_NO_OPTIONS: Final = Options()


def _check_options(call: ActivityCall) -> None:
    given = call.options
    if call.unique:
        raise WorkflowUsageError(
            f"{call.name}: an activity has no unique, because it belongs to one run; the run's unique is its workflow id: give "
            "it where the workflow is submitted, and limit activities by concurrency and concurrency_key"
        )
    if given.delay is not None or given.run_at is not None:
        raise WorkflowUsageError(
            f"{call.name}: an activity has neither delay nor run_at: write `await workflow.sleep(…)` before it"
        )
    if given.keep_unique is not None:
        raise WorkflowUsageError(f"{call.name}: an activity has no keep_unique, because it has no unique: leave it out")
    if given.expires == 0:
        raise WorkflowUsageError(
            f"{call.name}: expires is 0, which would end the activity at once: leave it out for none"
        )
    if call.transactional:
        raise WorkflowUsageError(
            f"{call.name}: an activity is recorded with its run and not in a transaction of yours: leave connection out"
        )


# ---- local steps ----


class LocalStep:
    """A local step that has no result yet."""

    __slots__ = ("_arguments", "call", "job")

    def __init__(
        self, call: StepCall, job: WorkflowJob[Any], arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> None:
        self.call = call
        self.job = job
        self._arguments = arguments

    def digest(self, result: bytes, *, failed: bool) -> int:
        """Return the digest of function, arguments and result."""
        return digest_of(self.call.name.encode(), self.call.payload, b"failed" if failed else b"", result)

    def is_recorded_as(self, digest: int, result: bytes, *, failed: bool) -> bool:
        """Return whether a recorded digest is that of the step, or what earlier code would have recorded for its arguments."""
        if same_digest(digest, self.digest(result, failed=failed)):
            return True
        if self._arguments is None:
            return False
        name, kind = self.call.name.encode(), b"failed" if failed else b""
        earlier = earlier_payloads(self.call.signature, *self._arguments)
        return any(digest == digest_of(name, payload, kind, result) for payload in earlier)


class StepSignatures:
    """The signatures of the functions that the code of a run makes its steps.

    Nothing keeps a function after its run: a closure, a lambda or a partial may hold any values. So only the signatures of
    functions that their modules keep anyway are shared by all runs. Of functions without annotations and defaults, only the names
    of their parameters are kept, by their code. The last other ones are kept with the run.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, Signature]] = {}

    def of(self, call: Any, title: str) -> tuple[Signature, bool]:
        """Return the signature of a function, and whether its module keeps it. Raises WorkflowUsageError if it cannot be read."""
        try:
            if call.__class__ is FunctionType:
                shared = _of_modules.get(call)
                if shared is None and _is_of_module(call):
                    shared = _of_modules[call] = Signature(call, title)
                if shared is not None:
                    return shared, True
            last = self._last.get(id(call))
            return (self._new(call, title) if last is None else last[1]), False
        except (TypeError, ValueError) as error:
            raise WorkflowUsageError(
                f"the parameters of {title} cannot be read ({error}): define a function that calls it, and make that the step"
            ) from None

    def _new(self, call: Any, title: str) -> Signature:
        if call.__class__ is FunctionType:
            plain = not (call.__annotations__ or call.__defaults__ or call.__kwdefaults__ or call.__dict__)
            if plain and title == call.__qualname__:
                by_code = _of_codes.get(call.__code__)
                if by_code is None:
                    by_code = _of_codes[call.__code__] = Signature(call, title).without_function()
                return by_code
        found = Signature(call, title)
        if len(self._last) >= _LAST_KEPT:
            del self._last[next(iter(self._last))]
        self._last[id(call)] = call, found  # the function, too, so that no other one gets its id
        return found

    def clear(self) -> None:
        """Forget all functions of the run."""
        self._last.clear()


_of_modules: Final[WeakKeyDictionary[FunctionType, Signature]] = WeakKeyDictionary()
_of_codes: Final[WeakKeyDictionary[CodeType, Signature]] = WeakKeyDictionary()
_LAST_KEPT: Final = 8


def _is_of_module(call: FunctionType) -> bool:
    """Return whether a function is found in its module by its name."""
    found: Any = sys.modules.get(call.__module__)
    for name in call.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is call


def build_step(
    number: int,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None,
    record: Record,
    largest: int,
    signatures: StepSignatures,
) -> StepCall:
    """Return the call of a local step. ``function`` is a task or a function."""
    if record not in ("each", "together"):
        raise UsageError(f"record is 'each' or 'together', not {record!r}")
    defined = getattr(function, "function", None)
    call: Any = function if defined is None else defined.call
    if not callable(call) or (defined is None and hasattr(function, "submit")):
        raise WorkflowUsageError(f"{function!r} cannot be a step: give a task of this App or a function, or use submit")
    title = name or (getattr(call, "__qualname__", "") if defined is None else str(defined.name))
    if not title:
        raise WorkflowUsageError(f"{call!r} has no __name__: give the step a name, workflow.step(f, …, name=…)")
    check_short(title, "a step's name")
    signature, lasts = signatures.of(call, title) if defined is None else (defined.signature, True)
    payload = signature.encode_recorded(args, kwargs)
    check_size(payload, largest, f"the input of step {title} #{number}")
    if defined is None:
        executor: Any = "coroutine" if inspect.iscoroutinefunction(call) else "thread"
        return StepCall(number, title, call, signature, payload, record, executor, lasts=lasts)
    return StepCall(
        number,
        title,
        call,
        signature,
        payload,
        record,
        defined.executor,
        True,
        defined.retry,
        defined.timeout,
        lasts=True,
    )

"""Local steps in transactions of users: the effect of a step and its record in the store commit together, exactly once.

Each attempt opens a connection of the user, and begins a transaction on it:

| in the transaction | after it, whatever has failed |
|---|---|
| ``recorded_step``: was the step committed before? Then its result counts, and the function is not called | not committed |
| the function of the user | not committed |
| ``record_step``: a row with the result. It fails if another attempt was faster, or if the run is closed | not committed |
| the commit | unknown, unless the server has answered |

The history gets an outcome only if it is certain. A failure of the function is: the transaction was rolled back. If the
connection breaks, or the server ends the transaction for a conflict with others, there is another attempt after a while, which
first looks for the row. So does the worker that gets the run after the death of this one. A mistake that another attempt would
repeat, such as a connection to another database, parks the run.
"""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import structlog

from mainspring.client.inbox import RECORD_STEP, RECORDED_STEP, Inbox
from mainspring.errors import UsageError
from mainspring.jobs.model import text_of
from mainspring.worker.current import JobStopped, Snooze
from mainspring.worker.registry import Function
from mainspring.workflow_code.workflow_jobs import check_size
from mainspring.workflows.history_json import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from mainspring.client.payload import Signature
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflow_code.model import StepCall

_log = structlog.get_logger("mainspring.workflows")

FIRST_DELAY: Final = 0.05
"""Seconds until the attempt after a lost connection or a conflict; they double with each one."""
LONGEST_DELAY: Final = 30.0

_NO_STORE: Final = ("3F000", "42883", "28000")
"""Errors of a database without the schema or its functions, and of a key that is none of the store's runs."""
_NO_RIGHT: Final = "42501"
_ENDED: Final = ("08", "40", "57P")
"""The classes of errors with which a transaction ends for no fault of its function: lost connections, conflicts with other
transactions, and the end of the session or of the server."""
_UNKNOWN: Final = ("08", "40", "53", "57", "58", "XX")
"""Those after which a commit may have happened, or may succeed when it is tried again."""
_PASSING: Final = (*_UNKNOWN, "28", "3D", "55")
"""Those that may pass while nothing has happened yet: passwords, databases and locks change."""
_LIBRARIES: Final = frozenset({"asyncpg", "psycopg", "psycopg_pool", "sqlalchemy", "django"})


class Encoded(NamedTuple):
    """The encoded result of a step."""

    data: bytes


class _Enter(NamedTuple):
    """Asks for what a context manager returns; the context ends with the attempt."""

    manager: Any


class _OvertakenError(Exception):
    """Another attempt has recorded the step."""


class _ClosedError(Exception):
    """The run is closed."""


class RecordedStep:
    """A step of a run in a transaction, in all of its attempts by this worker.

    ``refusal`` is set if no further attempt makes sense: the reason for which the run is parked.
    """

    def __init__(self, call: StepCall, run: Run) -> None:
        assert call.transaction is not None
        self._call = call
        self._transaction = call.transaction
        self._run = run
        self._largest = run.instance.limits.largest
        self._digest = digest_of(call.name.encode(), call.payload).to_bytes(8)
        self._failures = 0
        self._stage = ""
        self._is_stopped = False
        self._is_closed: Callable[[], bool] = bool
        """Returns whether the connection is lost."""
        self.refusal = ""
        is_coroutine = call.executor == "coroutine"
        self.function = Function(
            call.name,
            self._run_coroutine if is_coroutine else self._run_plain,
            cast("Signature", _RestSignature(call.signature)),
            call.executor,
        )
        """Opens the connection and calls the function of the user with it."""

    def stop(self) -> None:
        """Let no attempt commit whose commit has not begun. A thread goes on up to there."""
        self._is_stopped = True

    async def _run_coroutine(self, *args: Any, **kwargs: Any) -> Encoded:
        try:
            async with AsyncExitStack() as stack:
                attempt = self._attempt(args, kwargs)
                asked = next(attempt)
                while not isinstance(asked, Encoded):
                    if isinstance(asked, _Enter):
                        answer = await _enter_async(stack, asked.manager)
                    else:
                        answer = await asked if inspect.isawaitable(asked) else asked
                    asked = attempt.send(answer)
        except Exception as error:
            judged = self._judged(error)
            if judged is error:
                raise
            raise judged from error
        return asked

    def _run_plain(self, *args: Any, **kwargs: Any) -> Encoded:
        try:
            with ExitStack() as stack:
                attempt = self._attempt(args, kwargs)
                asked = next(attempt)
                while not isinstance(asked, Encoded):
                    asked = attempt.send(_enter(stack, asked.manager) if isinstance(asked, _Enter) else asked)
        except Exception as error:
            judged = self._judged(error)
            if judged is error:
                raise
            raise judged from error
        return asked

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, None]:
        """Make an attempt up to its commit, which is the end of its contexts.

        Yields an `_Enter`, or a value to be awaited if it can be, and at last the result as `Encoded`.
        """
        self._stage = "connecting"
        if not self._run.step_key:
            raise UsageError(
                "a step with a connection needs a store on PostgreSQL: that of the node is another one, or the node is of an "
                "earlier version; leave connection= out"
            )
        connection = yield _Enter(self._transaction.open())
        store = Inbox(connection, self._transaction.schema)
        if store.asynchronous is not (self._call.executor == "coroutine"):
            wanted = "asynchronous" if self._call.executor == "coroutine" else "blocking"
            raise UsageError(f"{store!r} is not {wanted}, as the function is: give another connection, or change `def`")
        yield _Enter(store.transaction())
        key = (str(self._run.id), self._call.number, self._run.step_key)
        begun, call, result = yield store.call(RECORDED_STEP, key)
        if result is not None:
            if bytes(call) != self._digest:
                raise UsageError(
                    "a worker that had lost the run has committed this step for another function or with other arguments; "
                    "its row in recorded_steps of the store has the result"
                )
            self._stage = "found"
            yield Encoded(bytes(result))
            return
        self._stage = "running"
        self._is_closed = store.is_closed
        value = yield self._call.call(connection, *args, **kwargs)
        yield store.flush()
        data = self._call.signature.encode_result(value)
        check_size(
            data, self._largest, f"the result of step {self._call.name}", "store it elsewhere and return its name"
        )
        if self._is_stopped:
            raise JobStopped("the step was stopped")
        self._stage = "recording"
        (verdict,) = yield store.call(RECORD_STEP, (*key, begun, self._digest, data))
        if verdict == "repeated":
            raise _OvertakenError("another attempt has recorded the step")
        if verdict == "closed":
            raise _ClosedError("the run is closed")
        if verdict == "other":
            raise UsageError(
                "the transaction of the step has ended before its record: the function must neither commit nor roll back, and "
                "the connection must not commit each statement (AUTOCOMMIT); what it has committed has no record"
            )
        self._stage = "committing"
        yield Encoded(data)

    # ---- errors ----

    def _judged(self, error: Exception) -> BaseException:
        """Return what an attempt raises in place of an error."""
        if self._is_stopped:
            return JobStopped("the step was stopped")
        code = sqlstate(error)
        match self._stage:
            case "running":  # certainly rolled back
                is_over = (
                    code.startswith(_ENDED)
                    if code
                    else _is_lost(error) and (_is_of_library(error) or self._is_closed())
                )
                return self._later(error) if is_over else error
            case "committing":  # an error without an answer of the server may come after the commit
                return error if code and not code.startswith(_UNKNOWN) else self._later(error)
            case "recording" if isinstance(error, _OvertakenError):
                return Snooze(0)
            case "recording" if isinstance(error, _ClosedError):
                return error
            case _ if why := self._refused(error, code):
                self.refusal = f"step {self._call.name} #{self._call.number}: {why}"
                return UsageError(self.refusal)
            case "recording" if not _passes(error, code):
                return error  # such as for a transaction in which a statement has failed
        return self._later(error)

    def _refused(self, error: Exception, code: str) -> str:
        """Return why another attempt would fail, too, at something else than the function; empty if it may succeed."""
        if code in _NO_STORE:
            schema = self._transaction.schema
            return (
                f"its connection does not lead to the schema {schema} of the run's store ({text_of(error)}): give one to the "
                "store's database, and its schema as schema=…"
            )
        if code == _NO_RIGHT:
            return f"the role of its connection may not record steps ({text_of(error)}): mainspring migrate --grant-submit ROLE"
        if isinstance(error, UsageError):
            return str(error)
        if self._stage == "connecting" and not _passes(error, code) and not _is_of_library(error):
            return f"its connection cannot be opened: {type(error).__name__}: {text_of(error)}"
        return ""

    def _later(self, error: Exception) -> Snooze:
        delay = min(FIRST_DELAY * 2**self._failures, LONGEST_DELAY)
        self._failures = min(self._failures + 1, 30)
        _log.warning(
            "a step in a transaction is tried again",
            run=self._run.id,
            step=self._call.name,
            stage=self._stage,
            error=f"{type(error).__name__}: {text_of(error)}",
            delay=delay,
        )
        return Snooze(delay)


class _RestSignature:
    """The signature of a step's function without its first parameter, whose results may be encoded already."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self.decode = signature.decode

    def encode_result(self, value: Any) -> bytes:
        """Encode a result: of a substitute in a test, it is not encoded yet."""
        return value.data if isinstance(value, Encoded) else self._signature.encode_result(value)


async def _enter_async(stack: AsyncExitStack, opened: Any) -> Any:
    if not hasattr(opened, "__aenter__") and inspect.isawaitable(opened):
        opened = await opened
    if hasattr(opened, "__aenter__"):
        return await stack.enter_async_context(opened)
    if not hasattr(opened, "__enter__") and inspect.iscoroutinefunction(getattr(opened, "close", None)):
        stack.push_async_callback(opened.close)
        return opened
    return _enter(stack, opened)


def _enter(stack: ExitStack | AsyncExitStack, opened: Any) -> Any:
    if hasattr(opened, "__enter__"):
        return stack.enter_context(opened)
    if inspect.iscoroutine(opened):
        opened.close()
    close = getattr(opened, "close", None)
    if close is None or hasattr(opened, "__aenter__") or inspect.iscoroutine(opened):
        kind = type(opened)
        raise UsageError(
            f"connection has returned a {kind.__module__}.{kind.__qualname__}: a step of a plain function needs a blocking "
            "connection, or the context manager of one; for an asynchronous one make it an `async def`"
        )
    stack.callback(close)
    return opened


def sqlstate(error: BaseException) -> str:
    """Return the code of PostgreSQL's error behind an error of any library; empty if there is none."""
    for one in _causes(error):
        for name in ("sqlstate", "pgcode"):
            code = getattr(one, name, None)
            if isinstance(code, str) and len(code) == 5:
                return code
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(seen) < 10:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and one not in seen:
            seen.append(one)
            waiting += [getattr(one, "orig", None), one.__cause__]
            yield one


def _passes(error: BaseException, code: str) -> bool:
    """Return whether an error says that the database cannot do it at the moment."""
    return code.startswith(_PASSING) if code else any(_is_lost(one) for one in _causes(error))


def _is_lost(error: BaseException) -> bool:
    """Return whether an error without a code may be that of a lost connection."""
    if isinstance(error, OSError):  # includes TimeoutError
        return True
    name = type(error).__name__
    return _is_of_library(error) and (
        name in {"OperationalError", "PoolTimeout"} or (name.endswith("Error") and "clos" in str(error))
    )


def _is_of_library(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in type(error).__mro__)

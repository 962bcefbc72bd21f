"""Local steps in transactions of users: the effect of a step and its record in the store commit together, exactly once.

Each attempt opens a connection of the user, and begins a transaction on it:

| in the transaction | after it, whatever has failed |
|---|---|
| ``recorded_step``: was the step committed before? Then its result counts, and the function is not called | not committed |
| the function of the user | not committed |
| ``record_step``: a row with the result. It fails if another attempt was faster, or if the run is closed | not committed |
| the commit | unknown, unless the server has answered |

The history gets an outcome only if it is certain. If the function fails, its transaction is rolled back, and a second one
records the failure, so that no other attempt commits the step afterwards. If the connection breaks, or the server ends the
transaction for a conflict with others, there is another attempt after a while, which first looks for the row. So does the worker
that gets the run after the death of this one. A mistake that another attempt would repeat, such as a connection to another
database, parks the run.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import structlog

from mainspring.client.inbox import RECORD_STEP, RECORDED_STEP, Inbox
from mainspring.codecs import NO_CODECS
from mainspring.errors import UsageError
from mainspring.jobs.model import text_of
from mainspring.worker.current import JobStopped, Snooze, current_job
from mainspring.worker.execution import failure_of, read_error
from mainspring.worker.frames import drive
from mainspring.worker.registry import Function
from mainspring.workflow_code.workflow_jobs import check_size
from mainspring.workflows.history_json import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from mainspring.client.payload import Signature
    from mainspring.codecs import Codecs
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
_STOPPED: Final = "the step was stopped"
_NO_FAILURES: Final = (asyncio.CancelledError, JobStopped, GeneratorExit)
"""Errors that end an attempt without an outcome."""
_LIBRARIES: Final = frozenset({"asyncpg", "psycopg", "psycopg_pool", "sqlalchemy", "django"})


class Encoded(NamedTuple):
    """The encoded result of a step."""

    data: bytes


class _Enter(NamedTuple):
    """Asks for what a context manager returns; the context ends with the attempt."""

    manager: Any


class _OvertakenError(Exception):
    """Another attempt has recorded the step: the next one takes its outcome."""


class _ClosedError(Exception):
    """The run is closed."""


class RecordedStep:
    """A step of a run in a transaction, in all of its attempts by this worker.

    ``refusal`` is set if no further attempt makes sense: the reason for which the run is parked. ``failure`` is set if another
    attempt has recorded that the step has failed: the error as JSON.
    """

    def __init__(
        self,
        call: StepCall,
        run: int,
        key: bytes,
        largest: int,
        surround: Callable[[Function], Function] = lambda function: function,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        """``key`` is that of the run, ``largest`` limits the bytes of the result.

        ``surround`` returns a function with all that is around it, which runs inside of the transaction: its errors are recorded.
        ``codecs`` encode the result in the store.
        """
        self._inner = surround(Function(call.name, call.call, call.signature, call.executor, call.retry))
        assert call.transaction is not None
        self._call = call
        self._transaction = call.transaction
        self._run = run
        self._largest = largest
        self._codecs = codecs
        self._digest = digest_of(call.name.encode(), call.payload).to_bytes(8)
        self._key = (str(run), call.number, key)
        self._failures = 0
        self._stage = ""
        self._is_stopped = False
        self._is_closed: Callable[[], bool] = bool
        """Returns whether the connection is lost."""
        self.refusal = ""
        self.failure = b""
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
            return await _drive_async(self._attempt(args, kwargs))
        except _NO_FAILURES:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit, as of any step
            self._raise_unless_failed(error)
            failure = error
        try:
            await _drive_async(self._fail(failure))
        except Exception as error:  # noqa: BLE001 - it is judged
            self._raise_unless_failed(error)
        raise failure

    def _run_plain(self, *args: Any, **kwargs: Any) -> Encoded:
        try:
            return _drive(self._attempt(args, kwargs))
        except _NO_FAILURES:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit, as of any step
            self._raise_unless_failed(error)
            failure = error
        try:
            _drive(self._fail(failure))
        except Exception as error:  # noqa: BLE001 - it is judged
            self._raise_unless_failed(error)
        raise failure

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, None]:
        """Make an attempt up to its commit, which is the end of its contexts.

        Yields an `_Enter`, or a value to be awaited if it can be, and at last the result as `Encoded`.
        """
        connection, store, begun, result = yield from self._begin()
        if result is not None:
            yield result
            return
        self._stage = "running"
        self._is_closed = store.is_closed
        around = self._inner.around
        if around is None:
            value = yield self._call.call(connection, *args, **kwargs)
        else:
            called = around.call(self._inner, current_job(), (connection, *args), kwargs)
            value = yield called if self._inner.executor == "coroutine" else drive(called)
        yield store.flush()
        data = self._call.signature.encode_result(value)
        check_size(
            data, self._largest, f"the result of step {self._call.name}", "store it elsewhere and return its name"
        )
        stored = self._codecs.encode(data, "step", self._call.name)
        if self._is_stopped:
            raise JobStopped(_STOPPED)
        yield from self._record(store, begun, stored, failed=False)
        yield Encoded(data)

    def _fail(self, failure: BaseException) -> Generator[Any, Any, None]:
        """Record a failure: no other attempt may commit the step after it is in the history. Yields as `_attempt`.

        If another attempt has recorded the step, its outcome counts.
        """
        _, store, begun, result = yield from self._begin()
        if result is not None:
            raise _OvertakenError
        error = read_error(failure_of(failure, final=True).detail)
        yield from self._record(store, begun, error, failed=True)
        yield Encoded(error)

    def _begin(self) -> Generator[Any, Any, tuple[Any, Inbox, str, Encoded | None]]:
        """Begin a transaction; return the connection, the store's functions on it, its begin, and the recorded result."""
        self._stage = "connecting"
        if not self._key[-1]:
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
        begun, call, failed, result = yield store.call(RECORDED_STEP, self._key)
        if result is None:
            return connection, store, begun, None
        if bytes(call) != self._digest:
            raise UsageError(
                "a worker that had lost the run has committed this step for another function or with other arguments; its row in "
                "recorded_steps of the store has the result"
            )
        self._stage = "found"
        if failed:
            self.failure = bytes(result)
            return connection, store, begun, Encoded(self.failure)
        return connection, store, begun, Encoded(self._codecs.decode(bytes(result), "step", self._call.name))

    def _record(self, store: Inbox, begun: str, data: bytes, *, failed: bool) -> Generator[Any, Any, None]:
        self._stage = "recording"
        (verdict,) = yield store.call(RECORD_STEP, (*self._key, begun, self._digest, failed, data))
        if verdict == "repeated":
            raise _OvertakenError
        if verdict == "closed":
            raise _ClosedError("the run is closed")
        if verdict == "other":
            raise UsageError(
                "the transaction of the step has ended before its record: the function must neither commit nor roll back, and "
                "the connection must not commit each statement (AUTOCOMMIT); its writes up to there have no record"
            )
        self._stage = "committing"

    # ---- errors ----

    def _raise_unless_failed(self, error: BaseException) -> None:
        """Raise what an attempt raises in place of an error; return if the step has certainly failed with it."""
        if self._is_stopped:
            raise JobStopped(_STOPPED) from error
        code = sqlstate(error)
        match self._stage:
            case "running":  # rolled back
                is_over = code.startswith(_ENDED) if code else self._has_lost(error)
                if not is_over and not isinstance(error, Snooze):
                    return
            case "committing":  # an error without an answer of the server may come after the commit
                if code and not code.startswith(_UNKNOWN):
                    return
            case "recording" if isinstance(error, _ClosedError):
                raise error
            case "recording" | "found" if isinstance(error, _OvertakenError):
                raise Snooze(0) from error
            case _ if why := self._refused(error, code):
                self.refusal = f"step {self._call.name} #{self._call.number}: {why}"
                raise UsageError(self.refusal) from error
            case "recording" if not _passes(error, code):
                return  # such as for a transaction in which a statement has failed
        if isinstance(error, Snooze):
            raise error
        delay = min(FIRST_DELAY * 2**self._failures, LONGEST_DELAY)
        self._failures = min(self._failures + 1, 30)
        _log.warning(
            "a step in a transaction is tried again",
            run=self._run,
            step=self._call.name,
            stage=self._stage,
            error=f"{type(error).__name__}: {text_of(error)}",
            delay=delay,
        )
        raise Snooze(delay) from error

    def _has_lost(self, error: BaseException) -> bool:
        """Return whether an error of the function, which has no code, is that of its connection."""
        if _is_of_library(error):
            return any(_is_lost(one) for one in _causes(error))
        return _is_lost(error) and self._is_closed()

    def _refused(self, error: BaseException, code: str) -> str:
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


class _RestSignature:
    """The signature of a step's function without its first parameter, whose results may be encoded already."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self.decode = signature.decode

    def encode_result(self, value: Any) -> bytes:
        """Encode a result: of a substitute in a test, it is not encoded yet."""
        return value.data if isinstance(value, Encoded) else self._signature.encode_result(value)


async def _drive_async(work: Generator[Any, Any, None]) -> Encoded:
    async with AsyncExitStack() as stack:
        asked = next(work)
        while not isinstance(asked, Encoded):
            if isinstance(asked, _Enter):
                answer = await _enter_async(stack, asked.manager)
            else:
                answer = await asked if inspect.isawaitable(asked) else asked
            asked = work.send(answer)
    return asked


def _drive(work: Generator[Any, Any, None]) -> Encoded:
    with ExitStack() as stack:
        asked = next(work)
        while not isinstance(asked, Encoded):
            asked = work.send(_enter(stack, asked.manager) if isinstance(asked, _Enter) else asked)
    return asked


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
        name in {"OperationalError", "PoolTimeout", "InternalClientError"}
        or (name.endswith("Error") and "clos" in str(error))
    )


def _is_of_library(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in type(error).__mro__)

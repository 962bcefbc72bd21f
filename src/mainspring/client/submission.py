"""Submitting: what a task and a function of another language have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from mainspring.client.checking import check_key, check_name_or_maker, check_unique
from mainspring.client.job import Job, check_handle
from mainspring.client.options import Duration, Options, Priority, Retry, build_options
from mainspring.client.outcomes import Submitted
from mainspring.client.session import Request
from mainspring.client.transactional import DEFAULT_SCHEMA, Inbox
from mainspring.client.writing import encode_json
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from mainspring.client.connections import Connections
    from mainspring.client.outcomes import Answer

P = ParamSpec("P")
R = TypeVar("R")


Unique: TypeAlias = "str | Callable[..., str]"
"""The name of a computation, or what makes it of the arguments; empty for none."""


Key: TypeAlias = "str | Callable[..., str]"
"""The key that a job shares limits with others of, or what makes it of the arguments; empty for none."""


_SUBMIT: Final = "to submit a job, call submit(…)"
_SUBMIT_WITH: Final = "to submit a job with options, call options(…).submit(…)"
_ELSEWHERE: Final = {
    "delay": _SUBMIT,
    "send": _SUBMIT,
    "enqueue": _SUBMIT,
    "apply_async": _SUBMIT_WITH,
    "send_with_options": _SUBMIT_WITH,
    "schedule": _SUBMIT_WITH,
    "s": "there are no signatures; a task submits the next one itself",
    "si": "there are no signatures; a task submits the next one itself",
    "AsyncResult": "to get a job by its handle, call job(handle)",
}
"""What methods of Celery, Dramatiq, RQ and Huey are called here."""


Check: TypeAlias = "Callable[[Mapping[str, object]], None]"
"""What raises UsageError for options, by name, None where they are not given, that an App's store cannot keep."""


def check_kept(keep_unique: float | None, unique: Unique) -> None:
    """Raise UsageError where a unique is to be kept and there is none."""
    if keep_unique is not None and not unique:
        raise UsageError("keep_unique needs a unique to be kept: give unique= too")


def check_nothing(options: Mapping[str, object]) -> None:
    """Let all options pass: nothing is known of the store."""


class Codec(Protocol):
    """How a function's arguments and results are written."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bytes:
        """Write a call's payload.  Raises TypeError or PayloadError."""

    def decode_result(self, data: bytes, /) -> Any:
        """Read a result.  Raises PayloadError."""


class Verbatim:
    """The codec of a function in whatever language: bytes as they are, anything else as JSON; results are bytes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Write the one argument, or the keyword arguments as a JSON object; no argument is empty."""
        if kwargs and not args:
            return encode_json(kwargs, f"a payload of {self._name}")
        if kwargs or len(args) > 1:
            raise TypeError(f"{self._name} takes one payload, or keyword arguments; got {len(args)} and {len(kwargs)}")
        payload = args[0] if args else b""
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)
        return encode_json(payload, f"a payload of {self._name}")

    def decode_result(self, data: bytes) -> bytes:
        """Return the result as it is."""
        return data


class Submission(Generic[P, R]):
    """A function of the fleet with the options that its jobs are submitted with.  Immutable.

    In annotations, its parameters and its result.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        inbox: Inbox | None = None,
        key: Key = "",
        check: Check = check_nothing,
    ) -> None:
        self.name = name
        self._codec = codec
        self._connections = connections
        self._options = options
        self._unique = unique
        self._inbox = inbox
        self._key = key
        self._check = check
        if key and not callable(key):
            self._options = options = replace(options, concurrency_key=key)
        self._function = name.encode()
        self._wire_options = options.wire()

    def options(
        self,
        *,
        unique: str | Callable[P, str] | None = None,
        priority: Priority | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        run_timeout: Duration | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | None = None,
        keep_unique: Duration | None = None,
        concurrency_key: str | Callable[P, str] | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> Submission[P, R]:
        """Return the same function with other options for its jobs; what is left out stays as it is.

        ``unique`` is the name of the computation, or a function that makes it of the arguments: while a job of that
        name is live, a submit joins it; with ``keep_unique``, also one that succeeded no longer ago than that.
        ``priority`` is high, normal or low. ``delay`` or ``run_at`` (an aware datetime) says when it may start.
        ``run_timeout`` bounds an attempt; ``timeout`` is its older name. ``expires``: it is not started later than that.
        ``heartbeat``: an attempt whose worker is silent for so long is lost. ``retry``: what follows a failed attempt.
        ``concurrency_key``: what the job shares the limits per key with, or a function that makes it of the arguments; keys
        take turns.

        ``connection``: a connection to the database of a PostgreSQL store, of asyncpg, psycopg, SQLAlchemy or Django. Jobs
        are then submitted in its transaction, and exist if and only if that is committed, which is the caller's to do;
        their results can be asked for after that. ``schema`` is the store's.

        A function of an App on ZooKeeper has neither ``concurrency_key`` nor ``connection``.

        Raises UsageError where an option is wrong, or the App's store cannot keep it.
        """
        self._check({"concurrency_key": concurrency_key, "connection": connection})
        newer = build_options(
            priority=priority,
            delay=delay,
            run_at=run_at,
            run_timeout=run_timeout,
            timeout=timeout,
            expires=expires,
            heartbeat=heartbeat,
            retry=retry,
            keep_unique=keep_unique,
        )
        if retry is not None and (retry.on != (Exception,) or retry.never):
            raise UsageError("which errors are retried is said where the task is defined: @app.task(retry=Retry(on=…))")
        if connection is None and schema != DEFAULT_SCHEMA:
            raise UsageError("schema names the tables that a connection submits to: give connection= with it")
        chosen: Unique = self._unique if unique is None else check_name_or_maker(unique, "unique", check_unique)
        check_kept(newer.keep_unique, chosen)
        inbox = self._inbox if connection is None else Inbox(connection, schema)
        key: Key = self._key
        if concurrency_key is not None:
            key = check_name_or_maker(concurrency_key, "concurrency_key", check_key)
        merged = replace(self._options.merged(newer), concurrency_key=None)
        if not chosen:
            merged = replace(merged, keep_unique=None)
        return Submission(self.name, self._codec, self._connections, merged, chosen, inbox, key, self._check)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job and return when it is on disk.

        Raises TypeError and PayloadError where the arguments do not fit, RefusedError where the server refuses the
        job, and ConnectionLostError where none can be reached, or whether it took the job is unknown.
        """
        request = self._request(args, kwargs)
        if self._inbox is not None:
            return self.job(self._inbox.submit(request, self._options))
        return self._submitted(self._connections.blocking().submit(request))

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, as ``submit`` does."""
        request = self._request(args, kwargs)
        if self._inbox is not None:
            return self.job(await self._inbox.asubmit(request, self._options))
        return self._submitted(await self._connections.aio().submit(request))

    def submit_many(self, calls: Iterable[Any]) -> list[Job[R]]:
        """Submit a job for each item, many at once, and return them in order.

        An item is a tuple of positional arguments, a dict of keyword arguments, or the one argument. The items are
        taken from the iterable as they can be sent. Raises as ``submit``, the first error after all have been tried;
        a note on it says how many were taken.
        """
        if self._inbox is not None:
            return [self.job(self._inbox.submit(request, self._options)) for request in self._requests(calls)]
        answers: list[Answer] = []
        for window in self._connections.blocking().submit_many(self._requests(calls)):
            answers += window
        return self._jobs(answers)

    async def asubmit_many(self, calls: Iterable[Any]) -> list[Job[R]]:
        """Submit a job for each item, as ``submit_many`` does."""
        if self._inbox is not None:
            return [self.job(await self._inbox.asubmit(request, self._options)) for request in self._requests(calls)]
        answers: list[Answer] = []
        async for window in self._connections.aio().submit_many(self._requests(calls)):
            answers += window
        return self._jobs(answers)

    def job(self, handle: str) -> Job[R]:
        """Return a job of this function by its handle, with the function's result; the server is not asked yet.

        Raises UsageError for what cannot be a handle.
        """
        return Job(self._connections, check_handle(handle), self._decode)

    def unique_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the unique of a job with these arguments; empty where it has none.  Raises UsageError where it cannot be one."""
        if callable(self._unique):
            return check_unique(self._unique(*args, **kwargs), f"{self.name}: the unique of these arguments")
        return self._unique

    def __repr__(self) -> str:
        """Show the function's name, and the options that its jobs are submitted with."""
        shown = self._options.given()
        if self._unique:
            shown["unique"] = self._unique
        if self._key:
            shown["concurrency_key"] = self._key
        if self._inbox is not None:
            shown["connection"] = self._inbox
        return f"Submission({', '.join([repr(self.name), *(f'{name}={value!r}' for name, value in shown.items())])})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; it says what other task queues' methods are called here."""
            hint = _ELSEWHERE.get(name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{f'; {hint}' if hint else ''}",
                name=name,
                obj=self,
            )

    # Inside.

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        unique = self.unique_of(args, kwargs)
        wire_options = self._wire_options
        if callable(self._key):
            key = check_key(self._key(*args, **kwargs), f"{self.name}: the concurrency_key of these arguments")
            wire_options = replace(self._options, concurrency_key=key or None).wire()
        return Request(self._function, unique.encode(), wire_options, self._codec.encode(args, kwargs))

    def _requests(self, calls: Iterable[Any]) -> Iterator[Request]:
        for call in calls:
            if isinstance(call, tuple):
                yield self._request(call, {})
            elif isinstance(call, dict):
                yield self._request((), call)
            else:
                yield self._request((call,), {})

    def _submitted(self, submitted: Submitted) -> Job[R]:
        return Job(self._connections, submitted.handle, self._decode, joined=submitted.joined)

    def _jobs(self, answers: list[Answer]) -> list[Job[R]]:
        jobs = [self._submitted(answer) for answer in answers if isinstance(answer, Submitted)]
        for answer in answers:
            if not isinstance(answer, Submitted):
                answer.add_note(f"{len(jobs)} of {len(answers)} jobs were accepted")
                raise answer
        return jobs

    def _decode(self, data: bytes) -> R:
        result: R = self._codec.decode_result(data)
        return result

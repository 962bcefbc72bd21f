"""Submissions: the common interface of tasks and of functions in other languages.

A submit can be part of a transaction of the caller: the job then exists if and only if that transaction commits (`inbox`).
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from mainspring.client.connections import check_limit
from mainspring.client.inbox import DEFAULT_SCHEMA, Inbox, inbox_of
from mainspring.client.inside import ActivityCall, workflow_calls
from mainspring.client.job import Job, SubmittedJob, check_handle
from mainspring.client.json_types import encode_json, sorted_arguments
from mainspring.client.options import (
    ACTIVITY_OPTIONS,
    CancelMode,
    Duration,
    OnConflict,
    Options,
    Priority,
    Retry,
    build_options,
    check_key,
    check_text_or_function,
    check_unique,
)
from mainspring.client.outcomes import Submitted
from mainspring.client.session import Request
from mainspring.conflicts.rules import rule_of
from mainspring.errors import PayloadError, UsageError
from mainspring.sizes import LEVELS, SHORTEST_TOO_DEEP, is_too_deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from mainspring.client.connections import Connections
    from mainspring.client.inside import WorkflowCalls
    from mainspring.client.outcomes import Answer

P = ParamSpec("P")
R = TypeVar("R")

BY_PAYLOAD: Final = "-"
"""The unique by which the server names a job after its payload."""
_JSON_BEGINS: Final = frozenset({b"[", b"{"})


Unique: TypeAlias = "str | Callable[..., str]"
"""The name of a computation, or a function that computes it from the arguments; empty for none."""


Key: TypeAlias = "str | Callable[..., str]"
"""The concurrency key, or a function that computes it from the arguments; empty for none. Jobs of one key share limits."""


_USE_SUBMIT: Final = "to submit a job, call submit(…)"
_USE_OPTIONS: Final = "to submit a job with options, call options(…).submit(…)"
_EQUIVALENTS: Final = {
    "delay": _USE_SUBMIT,
    "send": _USE_SUBMIT,
    "enqueue": _USE_SUBMIT,
    "apply_async": _USE_OPTIONS,
    "send_with_options": _USE_OPTIONS,
    "schedule": _USE_OPTIONS,
    "s": "there are no signatures; a task submits the next one itself",
    "si": "there are no signatures; a task submits the next one itself",
    "AsyncResult": "to get a job by its handle, call job(handle)",
}
"""The equivalents here of methods of Celery, Dramatiq, RQ and Huey."""


Check: TypeAlias = "Callable[[Mapping[str, object]], None]"
"""A function that raises UsageError for options that an App's store does not support. It gets them by name; None: not given."""


def check_keep_unique(keep_unique: float | None, unique: Unique) -> None:
    """Raise UsageError if ``keep_unique`` is given without a unique."""
    if keep_unique is not None and not unique:
        raise UsageError("keep_unique needs a unique: give unique= too")


def check_rule(options: Options, unique: Unique) -> None:
    """Raise UsageError if options about a live unique are given without a unique, or contradict each other."""
    rule_of(options.on_conflict, options.debounce, options.debounce_max, "-" if unique else "")


def accept_options(options: Mapping[str, object]) -> None:
    """Accept all options, because the App does not name its store."""


class Codec(Protocol):
    """The encoding of a function's arguments and results."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bytes:
        """Encode a call's payload.  Raises TypeError or PayloadError."""

    def encode_recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bytes:
        """Encode a call's payload for a history, the same in every process.  Raises TypeError or PayloadError."""

    def encode_alike(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bytes:
        """Encode a call's payload, the same for all ways to write the call.  Raises TypeError or PayloadError."""

    def decode_result(self, data: bytes, /) -> Any:
        """Decode a result.  Raises PayloadError."""


class Verbatim:
    """The codec of a function in any language: bytes as they are, other values as JSON; results are bytes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode one argument, or the keyword arguments as a JSON object; without arguments, the payload is empty."""
        if kwargs and not args:
            return encode_json(kwargs, f"a payload of {self._name}")
        if kwargs or len(args) > 1:
            raise TypeError(f"{self._name} takes one payload, or keyword arguments; got {len(args)} and {len(kwargs)}")
        payload = args[0] if args else b""
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)
        return encode_json(payload, f"a payload of {self._name}")

    def encode_recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode like ``encode``, with sorted members of sets and keys of dicts."""
        payload = self.encode(args, kwargs)  # refuses values before they become others that JSON has
        if any(isinstance(one, (bytes, bytearray, memoryview)) for one in args):
            return payload
        return self.encode(*sorted_arguments(args, kwargs))

    encode_alike = encode_recorded

    def decode_result(self, data: bytes) -> bytes:
        """Return the result unchanged."""
        return data


class Submission(Generic[P, R]):
    """A function of the fleet and the options of its jobs.  Immutable.

    Its type parameters are the function's parameters and its result.
    """

    _takes_json = False
    """Whether nodes put its arguments into JSON, so that they are JSON when they are encoded, too."""

    def __init__(
        self,
        name: str,
        codec: Codec,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        inbox: Inbox | None = None,
        key: Key = "",
        check: Check = accept_options,
        activity_option: str = "",
        limit: float | None = None,
    ) -> None:
        self.name = name
        self._codec = codec
        self._connections = connections
        self._options = options
        self._unique = unique
        self._inbox = inbox
        self._key = key
        self._check = check
        self._described: ActivityCall | None = None
        """The function as workflows call it, from the first such call on."""
        self._activity_option = activity_option
        """The name of an option for activities alone, if ``options`` has set one."""
        self._limit = limit
        """Seconds that a submit waits for its answer; None: the App's."""
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
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | None = None,
        keep_unique: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Duration | None = None,
        debounce_max: Duration | None = None,
        concurrency_key: str | Callable[P, str] | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        cancel: CancelMode | None = None,
        tags: Iterable[str] | None = None,
        request_key: str | None = None,
        request_timeout: Duration | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> Submission[P, R]:
        """Return the same function with other options for its jobs; omitted options stay the same.

        ``unique`` is the name of the computation, or a function that computes it from the arguments. While a job of that name
        is live, a submit joins it; with ``keep_unique``, a submit also joins a job that succeeded within that time.
        ``on_conflict`` names another act about the live job: ``"skip"``, ``"cancel_old"`` or ``"replace_input"``. With
        ``debounce``, the job starts once no other submit of the unique has come for that time, with the last input, and at most
        ``debounce_max`` after the first submit.
        ``priority`` is high, normal or low. ``delay`` or ``run_at`` (an aware datetime) sets the earliest start, ``expires``
        the latest. A job that has not begun within ``start_within``, or not ended within ``deadline``, from its due time on is
        overdue, and has an event. ``run_timeout`` limits an attempt; ``timeout`` is its older name.
        ``heartbeat``: an attempt whose worker is silent for that time is lost. ``retry`` is the policy after failed attempts.
        ``concurrency_key`` is the key whose limits the job shares, or a function that computes it from the arguments. Keys
        take turns. ``tags`` are texts by which `jobs list --tag` finds the job.

        ``schedule_to_start``, ``schedule_to_close`` and ``cancel`` are for activities of workflows: the time in which one must
        start, and in which it must end, over all attempts; and what its cancellation does. ``"try"``, the default, requests the
        cancel and goes on at once, ``"wait"`` goes on when the activity has ended, and ``"abandon"`` lets the activity go on.

        ``request_key`` identifies one submit for a day: a second one with the same key and the same arguments returns the
        job of the first one and makes no other. ``request_timeout`` is how long a submit waits for the server's answer.

        ``connection`` is a connection of asyncpg, psycopg, SQLAlchemy or Django to the database of a PostgreSQL store. Jobs
        are submitted in its transaction, and exist if and only if the caller commits it; their results are available after
        that. ``schema`` is the store's schema.

        A function of an App on ZooKeeper has neither ``concurrency_key`` nor ``connection`` nor ``request_key``.

        Raises UsageError if an option is wrong, or the App's store does not support it.
        """
        self._check(
            {
                "concurrency_key": concurrency_key,
                "connection": connection,
                "request_key": request_key,
                "start_within": start_within,
                "deadline": deadline,
            }
        )
        newer = build_options(
            priority=priority,
            delay=delay,
            run_at=run_at,
            run_timeout=run_timeout,
            timeout=timeout,
            expires=expires,
            start_within=start_within,
            deadline=deadline,
            heartbeat=heartbeat,
            retry=retry,
            keep_unique=keep_unique,
            on_conflict=on_conflict,
            debounce=debounce,
            debounce_max=debounce_max,
            schedule_to_start=schedule_to_start,
            schedule_to_close=schedule_to_close,
            cancel=cancel,
            tags=tags,
            request_key=request_key,
        )
        limit = self._limit if request_timeout is None else check_limit(request_timeout, "request_timeout")
        if retry is not None and (retry.on != (Exception,) or retry.never):
            raise UsageError("Retry's on and never belong to the task's definition: @app.task(retry=Retry(on=…))")
        chosen: Unique = self._unique if unique is None else check_text_or_function(unique, "unique", check_unique)
        check_keep_unique(newer.keep_unique, chosen)
        inbox = inbox_of(connection, schema) or self._inbox
        key: Key = self._key
        if concurrency_key is not None:
            key = check_text_or_function(concurrency_key, "concurrency_key", check_key)
        merged = replace(self._options.merged(newer), concurrency_key=None)
        if merged.request_key is not None and inbox is not None:
            raise UsageError(
                f"{self.name}: request_key and connection exclude each other: the transaction decides whether the job exists, so"
                " leave out request_key="
            )
        if not chosen:
            check_rule(newer, chosen)
            merged = replace(merged, keep_unique=None, on_conflict=None, debounce=None, debounce_max=None)
        elif inbox is not None and (merged.on_conflict not in {None, "join"} or merged.debounce is not None):
            raise UsageError(
                f"{self.name}: a submit in a transaction joins the live job of its unique: leave out on_conflict and debounce, or"
                " connection"
            )
        check_rule(merged, chosen)
        limited = next((name for name in ACTIVITY_OPTIONS if getattr(newer, name) is not None), self._activity_option)
        return Submission(
            self.name, self._codec, self._connections, merged, chosen, inbox, key, self._check, limited, limit
        )

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job and return when it is on disk. Inside of a workflow, schedule an activity of the run.

        Raises TypeError or PayloadError if the arguments do not fit, RefusedError if the server refuses the job, and
        ConnectionLostError if no server can be reached, or if the client cannot find out whether the job was accepted; that is a
        NoAnswerError if the server has not answered within the ``request_timeout``.
        """
        calls = workflow_calls()
        if calls is not None:
            return self._submit_inside(calls, args, kwargs)
        request = self._request(args, kwargs)
        if self._inbox is not None:
            return self.job(self._inbox.submit(request, self._options, self._connections.namespace))
        return self._submitted(self._connections.blocking().submit(request, self._limit))

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, like ``submit``."""
        request = self._request(args, kwargs)
        if self._inbox is not None:
            return self.job(await self._inbox.asubmit(request, self._options, self._connections.namespace))
        return self._submitted(await self._connections.aio().submit(request, self._limit))

    def submit_many(self, calls: Iterable[Any]) -> list[Job[R]]:
        """Submit a job for each item, many at once, and return them in order.

        An item is a tuple of positional arguments, a dict of keyword arguments, or a single argument. Items are read from
        the iterable as they can be sent. All are submitted; then the first error of ``submit`` is raised, with a note of how
        many jobs the server accepted.
        """
        if self._inbox is not None:
            return [
                self.job(self._inbox.submit(request, self._options, self._connections.namespace))
                for request in self._requests(calls)
            ]
        answers: list[Answer] = []
        self._check_many()
        for window in self._connections.blocking().submit_many(self._requests(calls), self._limit):
            answers += window
        return self._jobs(answers)

    async def asubmit_many(self, calls: Iterable[Any]) -> list[Job[R]]:
        """Submit a job for each item, like ``submit_many``."""
        if self._inbox is not None:
            return [
                self.job(await self._inbox.asubmit(request, self._options, self._connections.namespace))
                for request in self._requests(calls)
            ]
        answers: list[Answer] = []
        self._check_many()
        async for window in self._connections.aio().submit_many(self._requests(calls), self._limit):
            answers += window
        return self._jobs(answers)

    def job(self, handle: str) -> Job[R]:
        """Return the job of this function with a handle, without a request to the server.

        Raises UsageError if the text cannot be a handle.
        """
        return self._job(check_handle(handle))

    def unique_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the unique of a job with these arguments; empty for none.  Raises UsageError if it is invalid."""
        if callable(self._unique):
            return check_unique(self._unique(*args, **kwargs), f"{self.name}: the unique of these arguments")
        return self._unique

    def __repr__(self) -> str:
        """Show the function's name and the options of its jobs."""
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
            """Raise AttributeError. For methods of other task queues, it names the equivalent here."""
            hint = _EQUIVALENTS.get(name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{f'; {hint}' if hint else ''}",
                name=name,
                obj=self,
            )

    # Internal.

    def _submit_inside(self, calls: WorkflowCalls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R]:
        """Submit inside of a workflow."""
        activity: Job[R] = calls.submit(self._activity(), args, kwargs)
        return activity

    def _activity(self) -> ActivityCall:
        if self._described is not None:
            return self._described
        if self._options.request_key is not None:
            raise UsageError(
                f"{self.name}: a run submits each activity once, so request_key is not for activities: leave it out"
            )
        self._check({"activity": self.name})
        self._described = ActivityCall(
            self.name,
            self._codec,
            self._options,
            bool(self._unique),
            self._key,
            self._inbox is not None,
            self._connections,
            self._decode,
        )
        return self._described

    def activity(self) -> ActivityCall | None:
        """Return the description of the function for a workflow that schedules activities; None if the function is none."""
        return self._activity()

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError or PayloadError for arguments that do not fit the function."""
        self._codec.encode(args, kwargs)

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        if self._activity_option:
            remedy = (
                "cancel other jobs by job.cancel()"
                if self._activity_option == "cancel"
                else "limit other jobs by expires, until their start, and by run_timeout, for each attempt"
            )
            raise UsageError(f"{self.name}: {self._activity_option} is for activities of workflows; {remedy}")
        unique = self.unique_of(args, kwargs)
        wire_options = self._wire_options
        if callable(self._key):
            key = check_key(self._key(*args, **kwargs), f"{self.name}: the concurrency_key of these arguments")
            wire_options = replace(self._options, concurrency_key=key or None).wire()
        keyed = self._options.request_key is not None
        # The server names such a job after its payload.
        payload = (self._codec.encode_alike if unique == BY_PAYLOAD else self._codec.encode)(args, kwargs)
        if len(payload) > SHORTEST_TOO_DEEP and payload[:1] in _JSON_BEGINS and is_too_deep(payload):
            raise PayloadError(
                f"{self.name}: the arguments have more than {LEVELS} of lists and dicts: make them flatter"
            )
        codecs = self._connections.codecs
        if codecs:
            if unique == BY_PAYLOAD and payload:
                unique = blake2b(payload, digest_size=16).hexdigest()  # encoded, the same call may differ each time
            encode = codecs.encode_json if self._takes_json else codecs.encode
            payload = encode(payload, "arguments", self.name, repeatable=keyed)
        return Request(self._function, unique.encode(), wire_options, payload, keyed)

    def _check_many(self) -> None:
        if self._options.request_key is not None:
            raise UsageError(
                f"{self.name}: a request_key is that of one submit: call submit() for each job, with a key of its own"
            )

    def _requests(self, calls: Iterable[Any]) -> Iterator[Request]:
        for call in calls:
            if isinstance(call, tuple):
                yield self._request(call, {})
            elif isinstance(call, dict):
                yield self._request((), call)
            else:
                yield self._request((call,), {})

    def _submitted(self, submitted: Submitted) -> Job[R]:
        return self._job(submitted.handle, joined=submitted.joined)

    def _job(self, handle: str, *, joined: bool = False) -> Job[R]:
        return SubmittedJob(self._connections, handle, self._decode, joined=joined)

    def _jobs(self, answers: list[Answer]) -> list[Job[R]]:
        jobs = [self._job(answer.handle, joined=answer.joined) for answer in answers if isinstance(answer, Submitted)]
        for answer in answers:
            if not isinstance(answer, Submitted):
                answer.add_note(f"{len(jobs)} of {len(answers)} jobs were accepted")
                raise answer
        return jobs

    def _decode(self, data: bytes) -> R:
        result: R = self._codec.decode_result(data)
        return result

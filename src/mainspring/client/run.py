"""The runs of workflows and their histories, as programs outside of them see them."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from mainspring.client.acts import RunActs
from mainspring.client.connections import OnServers
from mainspring.client.inbox import DEFAULT_SCHEMA, inbox_of
from mainspring.client.job import Job, PublishedValue
from mainspring.client.options import check_child_policy, check_short, check_text, check_unique, refusal
from mainspring.client.payload import encode_result
from mainspring.errors import NotFoundError, UsageError
from mainspring.ids import Handles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from mainspring.api.workflows import RunInfo, StartedRun
    from mainspring.client.blocking import Client
    from mainspring.client.connections import Connections
    from mainspring.client.options import ChildPolicy, Duration
    from mainspring.client.outcomes import JobEvent


R = TypeVar("R")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_DIGITS: Final = 18
"""Digits of the number of a run."""
_SHOW: Final = "workflows.show"
_SIGNAL: Final = "workflows.signal"
_TERMINATE: Final = "workflows.terminate"
_CANCEL: Final = "workflows.cancel"


class SignalType(Protocol[T_contra]):
    """A declared signal with values of one type."""

    @property
    def name(self) -> str:
        """Return the signal's name."""

    def encode(self, value: T_contra) -> bytes:
        """Encode a value.  Raises PayloadError."""


class Run(Job[R], RunActs):
    """The open run of a workflow id, or the last one; as a job, it has the workflow's result.

    ``key`` is a handle or a workflow id. For a workflow id, the first request asks the server for the handle and keeps it.
    """

    _handle: str

    def __init__(
        self, connections: Connections, key: str, decode: Callable[[bytes], R], *, joined: bool = False
    ) -> None:
        root, _, _ = key.partition("@")
        is_handle = Handles.parse(root.encode()) is not None
        super().__init__(connections, root if is_handle else "", decode, joined=joined)
        self.key = key

    def __repr__(self) -> str:
        return f"Run({self.key!r})"

    @property
    def handle(self) -> str:
        """The handle of the job that started the run. Raises NotFoundError if no run has the workflow id."""
        if not self._handle:
            self._handle = str(self.details()["handle"])
        return self._handle

    @handle.setter
    def handle(self, handle: str) -> None:
        self._handle = handle

    async def _find(self) -> None:
        """Request the handle, so that the property does not block."""
        if not self._handle:
            self._handle = str((await self.adetails())["handle"])

    def details(self) -> dict[str, Any]:
        """Request what the server has about the run: its status, version, activities, timers, unread signals and more."""
        answer: dict[str, Any] = self._connections.blocking().call(_SHOW, {"key": self.key})
        return answer

    async def adetails(self) -> dict[str, Any]:
        """Request what the server has about the run, like ``details``."""
        answer: dict[str, Any] = await self._connections.aio().call(_SHOW, {"key": self.key})
        return answer

    @overload
    def signal(
        self,
        signal: SignalType[T],
        value: T,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None: ...
    @overload
    def signal(
        self,
        signal: SignalType[None] | str,
        value: Any = None,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None: ...
    def signal(
        self,
        signal: SignalType[Any] | str,
        value: Any = None,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None:
        """Send a signal, and return when it is on disk.

        ``request`` is a text that identifies it: the run ignores repeated ones.

        With ``connection``, a connection to the database of a PostgreSQL store as in the options of a task, the signal is part of
        its transaction: a node passes it to the run after the commit, and sets it aside if the run takes no signals then.

        Raises PayloadError if the value does not have the signal's type, NotFoundError if there is no such run, and
        ConflictError if the run has ended or takes no more signals.
        """
        if (inbox := inbox_of(connection, schema)) is not None:
            inbox.signal(self.key, *self._encode(signal, value), request, self._connections.namespace)
            return
        self._connections.blocking().call(_SIGNAL, self._signal(signal, value, request))

    @overload
    async def asignal(
        self,
        signal: SignalType[T],
        value: T,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None: ...
    @overload
    async def asignal(
        self,
        signal: SignalType[None] | str,
        value: Any = None,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None: ...
    async def asignal(
        self,
        signal: SignalType[Any] | str,
        value: Any = None,
        *,
        request: str | None = None,
        connection: Any = None,
        schema: str = DEFAULT_SCHEMA,
    ) -> None:
        """Send a signal, like ``signal``."""
        if (inbox := inbox_of(connection, schema)) is not None:
            await inbox.asignal(self.key, *self._encode(signal, value), request, self._connections.namespace)
            return
        await self._connections.aio().call(_SIGNAL, self._signal(signal, value, request))

    def terminate(self, reason: str = "", *, children: ChildPolicy | None = None) -> None:
        """End the run at once; its code does not run again, and its activities are cancelled.

        ``children`` says what happens to its children, in place of their own child policies.

        Raises NotFoundError if there is no such run, and ConflictError if it has ended.
        """
        self._connections.blocking().call(_TERMINATE, self._termination(reason, children))

    async def aterminate(self, reason: str = "", *, children: ChildPolicy | None = None) -> None:
        """End the run at once, like ``terminate``."""
        await self._connections.aio().call(_TERMINATE, self._termination(reason, children))

    def cancel(self, reason: str = "", *, request: str | None = None) -> str:
        """Ask the run to cancel itself. Return ``running``, or ``cancelled`` if it had not begun.

        ``request`` is a text that identifies the request: the run ignores repeated ones.

        Raises NotFoundError if there is no such run, and ConflictError if it has ended.
        """
        try:
            return _state(self._connections.blocking().call(_CANCEL, self._cancellation(reason, request)))
        except (
            NotFoundError
        ):  # the run of a client that waits in the foreground is a job in the node's memory before its begin
            return super().cancel(reason)

    async def acancel(self, reason: str = "", *, request: str | None = None) -> str:
        """Ask the run to cancel itself, like ``cancel``."""
        try:
            return _state(await self._connections.aio().call(_CANCEL, self._cancellation(reason, request)))
        except NotFoundError:
            await self._find()
            return await super().acancel(reason)

    def _cancellation(self, reason: str, request: str | None) -> dict[str, str]:
        params = {"key": self.key, "reason": check_text(reason, "a reason")}
        return params if request is None else {**params, "request": request}

    def _termination(self, reason: str, children: ChildPolicy | None) -> dict[str, str]:
        params = {"key": self.key, "reason": reason}
        return params if children is None else {**params, "children": check_child_policy(children, "children")}

    def _encode(self, signal: SignalType[Any] | str, value: Any) -> tuple[str, bytes]:
        """Return the name and the payload of a signal, as it leaves the process."""
        name, data = encode_signal(signal, value)
        return name, self._connections.codecs.encode(data, "signal", name)

    def _signal(self, signal: SignalType[Any] | str, value: Any, request: str | None) -> dict[str, Any]:
        name, data = self._encode(signal, value)
        params = {"key": self.key, "name": name, "payload": b64encode(data).decode()}
        return params if request is None else {**params, "request": request}

    # The asyncio methods of a job, which may have to find the handle first.

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - the same as in result
        """Wait until the run has ended and return its result; raises the errors of ``result``."""
        await self._find()
        return await super().aresult(timeout)

    async def ainfo(self) -> dict[str, Any]:
        """Request what the server has about the job, like ``info``."""
        await self._find()
        return await super().ainfo()

    async def avalue(self, name: str, *, type: Any = Any) -> Any:  # noqa: A002 - as in `Job`
        """Return the last value of a name, like ``value``."""
        await self._find()
        return await super().avalue(name, type=type)

    async def avalues(self) -> dict[str, PublishedValue]:
        """Return the last value of each name, like ``values``."""
        await self._find()
        return await super().avalues()

    async def await_value(self, name: str, timeout: Duration | None = None, *, type: Any = Any, after: int = 0) -> Any:  # noqa: A002, ASYNC109 - as in `Job`
        """Wait until the run has published a value under a name, like ``wait_value``."""
        await self._find()
        return await super().await_value(name, timeout, type=type, after=after)

    async def _found_handle(self) -> str:
        await self._find()
        return self.handle

    async def _astream(self, limit: float | None) -> AsyncGenerator[JobEvent]:
        await self._find()
        async with contextlib.aclosing(super()._astream(limit)) as events:
            async for event in events:
                yield event


def _state(reached: dict[str, Any]) -> str:
    """Return the state of a run that has taken a request to cancel, in the words of jobs."""
    return "running" if reached["status"] == "open" else "cancelled"


def encode_signal(signal: SignalType[Any] | str, value: Any) -> tuple[str, bytes]:
    """Return the name and the encoded value of a signal. Raises UsageError for the name, and PayloadError for the value."""
    if not isinstance(signal, str) and not (hasattr(signal, "name") and hasattr(signal, "encode")):
        raise refusal("a signal", "one of app.signal(…), or a name", signal)
    name = check_short(signal if isinstance(signal, str) else signal.name, "a signal's name")
    return name, encode_result(value) if isinstance(signal, str) else signal.encode(value)


def check_run_key(key: object) -> str:
    """Return a handle or workflow id that a user passes.  Raises UsageError if it can be neither."""
    text = check_text(key, "the key of a run", "a handle or a workflow id")
    if not text:
        raise UsageError("the key of a run is empty: give the handle or the workflow id of a run, such as 'order-17'")
    if not text.startswith("H:"):
        return check_unique(text, "a workflow id")
    number = text.partition("@")[2]
    if len(number) > _DIGITS:
        raise UsageError(f"{text!r} names no run: its number after the @ has more than {_DIGITS} digits")
    return check_short(text, "the key of a run")


class ListedRun(Run[bytes]):
    """A run that a server has listed. ``row`` is what the server had about it then; its result is bytes."""

    def __init__(self, connections: Connections, row: RunInfo) -> None:
        super().__init__(connections, row.run, bytes)
        self.row = row


class FindsRuns(OnServers):
    """Makes runs of answers."""

    def _as_run(self, started: StartedRun) -> Run[bytes]:
        return Run(self._connections, started.handle, bytes, joined=started.joined)

    def _as_listedrun(self, row: RunInfo | None) -> Any:
        return None if row is None else ListedRun(self._connections, row)

    def _each_listedrun(self, rows: Iterator[RunInfo]) -> Iterator[ListedRun]:
        return (ListedRun(self._connections, row) for row in rows)

    def _aeach_listedrun(self, rows: AsyncIterator[RunInfo]) -> AsyncIterator[ListedRun]:
        return (ListedRun(self._connections, row) async for row in rows)


PAGE: Final = 1000
"""Events of one request."""


def read_events(client: Client, key: str) -> list[dict[str, Any]]:
    """Return the events of a run as files of histories have them; none if it has not begun. Raises NotFoundError."""
    events: list[dict[str, Any]] = []
    params: dict[str, Any] = {"key": key, "exact": True, "limit": PAGE}
    while True:
        page: Any = client.call("workflows.history", params)
        events += page["items"]
        if page["next"] is None:
            return events
        params["cursor"] = page["next"]

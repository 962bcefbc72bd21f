"""Tasks of a Dask cluster as work that runs elsewhere; needs ``mainspring[dask]``.

A task has the key of its submission, and is *published*: the scheduler keeps it and its result when the worker that submitted it
has gone. The scheduler runs one task for a key, however many workers submit it. It keeps everything in memory: its restart ends
the tasks, and their jobs' attempts have failed.

Functions and values go to the cluster, and come from it, in Dask's own format, which runs code (pickle): use a cluster that only
your programs can reach. The arguments of jobs come as JSON, as everywhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mainspring.client.external import Done, Failed, Running
from mainspring.client.options import seconds
from mainspring.errors import MainspringError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.client.options import Duration

CLEAN_EVERY: Final = 60.0
"""Seconds between two looks for old results."""
CONNECT_LIMIT: Final = 10.0
PREFIX: Final = "mainspring-"


class DaskError(MainspringError):
    """The scheduler could not be asked."""


@dataclass(frozen=True)
class DaskMeta:
    """A task that was submitted, as it is recorded with the job."""

    key: str
    """That of the task, and the name under which it is published."""


class DaskWork:
    """Tasks of a Dask cluster: a base for classes with ``@app.external``.

    A class sets ``scheduler`` and defines ``submit``, which returns ``await self.start(function, …, key=key)``. The function
    runs on a worker of Dask, and its result is that of the job: it is a value that JSON can represent.
    """

    scheduler: ClassVar[str] = ""
    """Its address, such as ``tcp://scheduler:8786``."""
    keep: ClassVar[Duration] = 3600.0
    """How long the scheduler keeps a result of an ended task. A worker that watches it needs a few seconds."""
    resources: ClassVar[dict[str, float]] = {}
    """Those that each task needs of its worker of Dask."""

    def __init__(self) -> None:
        self._client: Any = None
        self._connecting: asyncio.Task[Any] | None = None
        self._ended: dict[str, float] = {}
        """Ended tasks, with the monotonic time at which this worker first saw their ends."""
        self._cleaned = float("-inf")

    async def client(self) -> Any:
        """Return the connection to the scheduler, a ``distributed.Client``. Raises DaskError, and UsageError without Dask."""
        if self._client is not None and self._client.status != "closed":
            return self._client
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        self._client = await asyncio.shield(self._connecting)
        return self._client

    async def _connect(self) -> Any:
        try:
            import distributed  # noqa: PLC0415 - it takes half a second
        except ImportError as error:
            raise UsageError(f"{type(self).__name__} needs Dask: pip install 'mainspring[dask]'") from error
        if not self.scheduler:
            raise UsageError(f"{type(self).__name__}.scheduler is the address of Dask's scheduler")
        try:
            kind: Any = distributed.Client  # it has no types for its use in a loop
            return await kind(self.scheduler, asynchronous=True, set_as_default=False, timeout=CONNECT_LIMIT)
        except (OSError, TimeoutError) as error:
            raise DaskError(f"Dask's scheduler {self.scheduler} cannot be reached: {error}") from error

    async def close(self) -> None:
        """Close the connection, as a function of ``@app.on_worker_stop`` may do. The tasks go on."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def start(self, function: Callable[..., Any], *args: Any, key: str, **named: Any) -> DaskMeta:
        """Submit a function, unless that was done for this key before. Raises DaskError."""
        client = await self.client()
        meta = DaskMeta(self._prefix + key)
        if await _published(client, meta) is None:
            task = client.submit(function, *args, key=meta.key, pure=True, resources=self.resources or None, **named)
            try:
                await client.publish_dataset(task, name=meta.key, override=True)
            finally:
                task.release()
        await self._clean(client)
        return meta

    async def find(self, key: str) -> DaskMeta | None:
        """Return the task that was submitted for a key."""
        meta = DaskMeta(self._prefix + key)
        return meta if await _published(await self.client(), meta) is not None else None

    async def status(self, meta: DaskMeta) -> Running | Done[Any] | Failed:
        """Return how far the task is. Raises DaskError."""
        client = await self.client()
        await self._clean(client)
        state = (await _states(client, [meta.key]))[meta.key]
        if state not in {"memory", "erred"}:
            if state is None:
                return Failed(
                    "Dask's scheduler does not have the task: it was restarted, or somebody has cancelled the task"
                )
            return Running(text=state)
        task = await _published(client, meta)
        if task is None:
            return Failed("Dask's scheduler does not have the result any more")
        try:
            error = await task.exception()
            return Done(await task.result()) if error is None else Failed(error)
        finally:
            task.release()

    async def cancel(self, meta: DaskMeta) -> None:
        """Cancel the task, and forget its result. A function that runs already goes on to its end. Raises DaskError."""
        client = await self.client()
        task = await _published(client, meta)
        if task is not None:
            await client.cancel([task], force=True)
            await client.unpublish_dataset(meta.key)

    @property
    def _prefix(self) -> str:
        return f"{PREFIX}{type(self).__module__}.{type(self).__qualname__}-"

    async def _clean(self, client: Any) -> None:
        """Let the scheduler forget old results: this worker saw the ends of their tasks `keep` ago.

        Other workers may have watched these tasks, and have died since.
        """
        now = monotonic()
        if now - self._cleaned < CLEAN_EVERY:
            return
        self._cleaned = now
        names = [one for one in await client.list_datasets() if isinstance(one, str) and one.startswith(self._prefix)]
        states = await _states(client, names)
        ended = {
            name: self._ended.get(name, now) for name, state in states.items() if state in {"memory", "erred", None}
        }
        keep = seconds(self.keep, "keep")
        old = [name for name, since in ended.items() if now - since >= keep]
        self._ended = {name: since for name, since in ended.items() if name not in old}
        for name in old:
            await client.unpublish_dataset(name)


async def _published(client: Any, meta: DaskMeta) -> Any:
    """Return the task as a future; None if the scheduler does not have it."""
    try:
        return await client.get_dataset(meta.key, default=None)
    except OSError as error:
        raise DaskError(f"Dask's scheduler does not answer: {error}") from error


async def _states(client: Any, keys: Collection[str]) -> dict[str, str | None]:
    """Return the scheduler's states of tasks; None for those that it does not have."""
    try:
        found: dict[str, str | None] = await client.scheduler.get_task_status(keys=list(keys))
    except OSError as error:
        raise DaskError(f"Dask's scheduler does not answer: {error}") from error
    return found

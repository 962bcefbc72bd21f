"""What a user imports: the App, on which tasks are defined."""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from mainspring.client.addresses import Address, servers_or_default
from mainspring.client.checking import check_key, check_text, check_text_or_function, check_unique, refusal
from mainspring.client.connections import Connections
from mainspring.client.job import Job, aresults, check_handle, results
from mainspring.client.options import Duration, Options, Priority, Rate, Retry, build_limits, build_options, seconds
from mainspring.client.scheduling import Arguments, Declarations, Parent, Timing, check_arguments
from mainspring.client.submission import Check, Key, Submission, Unique, Verbatim, check_keep_unique
from mainspring.client.tls import tls_of_environment
from mainspring.errors import UsageError
from mainspring.stores import ZooKeeper, check_options, check_store
from mainspring.tasks import CoroutineTask, Define, Definitions, Task
from mainspring.worker.functions import check_definition
from mainspring.worker.inclusion import import_included
from mainspring.worker.link import connector
from mainspring.worker.registry import Registry, check_name
from mainspring.worker.runtime import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
    from datetime import date, datetime

    from mainspring.worker.settings import WorkerSettings

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Tasks, and the servers that their jobs go to.

    ``server`` is ``HOST:PORT``, or several with commas, tried in that order; without it the environment's
    MAINSPRING_SERVER when it is first needed, else 127.0.0.1:4730. ``tls``: speak TLS, with this context; without both,
    with the files that MAINSPRING_TLS_CA, MAINSPRING_TLS_CERT and MAINSPRING_TLS_KEY name then.

    ``name`` tells Apps with schedules that share a store apart; without it, the name of the file that workers are
    started with, without its ending.

    ``store`` is the store that its tasks are written for: a URL, or ``ZooKeeper(URL)``, on which tasks have no limits and
    nothing is submitted in a transaction. ``mainspring run`` opens it where no other one is named; an App itself connects to
    servers alone.

    Raises UsageError where the store is none.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        store: str | ZooKeeper | None = None,
    ) -> None:
        check_store(store)
        if server is not None:
            check_text(server, "server", "HOST:PORT, or several with commas")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise refusal("tls", "an ssl.SSLContext", tls)
        self._store = store
        self._check: Check = functools.partial(check_options, store)
        self._server = server
        self._tls = tls
        self.registry = Registry()
        self._included: list[str] = []
        self.schedules = Declarations(name)
        self.connections = Connections(self.servers, self.tls)
        self._definitions = Definitions(self.registry, self.schedules, self.connections, self._check)

    @property
    def store(self) -> str | ZooKeeper | None:
        """What the App was given as its store."""
        return self._store

    def servers(self) -> tuple[Address, ...]:
        """Return the servers' addresses.  Raises SettingsError."""
        return servers_or_default(self._server)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context to connect with; None: speak no TLS.  Raises SettingsError.

        What the environment says of TLS holds for the servers that it names, not for those that the program names.
        """
        return self._tls if self._tls is not None or self._server else tls_of_environment()

    def connect_to(self, server: str | None) -> str | None:
        """Talk to other servers from now on, named as in ``App(server)``; return what named them before.

        For tests, and for programs that learn their server late.
        """
        if server is not None:
            check_text(server, "server", "HOST:PORT, or several with commas")
        before, self._server = self._server, server
        self.connections.forget()
        return before

    @overload
    def task(  # type: ignore[overload-overlap] # the first that fits is meant
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def task(self, call: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        executor: Literal["thread", "process"] = "thread",
        retry: Retry | None = None,
        run_timeout: Duration | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        expires: Duration | None = None,
        priority: Priority | None = None,
        unique: Unique = "",
        keep_unique: Duration | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
    ) -> Define: ...
    def task(
        self,
        call: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        executor: Literal["thread", "process"] = "thread",
        retry: Retry | None = None,
        run_timeout: Duration | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        expires: Duration | None = None,
        priority: Priority | None = None,
        unique: Unique = "",
        keep_unique: Duration | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
    ) -> Any:
        """Define a task.

        Its name on the wire is the function's ``__name__``, unless ``name`` says otherwise. Plain functions run in
        threads or, with ``executor="process"``, in processes of their own, which a timeout or cancel can kill;
        coroutines run on the worker's loop.

        ``concurrency`` is how many of the task's jobs run at the same time, ``rate`` how many start in time, on all
        nodes together; the same ``per_key`` for the jobs of one ``concurrency_key``. They hold while workers with this
        task are connected, for whoever submits; ``mainspring functions`` shows and overrules them. The other options
        are defaults for the task's jobs; see ``Submission.options``. With a constant ``unique`` one job of the task is live
        at a time; with a function that makes it of the arguments, one for each of its values. An App on ZooKeeper does
        not have limits and keys.

        Raises UsageError where an option is wrong, the name is taken, or the App's store keeps no limits.
        """
        options = build_options(
            retry=retry,
            run_timeout=run_timeout,
            timeout=timeout,
            heartbeat=heartbeat,
            expires=expires,
            priority=priority,
            keep_unique=keep_unique,
        )
        said = {
            "concurrency": concurrency,
            "concurrency_per_key": concurrency_per_key,
            "rate": rate,
            "rate_per_key": rate_per_key,
        }
        self._check({**said, "concurrency_key": concurrency_key})
        limits = build_limits(concurrency, concurrency_per_key, rate, rate_per_key)
        check_definition(name, executor)
        check_text_or_function(unique, "unique", check_unique)
        check_keep_unique(options.keep_unique, unique)
        check_text_or_function(concurrency_key, "concurrency_key", check_key)

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.task(call, name, executor, options, unique, limits, concurrency_key)

        return define(call) if call is not None else Define(define)

    def scheduled(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: datetime | None = None,
        parent: Parent | Sequence[Parent] | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0.0,
        exclude: Iterable[date | str] = (),
        misfire: Literal["skip", "once", "all"] | int = "once",
        overlap: Literal["allow", "forbid", "queue", "replace"] = "allow",
        wait_for_children: bool = False,
        args: Arguments = (),
        unique: Unique | None = None,
        name: str | None = None,
        executor: Literal["thread", "process"] = "thread",
        retry: Retry | None = None,
        run_timeout: Duration | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        expires: Duration | None = None,
        priority: Priority | None = None,
    ) -> Define:
        """Define a task that runs by itself, at times that one of these says.

        ``cron``: an expression of five fields (minute, hour, day, month, day of the week), of six with the seconds first,
        or a name such as ``@daily``; read by the clock of ``timezone``. ``every``: an even interval. ``at``: once.
        ``parent``: whenever the parent, or all of several, have succeeded.

        ``start`` and ``end`` bound the times. ``exclude`` names days on which it does not run. ``jitter``: each job
        starts up to so much later. ``misfire``: what becomes of times that were missed while no node ran. ``overlap``:
        what becomes of a time while an earlier run is not finished. ``wait_for_children``: a run is finished when those
        after it are. ``args``: what the task is called with, a sequence or a dict of keyword arguments. ``unique`` of
        its jobs and the rest are as for ``task``; ``name`` is that of the schedule as well.

        A task that exists already may be given in place of a function: then only its schedule is defined, and the
        options for its jobs are those that are given here, or else the task's own.

        Schedules are made in the store, changed and removed when workers of the App start. In the task,
        ``current_job().fire_time`` is the time that a job stands for.

        Raises UsageError where something is wrong, here or when it is applied to the function; then also TypeError and
        PayloadError where ``args`` do not fit it.
        """
        timing = Timing(
            cron, every, at, parent, timezone, start, end, jitter, exclude, misfire, overlap, wait_for_children
        )
        options = build_options(
            retry=retry,
            run_timeout=run_timeout,
            timeout=timeout,
            heartbeat=heartbeat,
            expires=expires,
            priority=priority,
        )
        check_definition(name, executor)
        check_arguments(args)
        if unique is not None:
            check_text_or_function(unique, "unique", check_unique)

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.scheduled(call, name, executor, options, unique, timing, args)

        return Define(define)

    def include(self, *modules: str) -> None:
        """Have workers import more modules, which define tasks on this App: ``app.include("shop.tasks", "shop.mail")``.

        Of a package all modules are imported, and those of its packages. Nothing is imported now, so that these modules may
        import this App's; workers, the processes of ``executor="process"`` and ``in_memory`` do it, with ``load_tasks``. A
        program that submits a task imports its module as usual.

        Raises UsageError for what is no full name of a module.
        """
        for module in modules:
            given: object = module
            if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
                raise UsageError(f"{given!r} is no module: name it in full, such as shop.tasks")
            if module not in self._included:
                self._included.append(module)

    def load_tasks(self) -> None:
        """Import the modules that ``include`` has named; does nothing for those that are imported.

        Raises SettingsError for one that is not there or whose import fails, with the cause chained.
        """
        for module in self._included:  # it grows where one of them includes others
            import_included(module)

    def function(self, name: str) -> Submission[..., bytes]:
        """Return a function of whatever language by its name.

        Its ``submit`` takes one payload: bytes as they are, anything else as JSON; or keyword arguments, as a JSON
        object. Its jobs' results are bytes.

        Raises UsageError for what cannot be a function's name.
        """
        check_name(name)
        return Submission(name, Verbatim(name), self.connections, Options(), check=self._check)

    def job(self, handle: str) -> Job[bytes]:
        """Return a job by its handle, with its result as bytes; the server is not asked yet.

        Raises UsageError for what cannot be a handle.
        """
        return Job(self.connections, check_handle(handle), bytes)

    def results(self, jobs: Sequence[Job[R]], timeout: Duration | None = None) -> Iterator[R]:
        """Give the results of many jobs in order, asking for many at once; ``timeout`` is for all of them.

        Raises at the first job that did not succeed, as ``Job.result`` would.
        """
        return results(self.connections, jobs, None if timeout is None else seconds(timeout, "timeout"))

    def aresults(self, jobs: Sequence[Job[R]]) -> AsyncIterator[R]:
        """Give the results of many jobs in order, as ``results`` does."""
        return aresults(self.connections, jobs)

    def worker(
        self,
        settings: WorkerSettings | None = None,
        *,
        servers: Iterable[Address] | None = None,
        selector: str | None = None,
    ) -> Worker:
        """Return a worker of the App's tasks, for all of its servers; run it on an event loop.

        ``selector`` (``FILE.py[:name]`` or ``module[:name]``) is how processes of ``executor="process"`` find the App.

        Raises SettingsError where a module that the App includes cannot be imported.
        """
        self.load_tasks()
        addresses, tls = (self.servers(), self.tls()) if servers is None else (tuple(servers), self._tls)
        connectors = {str(address): connector(address, tls) for address in addresses}
        return Worker(self.registry, connectors, settings, selector=selector)

    def close(self) -> None:
        """End the connection of the blocking methods; it is made again when it is needed."""
        self.connections.close()

    async def aclose(self) -> None:
        """End the connection of the running loop's asyncio methods."""
        await self.connections.aclose()

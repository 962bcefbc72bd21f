"""The App, on which users define tasks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from mainspring.client.app import AppClient
from mainspring.client.declarations import Arguments, Declarations, Parent, Timing, check_arguments, default_name
from mainspring.client.environment import Address, token_of_environment
from mainspring.client.listening import Functions as EventFunctions
from mainspring.client.listening import Listeners, build_filter
from mainspring.client.managed import Resource as ManagedResource
from mainspring.client.managed import build_managed
from mainspring.client.options import (
    CancelMode,
    Duration,
    OnConflict,
    Options,
    Priority,
    Rate,
    Retry,
    build_limits,
    build_options,
    check_key,
    check_retry,
    check_text_or_function,
    check_unique,
    check_whole,
    refusal,
    seconds,
)
from mainspring.client.providers import Provided, check_needs, check_provider
from mainspring.client.resources import LabelledResource, Resource, build_resource, uses_of
from mainspring.client.submission import Key, Unique, check_keep_unique, check_rule
from mainspring.codecs import Codecs
from mainspring.definitions import (
    ClassWorkflow,
    CoroutineTask,
    Define,
    DefineExternal,
    DefineWorkflow,
    Definitions,
    JobRules,
    Schedule,
    Task,
    Workflow,
    check_park_on,
    no_activity,
    run_limit,
    workflow_id,
)
from mainspring.errors import UsageError
from mainspring.jobs.user_data import MAX_KEPT_ARGUMENTS
from mainspring.stores import ZooKeeper, check_options, check_store
from mainspring.worker.external_functions import check_every
from mainspring.worker.functions import (
    NO_MIDDLEWARE_FOR_WORKFLOWS,
    check_annotations,
    check_definition,
    check_hook,
    check_middleware,
    check_workflows,
)
from mainspring.worker.registry import Hook, Kept, Registry, kept_seconds
from mainspring.workflow_code.model import PARK_ON

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from datetime import date, datetime

    from mainspring.codecs import Codec
    from mainspring.worker.registry import Middleware
    from mainspring.worker.runtime import Worker
    from mainspring.worker.settings import WorkerSettings
    from mainspring.workflow_code.channels import Channel
    from mainspring.workflow_code.handlers import RunsWorkflow


R = TypeVar("R")
Uses = Mapping[Resource | LabelledResource, int]
"""Numbers of slots of resources."""


P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="Middleware")
H = TypeVar("H", bound="Callable[[], object]")


class App(AppClient):
    """Tasks, and the servers to which their jobs are submitted.

    ``server`` is ``HOST:PORT``, or several with commas, tried in that order. The default is MAINSPRING_SERVER, read at the
    first connection, or else 127.0.0.1:4730. ``tls`` is the context for TLS connections. Without ``server`` and ``tls``, the App
    uses the files of MAINSPRING_TLS_CA, MAINSPRING_TLS_CERT and MAINSPRING_TLS_KEY.

    ``name`` distinguishes Apps with schedules that share a store. The default is the name of the file that creates the App,
    without its directory and suffix. If the file creates several Apps, those in other variables than ``app`` are called
    ``FILE:VARIABLE``.

    ``store`` is the store for which the tasks are written: a URL, or ``ZooKeeper(URL)``, which has neither limits nor
    transactional submits. ``mainspring run`` opens it unless another store is given; an App itself only connects to servers.

    ``namespace`` is the namespace of its tasks, workflows and schedules, and of all jobs that it submits and reads. The default
    is MAINSPRING_NAMESPACE, or else ``default``.

    ``request_timeout`` is how long a submit, or another request, waits for the server's answer before it raises
    NoAnswerError. The default is MAINSPRING_REQUEST_TIMEOUT, or else 10 seconds. Waits for jobs have limits of their own.

    ``codec`` encodes payloads before they leave the process, and decodes those that come in: with encryption, servers and stores
    have no plain ones. Of several codecs, the first encodes. See `mainspring.codecs`.

    Raises UsageError for an invalid store, namespace, limit or codec.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        store: str | ZooKeeper | None = None,
        namespace: str | None = None,
        request_timeout: Duration | None = None,
        codec: Codec | Sequence[Codec] | None = None,
    ) -> None:
        check_store(store)
        codecs = Codecs(codec)
        super().__init__(server, tls, self._check_given, namespace, request_timeout, codecs)
        self._store = store
        self.registry = Registry(codecs=codecs)
        self._included: list[str] = []
        self._place = _globals_of_creator(self)
        self.schedules = Declarations(name, self._default_name, self.connections)
        self.listeners = Listeners()
        self._resources: dict[str, Resource] = {}
        self._definitions = Definitions(self.registry, self.schedules, self.listeners, self.connections, self._check)

    def _check_given(self, options: Mapping[str, object]) -> None:
        """Raise UsageError for options that the store does not support, or ``activity``, a name, if it is a workflow's."""
        activity = options.get("activity")
        if activity is None:
            check_options(self._store, options)
        elif any(name == activity for name, _ in self.registry.workflows):
            raise no_activity(str(activity))

    @property
    def name(self) -> str:
        """The name that its schedules have in the store: the given one, or that of its file."""
        return self.schedules.name

    def _default_name(self) -> str:
        apps = [(key, one) for key, one in list(self._place.items()) if isinstance(one, App)]
        here = [(key, one) for key, one in apps if one._place is self._place]  # noqa: SLF001 - another App
        others = any(one is not self for _, one in here)
        return default_name(self._place, [key for key, one in here if one is self] if others else [])

    @property
    def store(self) -> str | ZooKeeper | None:
        """The store, as given to the App."""
        return self._store

    @overload
    def task(  # type: ignore[overload-overlap] # type checkers use the first overload that fits
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
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        priority: Priority | None = None,
        unique: Unique = "",
        keep_unique: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Duration | None = None,
        debounce_max: Duration | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
        uses: Uses | None = None,
        uses_timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        cancel: CancelMode | None = None,
        tags: Iterable[str] | None = None,
        keep_arguments: int | None = None,
        keep_result: Duration | None = None,
        ignore_result: bool = False,
        middleware: Iterable[Middleware] = (),
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
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        priority: Priority | None = None,
        unique: Unique = "",
        keep_unique: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Duration | None = None,
        debounce_max: Duration | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
        uses: Uses | None = None,
        uses_timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        cancel: CancelMode | None = None,
        tags: Iterable[str] | None = None,
        keep_arguments: int | None = None,
        keep_result: Duration | None = None,
        ignore_result: bool = False,
        middleware: Iterable[Middleware] = (),
    ) -> Any:
        """Define a task.

        Its name on the wire is ``name``, by default the function's ``__name__``. Plain functions run in threads or, with
        ``executor="process"``, in separate processes, which a timeout or cancel can kill; coroutines run on the worker's loop.

        ``concurrency`` limits how many of the task's jobs run at a time, and ``rate`` how many start in a period, on all nodes
        together. ``concurrency_per_key`` and ``rate_per_key`` limit the jobs of each ``concurrency_key``. The limits apply to all
        clients while workers with this task are connected; ``mainspring functions`` shows and overrides them. An App on
        ZooKeeper has no limits and keys.

        With ``uses``, such as ``{licences: 2, printers["colour"]: 1}``, a job does not start before it has all these slots of
        resources (`resource`), and has them until its attempt ends. ``current_job().resource(printers)`` says which.
        A job that has waited for ``uses_timeout`` since it was due fails for good, with an error that names what it lacked.

        ``unique``, ``on_conflict``, ``debounce`` and ``debounce_max`` are as of `Submission.options`.

        The server keeps the arguments of a job that has succeeded if they have at most ``keep_arguments`` bytes, by default
        1,024; 0 for none. Settings of the server may limit it.

        A job that has succeeded is deleted with its result after ``keep_result``, at least a second, in place of the server's
        ``--retention``. With ``ignore_result``, results are neither sent nor stored, and callers get None.

        ``middleware`` runs around the task's attempts, inside of that of `App.middleware`; the first is the outermost.

        The other options are defaults for the task's jobs; see ``Submission.options``. ``schedule_to_start``,
        ``schedule_to_close`` and ``cancel`` apply where a workflow submits the task as an activity. With a constant ``unique``,
        the task has one live job at a time; with a function that computes it from the arguments, one for each value.

        Raises UsageError if an option is wrong, the name is taken, or the App's store has no limits.
        """
        options = build_options(
            retry=retry,
            run_timeout=run_timeout,
            timeout=timeout,
            heartbeat=heartbeat,
            expires=expires,
            start_within=start_within,
            deadline=deadline,
            priority=priority,
            keep_unique=keep_unique,
            on_conflict=on_conflict,
            debounce=debounce,
            debounce_max=debounce_max,
            schedule_to_start=schedule_to_start,
            schedule_to_close=schedule_to_close,
            cancel=cancel,
            tags=tags,
        )
        rules = self._rules(
            options,
            unique,
            concurrency,
            concurrency_per_key,
            rate,
            rate_per_key,
            concurrency_key,
            uses,
            uses_timeout,
            keep_arguments,
            keep_result,
            ignore_result=ignore_result,
        )
        check_definition(name, executor)
        around = tuple(map(check_middleware, middleware))

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.task(call, name, executor, rules, around)

        return define(call) if call is not None else Define(define)

    def external(
        self,
        *,
        every: Duration,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        on_timeout: Literal["cancel", "leave"] = "cancel",
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        priority: Priority | None = None,
        unique: Unique = "",
        keep_unique: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Duration | None = None,
        debounce_max: Duration | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
        uses: Uses | None = None,
        tags: Iterable[str] | None = None,
        keep_arguments: int | None = None,
        keep_result: Duration | None = None,
        ignore_result: bool = False,
    ) -> DefineExternal:
        """Define work that runs in another system: a class with the coroutine methods ``submit``, ``status`` and ``cancel``.

        A worker submits the work under a key, and then looks at it once in each ``every``, from 0.1 s to a day. It holds no
        place of the worker meanwhile. The name on the wire is ``name``, by default that of the class. A job of the function
        NAME.cancel calls ``cancel`` if the job ends before the work does.

        Without a report of its end within ``timeout``, over all workers that look at it, an attempt has failed. With
        ``on_timeout="cancel"`` the work is cancelled, and with ``"leave"`` it goes on unwatched.

        ``retry`` decides about attempts after ``Failed`` and after errors of ``submit``; errors of ``status`` are no end of the
        work. The other options are those of a task (`task`).

        Raises UsageError if an option is wrong, or the App's store has no limits; the decorator does for other classes.
        """
        options = build_options(
            retry=retry,
            timeout=timeout,
            start_within=start_within,
            deadline=deadline,
            priority=priority,
            keep_unique=keep_unique,
            on_conflict=on_conflict,
            debounce=debounce,
            debounce_max=debounce_max,
            tags=tags,
        )
        self._check({"external": True})
        rules = self._rules(
            options,
            unique,
            concurrency,
            concurrency_per_key,
            rate,
            rate_per_key,
            concurrency_key,
            uses,
            None,
            keep_arguments,
            keep_result,
            ignore_result=ignore_result,
        )
        period = check_every(seconds(every, "every"))
        if on_timeout not in {"cancel", "leave"}:
            raise refusal("on_timeout", "'cancel' or 'leave'", on_timeout)
        check_definition(name, "thread")

        def define(given: Any) -> Any:
            return self._definitions.external(given, name, period, rules, leaves=on_timeout == "leave")

        return DefineExternal(define)

    def _rules(
        self,
        options: Options,
        unique: Unique,
        concurrency: int | None,
        concurrency_per_key: int | None,
        rate: Rate | None,
        rate_per_key: Rate | None,
        key: Key,
        uses: Uses | None,
        uses_timeout: Duration | None,
        keep_arguments: int | None,
        keep_result: Duration | None,
        *,
        ignore_result: bool,
    ) -> JobRules:
        """Return the rules of the jobs of a task, or of work that runs elsewhere. Raises UsageError for wrong ones."""
        self._check(
            {
                "concurrency": concurrency,
                "concurrency_per_key": concurrency_per_key,
                "rate": rate,
                "rate_per_key": rate_per_key,
                "concurrency_key": key,
                "start_within": options.start_within,
                "deadline": options.deadline,
                "uses": uses,
            }
        )
        used, resources = uses_of(uses or {})
        limits = build_limits(concurrency, concurrency_per_key, rate, rate_per_key, used, uses_timeout)
        if keep_arguments is not None:
            check_whole(keep_arguments, "keep_arguments", 0, MAX_KEPT_ARGUMENTS)
        kept = Kept(keep_arguments, kept_seconds(keep_result), ignores_result=ignore_result)
        check_text_or_function(unique, "unique", check_unique)
        check_keep_unique(options.keep_unique, unique)
        check_rule(options, unique)
        check_text_or_function(key, "concurrency_key", check_key)
        return JobRules(options, unique, limits, key, kept, resources)

    def resource(
        self,
        name: str,
        managed: ManagedResource | None = None,
        /,
        *,
        total: int | None = None,
        items: Mapping[str, Iterable[str]] | None = None,
        max: int = 1,  # noqa: A002 - as commands have it
        min: int = 0,  # noqa: A002
        slots: int = 1,
        labels: Iterable[str] = (),
        idle: Duration | None = "8m",
        max_age: Duration | None = None,
        check: Duration | None = "1m",
        timeout: Duration | None = "1h",
        retry: Retry | None = None,
    ) -> Resource:
        """Define a resource that tasks share: ``total`` slots, named items with labels, or a class that makes instances.

        ``app.resource("licence", total=5)``; ``app.resource("printer", items={"p1": {"colour"}, "p2": set()})``. The workers of
        tasks that use it declare it; ``mainspring resources`` shows and overrides it.

        ``app.resource("spark", Spark(size=4), max=3, slots=2)`` has instances of a class (`mainspring.Resource`). Mainspring
        creates one when a job waits for its slots, up to ``max``, and keeps ``min``. It releases one that nobody holds or waits
        for and that was last used ``idle`` ago, and after ``max_age`` one that nobody holds. None: never. Workers with the class
        run the jobs that do so: ``spark.create``, ``spark.check`` every ``check``, and ``spark.release``. An attempt of them may
        last for ``timeout``; ``retry`` says when the next one follows. Instances have ``labels``, and those of the fields of the
        class: ``uses={spark.where(size=4): 1}``.

        Raises UsageError if it is invalid, the name is taken, or the App's store has no limits.
        """
        self._check({"uses": name})
        definition = None
        if managed is not None:
            given: object = managed
            if not isinstance(given, ManagedResource):
                raise refusal(
                    "the class of a resource", "an object of a class with the base mainspring.Resource", given
                )
            definition = build_managed(managed, max, min, slots, labels, idle, max_age, check, timeout, retry)
        resource = build_resource(name, total, items, definition)
        if name in self._resources:
            raise UsageError(f"the App has a resource with the name {name!r} already")
        if definition is not None:
            self._definitions.steps(resource)
        self._resources[name] = resource
        self.registry.resources.append(resource)
        return resource

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
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        priority: Priority | None = None,
        tags: Iterable[str] | None = None,
    ) -> Schedule:
        """Define a task with a schedule: give ``cron``, ``every``, ``at`` or ``parent``.

        - ``cron``: an expression of five fields (minute, hour, day, month, day of the week), of six with the seconds first, or
          a name such as ``@daily``; in the time zone ``timezone``.
        - ``every``: an interval.
        - ``at``: one time.
        - ``parent``: run when the parent has succeeded; with several parents, when all have.

        ``start`` and ``end`` bound the times. ``exclude`` names days on which the schedule does not run. ``jitter`` delays each
        job by a random time up to this. ``misfire`` is the policy for times that were missed while no node ran, ``overlap`` the
        policy for a time while an earlier run is not finished. With ``wait_for_children``, a run is finished when its children's
        runs are. ``args`` are the task's arguments: a sequence, or a dict of keyword arguments. ``name`` also names the schedule.
        ``unique`` and the other options are as for ``task``.

        The decorator also accepts an existing task or a workflow: it then defines only the schedule. Options that are not given
        here come from the task.

        The workers of the App create, change and remove its schedules in the store when they start. In the task,
        ``current_job().fire_time`` is the job's time.

        Raises UsageError for a wrong option. The returned decorator raises it too, and TypeError and PayloadError if ``args`` do
        not fit the function.
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
            start_within=start_within,
            deadline=deadline,
            priority=priority,
            tags=tags,
        )
        self._check({"start_within": start_within, "deadline": deadline})
        check_definition(name, executor)
        check_arguments(args)
        if unique is not None:
            check_text_or_function(unique, "unique", check_unique)

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.scheduled(call, name, executor, options, unique, timing, args)

        return Schedule(define)

    def on(
        self,
        *types: str,
        function: EventFunctions = (),
        tag: str | Sequence[str] = (),
        everywhere: bool = False,
        name: str | None = None,
        executor: Literal["thread", "process"] = "thread",
        retry: Retry | None = None,
        run_timeout: Duration | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        priority: Priority | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
        tags: Iterable[str] | None = None,
        keep_arguments: int | None = None,
        keep_result: Duration | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> Define:
        """Define a listener: a task that runs for each event of some types, such as ``job.failed`` or ``run.*``.

        The function takes one argument, an `Event`. Each event is delivered as a job of the function, exactly one, which runs
        until it has succeeded or its attempts are used up: it may run more than once, as every job. Deliveries about the same job
        run one after the other, in the order of their events.

        ``function`` chooses events about some functions or workflows: tasks, names or patterns such as ``pay*``. ``tag`` chooses
        those about jobs, runs and schedules that have all of these tags. A listener gets the events of the App's namespace, and
        those of all namespaces with ``everywhere``, also the ones that belong to none, such as about nodes. It gets none about
        its own function.

        The workers of the App create, change and remove its listeners in the store when they start. A new listener gets the
        events from then on. ``retry`` is by default ``Retry()``, with five attempts. The other options are as for ``task``.

        Raises UsageError for a wrong option or an unknown type, and the decorator does for a function that takes something else.
        """
        self._check({"listener": True})
        chosen = build_filter(types, function, tag, everywhere)
        options = build_options(
            retry=Retry() if retry is None else retry,
            run_timeout=run_timeout,
            timeout=timeout,
            heartbeat=heartbeat,
            priority=priority,
            tags=tags,
        )
        self._check({"concurrency": concurrency, "rate": rate})
        limits = build_limits(concurrency, None, rate, None)
        if keep_arguments is not None:
            check_whole(keep_arguments, "keep_arguments", 0, MAX_KEPT_ARGUMENTS)
        kept = Kept(keep_arguments, kept_seconds(keep_result))
        check_definition(name, executor)
        around = tuple(map(check_middleware, middleware))

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.listener(
                call, name, executor, JobRules(options, limits=limits, kept=kept), around, chosen
            )

        return Define(define)

    @overload
    def workflow(self, call: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, call: Callable[[], RunsWorkflow[P, R]], /) -> ClassWorkflow[P, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        timeout: Duration | None = None,
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        park_on: Sequence[type[BaseException]] = PARK_ON,
        retry: Retry | None = None,
        priority: Priority | None = None,
        id: Unique | None = None,
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
        middleware: None = None,
    ) -> DefineWorkflow: ...
    def workflow(
        self,
        call: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        timeout: Duration | None = None,
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        park_on: Sequence[type[BaseException]] = PARK_ON,
        retry: Retry | None = None,
        priority: Priority | None = None,
        id: Unique | None = None,  # noqa: A002 - the option's name everywhere
        concurrency: int | None = None,
        concurrency_per_key: int | None = None,
        rate: Rate | None = None,
        rate_per_key: Rate | None = None,
        concurrency_key: Key = "",
        middleware: None = None,
    ) -> Any:
        """Define a workflow: a coroutine function, or a class with ``async def run``, whose runs survive the ends of processes.

        Each run of a class has an object of its own, which is created without arguments. Methods of the class that are marked, as
        with ``@workflow.signal``, are handlers of the run.

        Its name on the wire is ``name``, by default the ``__name__`` of the function or class. A run keeps the ``version`` with
        which it was started. ``timeout`` limits a whole run, to at most 366 days, which is also the default. Errors of
        ``park_on`` that leave the function park the run until other code is there; other errors fail it.

        With ``retry``, a run that has failed is begun again after a delay, with the same arguments and all its signals, under the
        same handle. ``timeout`` limits all attempts together.

        ``priority``, ``id``, ``start_within`` and ``deadline`` are defaults for the runs; see ``Workflow.options``.

        ``concurrency`` limits how many runs of the workflow are open at a time, in all versions and on all nodes together, and
        ``rate`` how many begin in a period. ``concurrency_per_key`` and ``rate_per_key`` limit the runs of each
        ``concurrency_key``. A start without a place waits, with its signals, in the order of priorities and starts. A run that
        continues as new keeps its place.

        There is no ``middleware`` for workflows: it runs around their tasks and local steps.

        Raises UsageError if an option is wrong, the name is taken, or the App's store has no workflows.
        """
        if middleware is not None:
            raise UsageError(NO_MIDDLEWARE_FOR_WORKFLOWS)
        self._check({"workflow": True})
        check_definition(name, "thread")
        limit = None if timeout is None else run_limit(timeout)
        errors = check_park_on(park_on)
        options = build_options(priority=priority, start_within=start_within, deadline=deadline)
        check_retry(retry)
        rules = JobRules(
            options,
            "" if id is None else workflow_id(id),
            build_limits(concurrency, concurrency_per_key, rate, rate_per_key),
            check_text_or_function(concurrency_key, "concurrency_key", check_key),
        )

        def define(call: Callable[..., Any]) -> Any:
            return self._definitions.workflow(call, name, version, limit, errors, rules, retry)

        return define(call) if call is not None else DefineWorkflow(define)

    @overload
    def signal(self, name: str, kind: type[T], /) -> Channel[T]: ...
    @overload
    def signal(self, name: str, kind: Any = Any, /) -> Channel[Any]: ...
    def signal(self, name: str, kind: Any = Any, /) -> Channel[Any]:
        """Declare a signal: a channel with values of a type, from programs to runs of workflows.

        Raises UsageError for an invalid name, and for a type that cannot be read from JSON.
        """
        from mainspring.workflow_code.channels import Channel  # noqa: PLC0415 - with the code that runs workflows

        channel: Channel[Any] = Channel(name, kind)
        if channel.unresolved is not None:  # only then: code may declare a signal wherever it receives it
            self.registry.signals.append(channel.unresolved)
        return channel

    def middleware(self, call: M, /) -> M:
        """Run a generator function around each attempt of the App's tasks and of local steps of workflows.

        It gets the job, and yields once: there the function runs, and ``yield`` returns its result, or raises its error, that of
        its arguments or that of its result. It may raise another error, or Snooze, as the task may. It cannot change the result,
        and an error that it catches without raising any remains the outcome. Plain and asynchronous generators go around
        functions of all executors; asynchronous ones run on the worker's loop. The first one is the outermost.

        Raises UsageError for other values, such as a workflow.
        """
        self.registry.middleware.append(check_middleware(call))
        return call

    @overload
    def on_worker_start(self, call: H, /) -> H: ...
    @overload
    def on_worker_start(self, /, *, in_task_processes: bool = True) -> Callable[[H], H]: ...
    def on_worker_start(self, call: Any = None, /, *, in_task_processes: bool = True) -> Any:
        """Call a function without parameters when a process that runs tasks starts, before its first job.

        These are each worker process and, with ``in_task_processes``, each process of ``executor="process"``. Coroutine functions
        run on the worker's loop, plain ones in a thread. The part of a generator after its ``yield`` runs at the end of the
        process. An error ends the process with a message.

        Raises UsageError for other values.
        """
        return self._hook(call, "on_worker_start", in_task_processes)

    @overload
    def on_worker_stop(self, call: H, /) -> H: ...
    @overload
    def on_worker_stop(self, /, *, in_task_processes: bool = True) -> Callable[[H], H]: ...
    def on_worker_stop(self, call: Any = None, /, *, in_task_processes: bool = True) -> Any:
        """Call a function without parameters when such a process ends, after its last job; the last one registered is the first.

        It runs in every end but a kill, also when a function of ``on_worker_start`` has failed. It has 10 s. Errors are logged.

        Raises UsageError for other values.
        """
        return self._hook(call, "on_worker_stop", in_task_processes, at_stop=True)

    def _hook(self, call: Any, name: str, in_task_processes: bool, *, at_stop: bool = False) -> Any:
        def add(call: Any) -> Any:
            self.registry.hooks.append(Hook(check_hook(call, name, at_stop=at_stop), at_stop, in_task_processes))
            return call

        return add if call is None else add(call)

    @contextmanager
    def override(self, provider: Callable[..., Any], other: Callable[..., Any], /) -> Iterator[None]:
        """Use another provider in place of one, for the jobs that begin in this process in this block: for tests.

        Raises UsageError if one of them cannot be a provider, or if the other one needs what it replaces.
        """
        check_provider(provider)
        check_provider(other)
        replaced = self.registry.replaced
        others = {**replaced, provider: other}
        check_needs("override", {"": Provided(provider, "job")}, others)
        for function in self.registry:
            check_needs(function.name, function.signature.provided, others)
        before = replaced.get(provider)
        replaced[provider] = other
        try:
            yield
        finally:
            if before is None:
                del replaced[provider]
            else:
                replaced[provider] = before

    def include(self, *modules: str) -> None:
        """Let workers import more modules, which define tasks on this App: ``app.include("shop.tasks", "shop.mail")``.

        A package is imported with all its modules and subpackages. This method imports nothing, so that the modules can import
        the App's module. Workers, the processes of ``executor="process"`` and ``in_memory`` import them, with ``load_tasks``. A
        program that submits a task imports the task's module itself.

        Raises UsageError for text that is not the full name of a module.
        """
        for module in modules:
            given: object = module
            if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
                raise UsageError(f"{given!r} is not a module's name: give the full name, such as shop.tasks")
            if module not in self._included:
                self._included.append(module)

    def load_tasks(self) -> None:
        """Import the modules of ``include`` that are not imported yet.

        Raises SettingsError for a module that does not exist or whose import fails, with the cause chained.
        """
        if not self._included:
            return
        from mainspring.worker.selector import import_included  # noqa: PLC0415 - for workers only

        for module in self._included:  # the list grows if one of them includes others
            import_included(module)

    def worker(
        self,
        settings: WorkerSettings | None = None,
        *,
        servers: Iterable[Address] | None = None,
        selector: str | None = None,
    ) -> Worker:
        """Return a worker for the App's tasks on all of its servers; run it on an event loop.

        ``selector`` (``FILE.py[:name]`` or ``module[:name]``) names the App for processes of ``executor="process"``.

        Raises SettingsError if a module that the App includes cannot be imported, or if the annotations of a function cannot be
        used.
        """
        # Loaded here: a program that only submits needs no worker.
        from mainspring.worker.link import connector  # noqa: PLC0415
        from mainspring.worker.runtime import Worker  # noqa: PLC0415
        from mainspring.worker.selector import absolute  # noqa: PLC0415

        self.load_tasks()
        check_annotations(self.registry)
        check_workflows(self.registry)
        if servers is None:
            addresses, tls, *_ = self.connections.resolve()  # before a task can change the environment
        else:
            addresses, tls = tuple(servers), self._tls
        connectors = {str(address): connector(address, tls) for address in addresses}
        return Worker(
            self.registry,
            connectors,
            settings,
            selector=None if selector is None else absolute(selector),
            token=token_of_environment(),
            namespace=self.namespace,
        )


def _globals_of_creator(app: App) -> Mapping[str, Any]:
    """Return the globals of the module that creates an App, from inside of its ``__init__``."""
    frame = inspect.currentframe()
    while (frame := frame and frame.f_back) is not None:
        code = frame.f_code
        if not (code.co_name == "__init__" and code.co_varnames and frame.f_locals.get(code.co_varnames[0]) is app):
            return frame.f_globals
    return {}

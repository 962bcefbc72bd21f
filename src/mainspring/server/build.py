"""Builds a node on the engine of its store: its parts, its API and its metrics. Nothing else constructs them.

The credentials of a node are in its store or in memory (`build_access`). A store may keep operations on many jobs (`build_bulk`).
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from mainspring.access.caller import Refusals
from mainspring.access.proxy import HostNames
from mainspring.access.service import AUDIT_RETENTION, AccessService
from mainspring.api.handlers.access import AccessCalls
from mainspring.api.handlers.completions import CompletionCalls
from mainspring.api.handlers.events import EventCalls
from mainspring.api.handlers.fires import FireCalls
from mainspring.api.handlers.functions import Acknowledgements, DeadLetters, FunctionCalls
from mainspring.api.handlers.grants import FunctionGrants, RunGrants, ScheduleGrants
from mainspring.api.handlers.job_records import JobDataCalls, RecordCalls
from mainspring.api.handlers.jobs import JobCalls, JobChangeCalls, JobStreams
from mainspring.api.handlers.listeners import ListenerCalls, payloads
from mainspring.api.handlers.logs import LogCalls
from mainspring.api.handlers.namespaces import NamespaceCalls, SeriesCalls
from mainspring.api.handlers.nodes import NodeCalls, SingleNodeCalls, StatusCalls, WorkerCalls
from mainspring.api.handlers.operations import BackfillCalls, OperationCalls, OperationStreams
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.resources import ResourceCalls
from mainspring.api.handlers.samples import LiveStreams, VersionStreams
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.handlers.streams import StreamCalls
from mainspring.api.handlers.submitting import SubmitCalls
from mainspring.api.handlers.values import ValueCalls
from mainspring.api.handlers.webhooks import WebhookCalls
from mainspring.api.handlers.webhooks import payloads as webhook_payloads
from mainspring.api.handlers.workflows import VersionCalls, WorkflowCalls
from mainspring.api.namespaces import StoreState
from mainspring.bulk.service import BulkNode, BulkService
from mainspring.clock import to_us
from mainspring.conflicts.service import ConflictService
from mainspring.deadlines.service import Deadlines
from mainspring.deadlines.store import Item
from mainspring.event_log.service import EventLog
from mainspring.events import FollowStreams, Hub, StreamsWritten
from mainspring.external.service import WorkService
from mainspring.faces.gearman.face import GearmanFace, GearmanSettings, KeyedSubmits
from mainspring.faces.gearman.peers import Peers
from mainspring.features import Feature
from mainspring.ids import Handles, NodeId
from mainspring.job_logs.service import SWEEP_INTERVAL, LogReaders, LogService
from mainspring.jobs.attempts import Recorder
from mainspring.jobs.service import JobService
from mainspring.jobs.tending import LIST_INTERVAL
from mainspring.jobs.user_data import ArgumentRules
from mainspring.log_limit import AttemptLog
from mainspring.namespaces import split
from mainspring.nodes import node_events
from mainspring.nodes.strategies import strategy
from mainspring.schedules.service import ScheduleService
from mainspring.server.engines import keeps_successors, keeps_works, run_limits, run_slice
from mainspring.server.fleet import ConnectedWorkers, Fleet, SharedEngine, StoreClock, deciders_of, node_row
from mainspring.server.log_writer import NO_WORKER_GRACE, FailedAttempts, Unserved
from mainspring.server.metrics import (
    Metrics,
    Oldest,
    OldestByNamespace,
    Status,
    delivery_measures,
    log_measures,
    own_log_measures,
    refused_places,
    set_aside_measures,
    workflow_measures,
)
from mainspring.server.node import Node, StoreWatch, Ticks
from mainspring.server.process import connection_limits
from mainspring.server.settings import TcpAddress
from mainspring.storage.agenda import FETCH_TIMES, FetchTimes
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads, SetAside
from mainspring.streams.service import StreamService
from mainspring.subscriptions.model import Target
from mainspring.subscriptions.service import Deliverer, Timer
from mainspring.subscriptions.webhooks import WebhookWorkers
from mainspring.values.service import SWEEP_INTERVAL as VALUES_SWEEP
from mainspring.values.service import ValueService, Waiters
from mainspring.version import version
from mainspring.webhooks.sending import Sender, default_context
from mainspring.webhooks.targets import Policy
from mainspring.wire.gearman_protocol import MAX_BODY
from mainspring.workflows.service import RootRuns, WorkflowService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.event_log.store import EventEngine
    from mainspring.events import AboutWaiters
    from mainspring.faces.web import Measure
    from mainspring.faces.web.gearmand_http import GearmandHttp
    from mainspring.nodes.model import NodeRow
    from mainspring.server.node import Shutdown
    from mainspring.server.settings import ServerSettings
    from mainspring.storage.engine import Engine
    from mainspring.workflows.decider_workers import DeciderRow


async def build_access(
    engine: Engine, commits: CommitQueue, reads: Reads, clock: Clock, *, retention: float = AUDIT_RETENTION
) -> AccessService:
    """Return the credentials of a store, with acts of the last ``retention`` seconds.

    If the store keeps none, the credentials are in the node's memory, and end with it.
    """
    if Feature.ACCESS not in engine.lacks:
        return AccessService(commits, reads, clock, shared=engine.shared, retention=retention)
    from mainspring.engines.memory.engine import MemoryEngine  # noqa: PLC0415 - other nodes do not need it

    loop = asyncio.get_running_loop()
    private = MemoryEngine()
    await private.open(NodeId("access"), loop.call_soon_threadsafe)
    commits = CommitQueue(private, loop.call_soon, loop.call_later)
    return AccessService(commits, Reads(private, loop.call_soon), clock, shared=False, lacks=engine.lacks)


def build_bulk(
    engine: Engine,
    service: JobService,
    commits: CommitQueue,
    reads: Reads,
    clock: Clock,
    access: AccessService,
    fleet: Fleet | None,
    *,
    retention: float,
    set_aside: SetAside,
) -> BulkService | None:
    """Return the node's part; None if the store keeps no operations. ``retention`` is in seconds."""
    if Feature.OPERATIONS in engine.lacks:
        return None
    node = BulkNode(
        commits, reads, clock, service.stored_changes, service.later, service.clients.cancel, access.current
    )

    def has_no_lease() -> bool:
        return fleet is not None and not fleet.lease_manager.lease_valid()

    return BulkService(
        node,
        lambda: service.table.next_id(),  # noqa: PLW0108 - the next term has another function
        lambda: service.term,
        has_no_lease,
        retention=retention,
        set_aside=set_aside,
    )


@dataclass(frozen=True, slots=True)
class Built:
    """A started node with its API and its metrics."""

    node: Node
    api: Api
    metrics: Metrics
    access: AccessService
    refusals: Refusals
    """The places that were refused."""
    clock: Clock
    """Its wall time is that of the store."""


async def open_node(
    settings: ServerSettings,
    engine: Engine,
    clock: Clock,
    shutdown: Shutdown,
    *,
    address: str = "",
    fetching: FetchTimes = FETCH_TIMES,
) -> Built:
    """Build all parts of a node, open its store, and start it.

    ``address`` is the address of its Gearman port that other nodes show. ``fetching`` has the times between fetches of the alarms
    of workflows.
    """
    loop = asyncio.get_running_loop()
    started = clock.monotonic()
    jobs, limits, lacks = settings.jobs, settings.limits, engine.lacks
    ticks = Ticks(clock, loop.call_later)
    attempt_log = AttemptLog(loop.time, loop.call_later)
    handles = Handles()
    peers = Peers()
    workers = ConnectedWorkers(peers)
    watch = StoreWatch(clock.monotonic, broken=shutdown.fail)
    commits = CommitQueue(engine, loop.call_soon, loop.call_later, pressure=peers.pause, failing=watch.failed)
    reads = Reads(engine, loop.call_soon, failing=watch.read_failed)
    job_clock = clock
    fleet: Fleet | None = None
    interests = None if Feature.EVENTS in lacks else cast("EventEngine", engine).interests
    log_readers = LogReaders(clock.monotonic, cast("SharedEngine", engine).send if engine.shared else None)
    waiters = Waiters(
        clock.monotonic,
        lambda: service.term,
        (lambda message: None if fleet is None else fleet.tell_others(message)) if engine.shared else None,
        cast("SharedEngine", engine).send if engine.shared else None,
    )
    stream_readers = Waiters(
        clock.monotonic,
        lambda: service.term,
        (lambda message: None if fleet is None else fleet.tell_others(message)) if engine.shared else None,
        cast("SharedEngine", engine).send if engine.shared else None,
        FollowStreams,
        StreamsWritten,
    )

    def received(message: AboutWaiters) -> None:
        about_streams = isinstance(message, (FollowStreams, StreamsWritten))
        (stream_readers if about_streams else waiters).received(message)

    if engine.shared:
        job_clock = store_clock = StoreClock(clock)
        by = strategy(settings.fleet.strategy)
        fleet = Fleet(
            cast("SharedEngine", engine),
            handles,
            store_clock,
            settings,
            by,
            address,
            workers,
            log_readers.received,
            received,
            (lambda: None) if interests is None else interests.changed,
        )
    mine: Callable[[str], bool] = (lambda _: True) if fleet is None else fleet.first_in_line
    events = None
    if interests is not None:
        events = EventLog(
            commits,
            reads,
            job_clock,
            interests,
            loop.call_soon,
            first=None if fleet is None else fleet.first_in_line,
            announce=(lambda _: None) if fleet is None else fleet.tell_others,
            retention=jobs.event_retention,
            most=jobs.event_limit,
        )
    set_aside = SetAside(job_clock)
    runs = run_slice(engine)
    roots = None if runs is None else RootRuns(commits, job_clock, failed_builds=runs.cache.failed_builds)
    service = JobService(
        commits,
        reads,
        job_clock,
        handles,
        Hub(),
        earlier=ticks.earlier,
        shared=None if fleet is None else fleet.shared,
        lacks=lacks,
        round_robin=jobs.round_robin,
        wakeup=jobs.worker_wakeup,
        most_functions=limits.max_functions,
        lost_limit=jobs.job_retries,
        retention=jobs.retention,
        dead_retention=jobs.dead_retention,
        attempts_ended=(FailedAttempts(attempt_log, handles, clock.wall).ended,),
        roots=roots,
        prefers=None if roots is None else roots.prefers,
        arguments=ArgumentRules(jobs.keep_arguments, jobs.redact),
        set_aside=set_aside,
        first=None if fleet is None else fleet.first_in_line,
        dated=lambda rows: deadlines.written((Item(row.job, row.kind, row.schedule), row.due_us) for row in rows),
    )
    deadlines = Deadlines(
        commits,
        job_clock,
        service.timers,
        first=None if fleet is None else fleet.first_in_line,
        paused=lambda: service.dispatch.paused or Feature.DEADLINES in lacks,
    )
    workflows = None
    if runs is not None and roots is not None:
        workflows = WorkflowService(
            commits,
            reads,
            job_clock,
            service,
            roots,
            tail=runs.cache.tail,
            first=None if fleet is None else fleet.first_in_line,
            workers_elsewhere=(lambda _: 0) if fleet is None else lambda function: fleet.remote_load(function).workers,
            retention=settings.workflows.retention,
            limits=run_limits(settings.workflows, engine.max_value),
            step_secret=lambda: engine.step_secret,
            fetching=fetching,
            set_aside=set_aside,
            events=events,
        )
        runs.subscribe(workflows)
    schedules = ScheduleService(
        commits,
        reads,
        job_clock,
        service.timers,
        lambda: service.dispatch.paused,
        first=None if fleet is None else fleet.first_in_line,
        retention=jobs.dead_retention,
        fires=jobs.schedules,
        set_aside=set_aside,
    )
    if service.sharing is not None:
        service.sharing.add_reader(schedules.read_signs, schedules.awaits_times)
        service.sharing.add_reader(deadlines.read_signs, deadlines.awaits_times)
        if workflows is not None:
            service.sharing.add_reader(workflows.read_signs, workflows.awaits_times)
        if events is not None:
            service.sharing.add_reader(lambda signs: events.note_version(signs.interests))
    logs = None
    if Feature.LOGS not in lacks:
        logs = LogService(
            commits,
            reads,
            job_clock,
            service.later,
            log_readers,
            lambda: service.term,
            retention=jobs.log_retention,
            sweep_interval=max(SWEEP_INTERVAL, settings.fleet.rest),
            is_held=lambda job_id: service.table.find(job_id) is not None,
            root_of=(lambda run: run) if runs is None else runs.cache.root_of,
            type_of=(lambda _: None) if runs is None else runs.cache.type_of,
        )
    values = None
    if Feature.VALUES not in lacks:
        values = ValueService(
            commits,
            reads,
            job_clock,
            service.later,
            waiters,
            lambda: service.term,
            is_shared=engine.shared,
            mine=mine,
            sweep_interval=max(VALUES_SWEEP, settings.fleet.rest),
            root_of=(lambda run: run) if runs is None else runs.cache.root_of,
        )
    streams = None
    if Feature.STREAMS not in lacks:
        streams = StreamService(
            commits,
            reads,
            job_clock,
            stream_readers,
            lambda: service.term,
            mine=mine if engine.shared else None,
            sweep_interval=max(VALUES_SWEEP, settings.fleet.rest),
            root_of=(lambda run: run) if runs is None else runs.cache.root_of,
        )
    deliverer = webhook_workers = None
    if events is not None:
        hooks = settings.webhooks
        payload_makers = {Target.LISTENER: payloads(handles), Target.WEBHOOK: webhook_payloads(handles, hooks.url)}
        deliverer = Deliverer(
            commits,
            reads,
            job_clock,
            events,
            lambda event, of: payload_makers[of.target](event, of),
            first=None if fleet is None else fleet.first_in_line,
            paused=lambda: service.dispatch.paused,
            timer=Timer(loop.time, loop.call_later),
        )
        events.subscribe_own(deliverer.look)
        events.subscribe_changes(deliverer.changed)
        policy = Policy(hooks.allow)
        webhook_workers = WebhookWorkers(
            deliverer,
            service,
            job_clock,
            Sender(policy),
            policy=policy,
            source=hooks.url,
            sends=hooks.sends,
            warm=default_context,
        )
    works = None
    if keeps_works(engine):
        works = WorkService(commits, reads, job_clock, service, first=None if fleet is None else fleet.first_in_line)
    conflicts = None
    if keeps_successors(engine):
        conflicts = ConflictService(commits, job_clock, service, first=None if fleet is None else fleet.first_in_line)
    opened = await engine.open(settings.name, loop.call_soon_threadsafe, service.lifecycle)
    handles.use_names(opened.nodes)
    service.begin(opened.term)

    access = await build_access(engine, commits, reads, job_clock, retention=jobs.audit_retention)
    status = Status(settings, service, peers, commits, schedules, clock, started, workflows, set_aside)
    if fleet is None:
        worker_calls = WorkerCalls(
            workers, settings.name, lambda: service.term, tuple, lambda _, __: None, access.record
        )
        started_us = to_us(clock.wall())

        def own_row() -> NodeRow:
            row = node_row(settings, service, 0, address=address, started_us=started_us)
            return replace(row, workers=tuple(workers.all()))

        nodes = SingleNodeCalls(own_row).handlers
    else:
        worker_calls = WorkerCalls(
            workers, settings.name, lambda: service.term, fleet.others, fleet.direct, access.record
        )
        nodes = NodeCalls(fleet.lease_manager, fleet.port, fleet.recover, access.record).handlers
    refusals = Refusals()
    job_calls = JobCalls(service, workflows, works)
    submits = SubmitCalls(service, largest=engine.max_value, conflicts=conflicts)
    changes = JobChangeCalls(service, submits, largest=engine.max_value)
    bulk = build_bulk(
        engine,
        service,
        commits,
        reads,
        job_clock,
        access,
        fleet,
        retention=settings.jobs.dead_retention,
        set_aside=set_aside,
    )
    schedule_calls = ScheduleGrants(ScheduleCalls(schedules, reads, handles, job_clock, lacks).handlers)
    log_calls = LogCalls(logs, service, refusals)
    value_calls = ValueCalls(values, service, refusals)
    stream_calls = StreamCalls(streams, service, refusals)
    event_calls = EventCalls(events, handles, job_clock, service.later, access.record, refusals)
    other_nodes: Callable[[], Sequence[NodeRow]] = tuple if fleet is None else fleet.others
    dead_letters = DeadLetters(service)
    acknowledgements = Acknowledgements(access, service, reads, job_clock)
    namespace_calls = NamespaceCalls(
        service,
        reads,
        job_clock,
        other_nodes,
        OldestByNamespace(service.roster.functions, reads if Feature.LINES not in lacks else None, job_clock).of,
        dead_letters,
        acknowledged=acknowledgements,
        store=lambda: StoreState(settings.store.engine, watch.ready(commits)),
        subscriptions=tuple if deliverer is None else deliverer.stored,
    )
    api = Api(
        AccessCalls(
            access,
            job_clock.wall,
            lambda: {split(queue.name)[0] for queue in service.roster.functions()},
            lacks=lacks,
            server=address,
        ).handlers,
        job_calls.handlers,
        log_calls.handlers,
        value_calls.handlers,
        stream_calls.handlers,
        event_calls.handlers,
        changes.handlers,
        JobDataCalls(service, largest=engine.max_value).handlers,
        RecordCalls(service).handlers,
        FunctionGrants(FunctionCalls(service, dead_letters, other_nodes).handlers).handlers,
        acknowledgements.handlers,
        ResourceCalls(service, refusals).handlers,
        CompletionCalls(service, largest=engine.max_value).handlers,
        SeriesCalls(reads, handles, job_clock).handlers,
        submits.handlers,
        worker_calls.handlers,
        StatusCalls(service, status.read).handlers,
        namespace_calls.handlers,
        FireCalls(schedules, reads, handles, job_clock).handlers,
        schedule_calls.handlers,
        ListenerCalls(deliverer, reads, schedules.deploy).handlers,
        WebhookCalls(deliverer, webhook_workers, service, reads, access.record, bulk).handlers,
        nodes,
        refused=access.refused if Feature.ACCESS not in lacks else lambda _: None,
        enter=service.namespace_gate.enter,
        lacks=lacks,
        shares=service.loop_shares,
    )
    api.add_objects(job_calls.objects)
    api.add_objects(schedule_calls.objects)
    if bulk is not None:
        operations = OperationCalls(bulk, service, job_calls.find_run)
        api.add(operations.handlers)
        api.add(BackfillCalls(bulk, schedules, reads).handlers)
        api.add_objects(operations.objects)
        api.add_streams(OperationStreams(operations, service).followers)
    if workflows is not None:
        calls = WorkflowCalls(workflows, service, job_calls, submits, workflows.limits)
        of_node = workflows.workers.rows

        def deciders(namespace: str) -> list[tuple[str, DeciderRow]]:
            """Return the workers of all nodes in the order of the nodes' terms: each node lists them in the same order."""
            found: list[tuple[int, str, list[DeciderRow]]]
            found = [(service.term, settings.name, list(of_node(namespace)))]
            found += [(row.term, row.name, list(deciders_of(row, namespace))) for row in other_nodes()]
            return [(node, one) for _, node, rows in sorted(found, key=itemgetter(0)) for one in rows]

        versions = VersionCalls(workflows.versions, deciders)
        runs_and_versions = RunGrants({**calls.handlers, **versions.handlers})
        api.add(runs_and_versions.handlers)
        api.add_objects(runs_and_versions.objects)
    api.add_streams(log_calls.followers)
    api.add_streams(value_calls.followers)
    api.add_streams(stream_calls.followers)
    api.add_streams(event_calls.followers)
    api.add_streams(JobStreams(service).followers)
    numbers = LiveStreams(service, namespace_calls.figures, worker_calls.number_in, other_nodes, namespace_calls.shown)
    api.add_streams(numbers.followers)
    api.add_streams(VersionStreams(service, api.answer_unrecorded).followers)

    def worker_lost(worker: str, namespace: str, jobs: int, why: str) -> None:
        if events is not None:
            events.record(node_events.worker_lost(worker, why, namespace=namespace, node=settings.name, jobs=jobs))

    face = GearmanFace(
        service,
        peers,
        _gearman_settings(settings, engine),
        api=api,
        job_calls=job_calls,
        shut_down=shutdown.stop,
        workflows=workflows,
        logs=logs,
        works=works,
        conflicts=conflicts,
        values=values,
        streams=streams,
        access=access,
        keyed_submits=KeyedSubmits(submits, access.replies, service),
        refusals=refusals,
        remote_load=fleet.remote_load if fleet is not None and settings.fleet.status else None,
        worker_lost=worker_lost,
    )
    oldest = Oldest(service.roster.functions, reads, job_clock)
    unserved = Unserved(
        service.roster.functions,
        service.registered,
        mine=mine,
        grace=NO_WORKER_GRACE if fleet is None else NO_WORKER_GRACE + settings.fleet.beat,
    )
    checks: list[Callable[[float], None]] = [unserved.check, access.tick]
    if Feature.LIMITS not in lacks:
        checks.append(service.tending(mine, max(LIST_INTERVAL, settings.fleet.rest)).check)
    last_writes: list[Callable[[], None]] = []
    if Feature.SERIES not in lacks:
        recorder = Recorder(
            service.attempts,
            commits,
            job_clock,
            lambda: service.term,
            service.dispatch.queues.get,
            service.dispatch.queues.values,
            mine,
        )
        checks.append(lambda _: recorder.tick())
        last_writes.append(recorder.write)
    if conflicts is not None:
        checks.append(conflicts.check)
    if logs is not None:
        checks.append(logs.check)
    if values is not None:
        checks.append(values.check)
    if streams is not None:
        checks.append(streams.check)
    if settings.listen.http is not None and Feature.LINES not in lacks:
        checks.append(lambda _: oldest.refresh())
    node = Node(
        settings,
        engine,
        clock,
        commits,
        reads,
        service,
        face,
        schedules=schedules,
        deadlines=deadlines,
        workflows=workflows,
        bulk=bulk,
        events=events,
        deliverer=deliverer,
        webhooks=webhook_workers,
        works=works,
        fleet=fleet,
        shutdown=shutdown,
        ticks=ticks,
        watch=watch,
        attempt_log=attempt_log,
        checks=checks,
        last_writes=last_writes,
    )
    others: list[Callable[[], Iterable[Measure]]] = [
        watch.metrics,
        partial(refused_places, refusals),
        own_log_measures,
        partial(set_aside_measures, set_aside),
    ]
    if fleet is not None:
        others.append(fleet.metrics)
    if workflows is not None:
        others.append(partial(workflow_measures, workflows))
    if logs is not None:
        others.append(partial(log_measures, logs))
    if deliverer is not None:
        others.append(partial(delivery_measures, deliverer))
    metrics = Metrics(node.ready, service, peers, commits, oldest, others)
    await node.start(started)
    return Built(node, api, metrics, access, refusals, job_clock)


def _gearman_settings(settings: ServerSettings, engine: Engine) -> GearmanSettings:
    """Return the part of a node's settings that the Gearman face needs."""
    limits = settings.limits
    return GearmanSettings(
        # The face refuses bodies that no store accepts by their header. It has to read those that only this store
        # refuses: a result that is too large ends its job, and its client gets an error that explains the remedy.
        max_packet=min(limits.max_packet, max(engine.max_value, MAX_BODY)),
        max_value=engine.max_value,
        queued_jobs=limits.queued_jobs,
        queued_bytes=limits.queued_bytes,
        exceptions=settings.jobs.exceptions,
        version=settings.banner or version(),
        verbosity=settings.verbosity or settings.log.level.upper(),
        unsent_bytes=limits.unsent_bytes,
        connections=connection_limits(settings).gearman,
        idle_timeout=limits.idle_timeout,
        packet_timeout=limits.packet_timeout,
        require_token=settings.listen.require_token,
        allow_shutdown=settings.listen.allow_shutdown,
    )


def gearmand_http(built: Built) -> GearmandHttp:
    """Return the server of gearmand's HTTP protocol for a node."""
    from mainspring.faces.web.gearmand_http import GearmandHttp  # noqa: PLC0415 - few nodes serve it

    limits, listen = built.node.settings.limits, built.node.settings.listen
    own = [listen.gearman_http.host] if isinstance(listen.gearman_http, TcpAddress) else []
    return GearmandHttp(
        built.api,
        hosts=HostNames([*listen.http_hosts, socket.gethostname(), *own]),
        banner=built.node.face.settings.version,
        max_payload=limits.max_packet,
        read_timeout=limits.packet_timeout,
    )

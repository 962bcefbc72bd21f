"""Makes the engine of a store, and registers its slices. Nothing else does so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from mainspring.conflicts.unit import KIND as CONFLICTS
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.slice_transaction import (
    SqliteBulkSlice,
    SqliteConflictSlice,
    SqliteScheduleSlice,
    SqliteSubscriptionSlice,
    SqliteWorkSlice,
)
from mainspring.engines.sqlite.store_file import Update, migrate_file
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.errors import SettingsError
from mainspring.external.unit import KIND as WORKS
from mainspring.features import Feature
from mainspring.nodes.model import LEASE
from mainspring.server.settings import WorkflowSettings, parse_store
from mainspring.stores import parse_zookeeper
from mainspring.workflows.model import Limits
from mainspring.workflows.unit import KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.nodes.model import Cluster
    from mainspring.server.settings import StoreSettings
    from mainspring.storage.engine import Engine
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.reading import RunCache


@contextlib.contextmanager
def driver_for(settings: StoreSettings) -> Iterator[None]:
    """Turn a failed import of an engine into a SettingsError that names the missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{settings.shown} needs a driver that is not installed: pip install 'mainspring[{settings.engine}]' ({error})"
        ) from error


def build_engine(
    settings: StoreSettings, *, lease: float = LEASE, rest: float = 0.0, workflows: WorkflowSettings | None = None
) -> Engine:
    """Return the engine for a store's settings, with its slices, not open yet.

    A session with a ZooKeeper ensemble lasts as long as the lease, in seconds. ``rest``: the seconds for which a node without
    work reads nothing. ``workflows`` limits runs.
    """
    workflows = workflows or WorkflowSettings()
    # Imported here: a node needs the modules of one engine, and only users of a store on a server have its driver.
    if settings.engine == "memory":
        from mainspring.engines.memory.bulk import MemoryBulkSlice  # noqa: PLC0415
        from mainspring.engines.memory.conflicts import MemoryConflictSlice  # noqa: PLC0415
        from mainspring.engines.memory.engine import MemoryEngine  # noqa: PLC0415
        from mainspring.engines.memory.external import MemoryWorkSlice  # noqa: PLC0415
        from mainspring.engines.memory.schedules import MemoryScheduleSlice  # noqa: PLC0415
        from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice  # noqa: PLC0415
        from mainspring.engines.memory.workflows import MemoryWorkflowSlice  # noqa: PLC0415

        limits = run_limits(workflows, MemoryEngine.max_value)
        slices: list[Any] = [
            MemoryBulkSlice(),
            MemoryWorkflowSlice(limits=limits),
            MemoryScheduleSlice(),
            MemorySubscriptionSlice(),
            MemoryWorkSlice(),
            MemoryConflictSlice(),
        ]
        return MemoryEngine(slices)
    if settings.engine == "postgres":
        with driver_for(settings):
            from mainspring.engines.postgres.changing import PostgresBulkSlice  # noqa: PLC0415
            from mainspring.engines.postgres.conflicts import PostgresConflictSlice  # noqa: PLC0415
            from mainspring.engines.postgres.engine import PostgresEngine  # noqa: PLC0415
            from mainspring.engines.postgres.external import PostgresWorkSlice  # noqa: PLC0415
            from mainspring.engines.postgres.schedules import PostgresScheduleSlice  # noqa: PLC0415
            from mainspring.engines.postgres.subscriptions import PostgresSubscriptionSlice  # noqa: PLC0415
            from mainspring.engines.postgres.workflows import PostgresWorkflowSlice  # noqa: PLC0415
        cluster = None if settings.cluster is None else _build_cluster(settings.cluster, lease)
        return PostgresEngine(
            settings.url,
            migrate=settings.migrate,
            rest=rest,
            cluster=cluster,
            slices=[
                PostgresBulkSlice(),
                PostgresWorkflowSlice(limits=run_limits(workflows, PostgresEngine.max_value)),
                PostgresScheduleSlice(),
                PostgresSubscriptionSlice(),
                PostgresWorkSlice(),
                PostgresConflictSlice(),
            ],
        )
    if settings.engine == "zookeeper":
        with driver_for(settings):
            from mainspring.engines.zookeeper.engine import ZookeeperEngine  # noqa: PLC0415
            from mainspring.engines.zookeeper.ensemble_client import KazooTree  # noqa: PLC0415
            from mainspring.engines.zookeeper.schedule_handlers import ZookeeperScheduleSlice  # noqa: PLC0415
        where = parse_zookeeper(settings.url)
        return ZookeeperEngine(
            lambda: KazooTree(where, lease, checks_versions=True), lease=lease, slices=[ZookeeperScheduleSlice()]
        )
    assert settings.path is not None
    return SqliteEngine(
        settings.path,
        synchronous=settings.synchronous,
        cache_bytes=settings.cache_bytes,
        update=Update(settings.migrate, settings.backup_before_migrate),
        slices=[
            SqliteBulkSlice(),
            SqliteWorkflowSlice(limits=run_limits(workflows, SqliteEngine.max_value)),
            SqliteScheduleSlice(),
            SqliteSubscriptionSlice(),
            SqliteWorkSlice(),
            SqliteConflictSlice(),
        ],
    )


def run_limits(settings: WorkflowSettings, largest: int) -> Limits:
    """Return the limits of runs; ``largest``: the bytes of a payload that the store takes."""
    return Limits(
        timeout=settings.timeout,
        events=settings.events,
        reserved=min(1_000, settings.events // 4),
        warn_events=settings.events * 2 // 5,
        open_activities=settings.open,
        open_timers=settings.open,
        open_children=settings.open,
        largest=largest,
    )


def _build_cluster(url: str, lease: float) -> Cluster:
    """Return the port to a cluster: a node is dead ``lease`` seconds after its last message.

    Raises SettingsError for a URL that is invalid.
    """
    with driver_for(parse_store(url)):
        from mainspring.engines.zookeeper.cluster import ZookeeperCluster  # noqa: PLC0415
        from mainspring.engines.zookeeper.ensemble_client import KazooTree  # noqa: PLC0415
    return ZookeeperCluster(KazooTree(parse_zookeeper(url), lease))


async def migrate_store(settings: StoreSettings) -> list[int]:
    """Migrate a store's schema; return the numbers of the applied migrations. Raises StoreError."""
    if settings.engine == "postgres":
        with driver_for(settings):
            from mainspring.engines.postgres.engine import migrate_store as migrate_postgres  # noqa: PLC0415
        return await migrate_postgres(settings.url)
    if settings.engine == "zookeeper":
        with driver_for(settings):
            from mainspring.engines.zookeeper.engine import migrate_tree  # noqa: PLC0415
            from mainspring.engines.zookeeper.ensemble_client import KazooTree  # noqa: PLC0415
        return await migrate_tree(KazooTree(parse_zookeeper(settings.url), 10.0))
    assert settings.path is not None
    return migrate_file(settings.path, copied=settings.backup_before_migrate)


class RunSlice(Protocol):
    """The slice of workflows of an engine."""

    cache: RunCache

    def subscribe(self, observer: RunObserver) -> None:
        """Report the changes of each committed group to an observer."""


def run_slice(engine: Engine) -> RunSlice | None:
    """Return the slice of workflows of an engine; None if it has none."""
    slices = () if Feature.WORKFLOWS in engine.lacks else getattr(engine, "slices", ())
    return next((cast("RunSlice", one) for one in slices if one.kind == KIND), None)


def keeps_works(engine: Engine) -> bool:
    """Return whether an engine keeps work that runs elsewhere."""
    return Feature.EXTERNAL not in engine.lacks and any(one.kind == WORKS for one in getattr(engine, "slices", ()))


def keeps_successors(engine: Engine) -> bool:
    """Return whether an engine takes submits by a rule about the live job of their unique."""
    return Feature.CONFLICTS not in engine.lacks and any(one.kind == CONFLICTS for one in getattr(engine, "slices", ()))


async def grant_submit(settings: StoreSettings, role: str, namespaces: Sequence[str]) -> list[str]:
    """Let a role of PostgreSQL submit in its transactions in some namespaces; return the statements that were run.

    Raises StoreError and UsageError.
    """
    with driver_for(settings):
        from mainspring.engines.postgres import engine  # noqa: PLC0415
    return await engine.grant_submit(settings.url, role, namespaces)

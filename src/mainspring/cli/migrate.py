"""``mainspring migrate``: update a store's schema, and grant the right to submit in transactions."""

from __future__ import annotations

import asyncio
from typing import Annotated

from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import Json, option, plain
from mainspring.errors import UsageError
from mainspring.namespaces import DEFAULT
from mainspring.server.settings import DEFAULT_STORE, parse_store


def migrate(
    *,
    store: Annotated[
        str,
        option(
            "--store",
            "The store, such as postgresql://USER@HOST/DATABASE?schema=NAME, zookeeper://HOST:2181/CHROOT or sqlite:///FILE.",
            metavar="URL",
        ),
    ] = DEFAULT_STORE,
    backup_before_migrate: Annotated[
        bool,
        plain(
            "--backup-before-migrate",
            "Copy a SQLite store beside its file, as FILE.schema-N.backup, before its schema is updated.",
            negative="--no-backup-before-migrate",
        ),
    ] = True,
    grant_submit: Annotated[
        str | None,
        plain(
            "--grant-submit",
            "Let a role of PostgreSQL submit jobs in its transactions, and nothing else; print the statements that do it.",
            metavar="ROLE",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        plain(
            "--namespace",
            "A namespace that the role may submit in (repeatable), and in no others; '*' is all. Without it: default.",
            metavar="NAMESPACE",
            negative="",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Update the schema of a store, and print the applied migrations.

    A node updates the schema when it starts, unless --no-migrate is given. Use this command to choose the time yourself. Nodes
    of the previous version can run during the update, unless the release notes say otherwise. On ZooKeeper, the command creates
    the chroot and the permanent nodes of the tree.

    With --grant-submit it also gives a role of PostgreSQL the right to submit in transactions. Repeating it changes nothing.

    EXAMPLES
      mainspring migrate --store postgresql://mainspring@db.example/jobs
      mainspring migrate --store postgresql://mainspring@db.example/jobs --grant-submit web --namespace shop
      mainspring migrate --store zookeeper://zk1,zk2,zk3/jobs

    EXIT CODES
      0 up to date, 1 failed, 2 wrong usage
    """
    from mainspring.server import engines  # noqa: PLC0415 - all engines, which other commands do not need

    settings = parse_store(store, backup_before_migrate=backup_before_migrate)
    if settings.engine == "memory":
        raise UsageError("a store in memory has no schema to update: name a database with --store")
    if namespace and grant_submit is None:
        raise UsageError("--namespace restricts the role of --grant-submit: give that too")
    if grant_submit is not None and settings.engine != "postgres":
        raise UsageError(
            "--grant-submit is for a store on PostgreSQL: only there, users submit in their own transactions"
        )
    applied = asyncio.run(engines.migrate_store(settings))
    granted = (
        []
        if grant_submit is None
        else asyncio.run(engines.grant_submit(settings, grant_submit, namespace or [DEFAULT]))
    )
    if json:
        print_json({"store": settings.shown, "applied": applied} | ({"granted": granted} if granted else {}))
        return EXIT_DONE
    if applied:
        print(f"{settings.shown}: applied {', '.join(f'{number:04}' for number in applied)}", flush=True)
    else:
        print(f"{settings.shown}: up to date", flush=True)
    for statement in granted:
        print(f"{statement};", flush=True)
    return EXIT_DONE

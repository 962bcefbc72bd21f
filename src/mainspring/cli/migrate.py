"""``mainspring migrate``: update a store's schema."""

from __future__ import annotations

import asyncio
from typing import Annotated

from mainspring.cli.display import print_json
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import Json, option, plain
from mainspring.errors import UsageError
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
    json: Json = False,
) -> int:
    """Update the schema of a store, and print the applied migrations.

    A node updates the schema when it starts, unless --no-migrate is given. Use this command to choose the time yourself. Nodes
    of the previous version can run during the update, unless the release notes say otherwise. On ZooKeeper, the command creates
    the chroot and the permanent nodes of the tree.

    EXAMPLES
      mainspring migrate --store postgresql://mainspring@db.example/jobs
      mainspring migrate --store zookeeper://zk1,zk2,zk3/jobs

    EXIT CODES
      0 up to date, 1 failed, 2 wrong usage
    """
    from mainspring.server.engines import migrate_store  # noqa: PLC0415 - all engines, which other commands do not need

    settings = parse_store(store, backup_before_migrate=backup_before_migrate)
    if settings.engine == "memory":
        raise UsageError("a store in memory has no schema to update: name a database with --store")
    applied = asyncio.run(migrate_store(settings))
    if json:
        print_json({"store": settings.shown, "applied": applied})
    elif applied:
        print(f"{settings.shown}: applied {', '.join(f'{number:04}' for number in applied)}", flush=True)
    else:
        print(f"{settings.shown}: up to date", flush=True)
    return EXIT_DONE

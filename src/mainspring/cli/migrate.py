"""``mainspring migrate``: bring a store's schema up to date."""

from __future__ import annotations

import asyncio
from typing import Annotated

from mainspring.cli.display import print_json
from mainspring.cli.failures import DONE
from mainspring.cli.options import Json, option
from mainspring.errors import UsageError
from mainspring.server.build import migrate_store
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
    json: Json = False,
) -> int:
    """Bring the schema of a store up to date, and say what was done.

    Nodes do so themselves when they start, unless --no-migrate is given: this is for those who want to choose the time.
    Nodes of the version before may go on meanwhile, unless the release notes say otherwise. On ZooKeeper it makes the chroot
    and the nodes of the tree that are always there.

    EXAMPLES
      mainspring migrate --store postgresql://mainspring@db.example/jobs
      mainspring migrate --store zookeeper://zk1,zk2,zk3/jobs

    EXIT CODES
      0 up to date, 1 it could not be done, 2 wrong usage
    """
    settings = parse_store(store)
    if settings.engine == "memory":
        raise UsageError("a store in memory has no schema that outlives it: name a database with --store")
    applied = asyncio.run(migrate_store(settings))
    if json:
        print_json({"store": settings.shown, "applied": applied})
    elif applied:
        print(f"{settings.shown}: applied {', '.join(f'{number:04}' for number in applied)}", flush=True)
    else:
        print(f"{settings.shown}: up to date", flush=True)
    return DONE

"""``mainspring backup``: copy a store while a node uses it."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from mainspring.api.status import Show
from mainspring.cli.calls import call
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import LOCAL, ServerOptions, option, plain
from mainspring.engines.sqlite.copying import copy_store
from mainspring.engines.sqlite.opening import check_file
from mainspring.errors import ServerError, UsageError
from mainspring.quantities import format_size
from mainspring.server.settings import DEFAULT_STORE, parse_store


def backup(
    file: Annotated[Path, Parameter(help="The name of the copy. The file must not exist, except with --force.")],
    /,
    *,
    store: Annotated[
        str | None,
        option("--store", "The store to copy; by default the store of the server.", metavar="URL", show_default=False),
    ] = None,
    force: Annotated[bool, plain("--force", "Replace FILE if it exists.", negative="")] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Copy a SQLite store into a file, even while a node uses it.

    The copy has the state of the store at one moment. When the command returns, the copy is checked and on disk. You can open
    it as a store: mainspring serve --store sqlite:///COPY.

    The command refuses other stores. Back up a PostgreSQL store with the database's own tools, such as pg_dump, and a ZooKeeper
    store with the ensemble's snapshots and logs.

    EXAMPLES
      mainspring backup jobs-$(date +%F).db
      mainspring backup copy.db --store sqlite:////var/lib/mainspring/jobs.db
    """
    settings = parse_store(store or _store_of(server))
    if settings.engine == "postgres":
        raise UsageError(
            f"{settings.shown} is not a SQLite store: back it up with PostgreSQL's own tools, such as pg_dump"
        )
    if settings.engine == "zookeeper":
        raise UsageError(
            f"{settings.shown} is not a SQLite store: back it up with the snapshots and logs of the ensemble"
        )
    source = settings.path
    if source is None:
        raise UsageError(
            "a store in memory ends with its node and cannot be copied: run the node with --store sqlite:///FILE"
        )
    if not source.exists():
        raise UsageError(f"there is no store {source}: name the store to copy with --store")
    check_file(source)
    _check_target(file, source, force=force)
    size = copy_store(source, file, _show if sys.stderr.isatty() else None)
    print(f"{file}: {format_size(size)} of {source}", flush=True)
    return EXIT_DONE


def _check_target(file: Path, source: Path, *, force: bool) -> None:
    """Raise UsageError for a copy that would damage a store, or that cannot be created."""
    if file.is_dir():
        raise UsageError(f"{file} is a directory: name a file for the copy")
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} does not exist; create it first, or choose another directory")
    if file.exists() and file.samefile(source):
        raise UsageError(f"{file} is the store itself: choose another name for the copy")
    for end in ("-wal", "-journal"):
        log = file.with_name(f"{file.name}{end}")
        if log.exists():
            # SQLite would read it as the copy's own log, and write its content into the copy.
            raise UsageError(
                f"{log} belongs to a store of that name, which may be in use: choose another name, "
                "or remove that file if no server uses the store"
            )
    if file.exists() and not force:
        raise UsageError(f"{file} exists already: choose another name, or replace it with --force")


def _store_of(server: ServerOptions) -> str:
    """Return the URL of the server's store, or the default store if there is no server."""
    try:
        store = call(server.client(), Show(), timeout=5.0).get("store", DEFAULT_STORE)
    except (ServerError, TimeoutError):
        return DEFAULT_STORE
    if ":" not in store:
        raise UsageError("the token does not show where the server's store is: name it with --store")
    return str(store)


def _show(remaining: int, pages: int) -> None:
    sys.stderr.write(f"\r\x1b[K{100 * (pages - remaining) // pages if pages else 100} %")
    if not remaining:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()

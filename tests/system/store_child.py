"""A process with a store: commits groups of one job, prints a line for each, and ends with its input or an error.

``python store_child.py PATH GROUPS [largest file in bytes]``
"""

# ruff: noqa: T201 - the tests read its output
from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from tests.conformance.suite.driver import Store

from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.errors import StoreError


def main(path: str, groups: int, largest: int | None) -> int:
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    try:
        store = Store(lambda: SqliteEngine(Path(path)))
        print("open", store.term, flush=True)
        for _ in range(groups):
            print("stored", store.submitted(payload=os.urandom(10_000)).id, flush=True)
    except StoreError as error:
        print(type(error).__name__, error, flush=True)
        # End as a node does: without closing the store.
        return 3
    print("waiting", flush=True)
    sys.stdin.read()
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))

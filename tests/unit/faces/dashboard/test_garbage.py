"""Pages leave nothing for the garbage collector, which would stop the node while it frees the remains of many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from string import Formatter
from typing import TYPE_CHECKING, Any

from mainspring.faces.dashboard.pages import PAGES

from .a_browser import browsing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OURS = ("mainspring", "jinja2")


@contextlib.contextmanager
def garbage() -> Iterator[list[Any]]:
    """Yield a list that has the objects of ours that only the collector can free, once the block has ended."""
    found: list[Any] = []
    gc.collect()
    gc.freeze()  # else each collection passes over the modules of all tests; they stay frozen
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(one).__qualname__ for one in gc.garbage if type(one).__module__.partition(".")[0] in OURS]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def names_in(path: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(path) if name}


def test_pages_leave_no_garbage(tmp_path: Path) -> None:
    async def test() -> None:
        async with browsing(store=f"sqlite:///{tmp_path}/jobs.db") as (browser, _):
            handle = await browser.submit("resize")
            await browser.call("POST", "schedules", {"name": "nightly", "function": "resize", "cron": "0 3 * * *"})
            values = {"handle": handle, "function": "resize", "name": "nightly"}
            paths = [page.path.format_map(values) for page in PAGES if names_in(page.path) <= set(values)]
            # The first time compiles their templates. A refusal refers to its frames.
            shown = [path for path in paths if (await browser.open(path)).status == 200]
            assert {"/", "/jobs", "/functions", "/schedules", "/nodes", f"/jobs/{handle}"} <= set(shown)
            with garbage() as found:
                for path in shown:
                    await browser.open(path)
            assert not found

    asyncio.run(test())

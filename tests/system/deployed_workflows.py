"""Three versions of a program with the workflow `accounted_workflows.account`, for a rolling deploy.

The first one is the original. The second one patches it: steps become activities. The third one has the patched code, and beside
it version 2 of the workflow, which has no steps.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring import App, Retry, workflow

from .accounted_workflows import did

if TYPE_CHECKING:
    from collections.abc import Callable


def build(generation: int) -> App:
    """Return a version of the program."""
    app = App()
    note = app.signal("note", str)

    @app.task(retry=Retry(max_attempts=100, initial=0.01))
    async def work(run: str, place: str, before: str) -> str:
        return did(run, place, before)

    @app.task
    def look(run: str, place: str, before: str) -> str:
        return did(run, place, before)

    @app.task
    async def count(run: str, place: str, before: str) -> str:
        return did(run, place, before)

    async def follow(run: str, plan: list[str], has_activities: Callable[[], bool]) -> list[str]:
        tokens: list[str] = []
        last = ""
        try:
            for number, kind in enumerate(plan):
                place = str(number)
                match kind:
                    case "step":
                        last = await (work.submit if has_activities() else look.step)(run, place, last)
                    case "together":
                        last = await workflow.step(count, run, place, last, record="together")
                    case "activity":
                        last = await work.submit(run, place, last)
                    case "gather":
                        both = (work.submit(run, f"{place}a", last), work.submit(run, f"{place}b", last))
                        third = work.submit if has_activities() else look.step
                        last = ",".join(await asyncio.gather(*both, third(run, f"{place}c", last)))
                    case "sleep":
                        await workflow.sleep(0.02)
                    case "signal":
                        last = await note.receive()
                    case "wait":
                        await workflow.sleep(3600)
                tokens.append(last)
        except asyncio.CancelledError:
            await look.step(run, "end", last)
            raise
        return tokens

    @app.workflow
    async def account(run: str, plan: list[str]) -> list[str]:
        return await follow(run, plan, lambda: generation > 1 and workflow.patched("activities"))

    if generation > 2:

        @account.version("2")
        async def account_2(run: str, plan: list[str]) -> list[str]:
            return await follow(run, plan, lambda: True)

    return app


APPS = {f"v{generation}": build(generation) for generation in (1, 2, 3)}

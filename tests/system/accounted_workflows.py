"""A workflow that follows a plan, and whose executions are accounted for.

Each execution of a step or an activity writes a line to the file of executions, and returns a token that no other execution
returns. The next one gets this token, so its line shows which result the code has used.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from functools import cache

from mainspring import App, Retry, workflow

app = App()
note = app.signal("note", str)
_numbers = itertools.count(1)


@cache
def _file() -> int:
    return os.open(os.environ["WORKFLOW_EFFECTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def did(run: str, place: str, before: str) -> str:
    """Write a line to the disk; return its token."""
    at = time.monotonic()
    token = f"{os.getpid()}.{next(_numbers)}.{at:.6f}"
    line = json.dumps([run, place, before, token, at]) + "\n"
    os.write(_file(), line.encode())
    os.fdatasync(_file())
    return token


@app.task(retry=Retry(max_attempts=100, initial=0.01))
async def work(run: str, place: str, before: str) -> str:
    return did(run, place, before)


@app.task
def look(run: str, place: str, before: str) -> str:
    return did(run, place, before)


@app.task
async def count(run: str, place: str, before: str) -> str:
    return did(run, place, before)


CHILD = ["step", "signal", "activity"]
"""The plan of a child."""


@app.workflow
async def account(run: str, plan: list[str], done: list[str] | None = None) -> list[str]:
    """Follow a plan; return the token of each of its places. ``done``: those of the earlier runs of the chain."""
    tokens = done or []
    last = tokens[-1] if tokens else ""
    try:
        for number, kind in [*enumerate(plan)][len(tokens) :]:
            place = str(number)
            match kind:
                case "step":
                    last = await look.step(run, place, last)
                case "together":
                    last = await workflow.step(count, run, place, last, record="together")
                case "activity":
                    last = await work.submit(run, place, last)
                case "gather":
                    both = (work.submit(run, f"{place}a", last), work.submit(run, f"{place}b", last))
                    last = ",".join(await asyncio.gather(*both, look.step(run, f"{place}c", last)))
                case "sleep":
                    await workflow.sleep(0.02)
                case "signal":
                    last = await note.receive()
                case "child":
                    child = account.options(id=f"{run}.{place}").submit(f"{run}.{place}", CHILD)
                    await child.asignal(note, f"{run}.{place}:1")
                    last = (await child)[-1]
                case "again":
                    raise workflow.continue_as_new(run, plan, [*tokens, last])
                case "wait":
                    await workflow.sleep(3600)
            tokens.append(last)
    except asyncio.CancelledError:
        await look.step(run, "end", last)
        raise
    return tokens

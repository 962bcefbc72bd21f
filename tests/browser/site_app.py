"""Tasks, schedules and workflows whose work the pages show."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from mainspring import App, Event, Retry, current_job, workflow

app = App(name="shop")
approved = app.signal("approved", dict)


@app.task(retry=Retry(max_attempts=2, initial=0.05))
def resize(path: str) -> str:
    current_job().log.info("resizing %s", path)
    if path.startswith("broken"):
        raise ValueError(f"{path} is no picture")
    if path.startswith("strange"):
        raise type(path, (Exception,), {})(path)
    return path.upper()


@app.on("job.failed", function="resize")
def alert(event: Event) -> None:
    current_job().log.info("%s has failed: %s", event.job, event.data.error)


@app.on("schedule.missed", function=["<script>alert()</script>", "{{ 7*7 }}"], tag="<b>pets</b>")
def strange(_: Event) -> None:
    return


@app.scheduled("0 3 * * *", timezone="Europe/Berlin")
def nightly() -> None:
    return


@app.workflow
async def album(name: str, paths: list[str]) -> list[str]:
    done = await asyncio.gather(*(resize.submit(path) for path in paths))
    await workflow.sleep(timedelta(seconds=0.1))
    if name.startswith("waiting"):
        await approved.receive(timeout=timedelta(days=1))
    return list(done)

"""A workflow for a job of an external system: it starts the job, polls it with a growing pause, and cancels it if needed."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from typing import Any

from mainspring import App, Retry, workflow

RENDERER = os.environ.get("RENDERER", "http://127.0.0.1:8080")
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0

app = App()
retry_renderer = Retry(max_attempts=10, initial="5s")


def request(method: str, path: str) -> Any:
    """Send a request to the renderer, and return its answer."""
    with urllib.request.urlopen(urllib.request.Request(RENDERER + path, method=method), timeout=30) as answer:
        return json.load(answer)


@app.task(retry=retry_renderer)
def start(key: str, video: str) -> None:
    """Start a job of the renderer. A repetition with the same key finds the job that the first attempt has started."""
    request("PUT", f"/jobs/{key}?video={video}")


@app.task(retry=retry_renderer)
def state(key: str) -> str:
    """Return the state of a job: running, done or failed."""
    return str(request("GET", f"/jobs/{key}")["state"])


@app.task(retry=retry_renderer)
def stop(key: str) -> None:
    """Cancel a job, if it runs."""
    request("DELETE", f"/jobs/{key}")


@app.workflow(timeout="7d")
async def render(video: str, hours: float = 6) -> str:
    """Render a video. If it takes too long, or the run is cancelled, the renderer stops too."""
    key = str(workflow.uuid())
    try:
        async with asyncio.timeout(hours * 3600):
            await start.submit(key, video)
            pause = FIRST_PAUSE
            while (found := await state.submit(key)) == "running":
                await workflow.sleep(pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)
    except (asyncio.CancelledError, TimeoutError):
        await asyncio.shield(stop.submit(key))
        raise
    if found != "done":
        raise RuntimeError(f"the renderer has {found} with {video}")
    return f"{video}.mp4"

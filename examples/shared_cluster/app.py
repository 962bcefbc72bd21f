"""Pipelines share clusters, which Mainspring starts when pipelines wait, and ends when nobody has used them for a while."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from mainspring import App, Resource, Retry, Status
from mainspring.elsewhere import HttpMeta, HttpWork

SERVICE = os.environ.get("EMR", "http://127.0.0.1:8080")
app = App()


async def call(method: str, path: str, body: Any = None, key: str = "") -> Any:
    """Send a request to the cluster service, until it takes it; None for what it does not have."""

    def send() -> Any:
        request = urllib.request.Request(f"{SERVICE}{path}", method=method, headers={"Idempotency-Key": key})
        request.data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    while True:
        try:
            return await asyncio.to_thread(send)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            if error.code != 429:
                raise
            await asyncio.sleep(float(error.headers["Retry-After"]))


class Spark(Resource):
    """A cluster of a size."""

    size: int

    async def create(self, key: str) -> str:
        """Start a cluster, and wait until it is ready."""
        cluster = str((await call("POST", "/clusters", {"size": self.size}, key))["id"])
        while (await call("GET", f"/clusters/{cluster}"))["state"] == "STARTING":  # noqa: ASYNC110 - the service has no events
            await asyncio.sleep(0.3)
        return cluster

    async def check(self, meta: str) -> Status:
        """Return whether the cluster still works: the service may have ended it."""
        found = await call("GET", f"/clusters/{meta}")
        return Status.healthy() if found is not None and found["state"] == "WAITING" else Status.gone()

    async def release(self, meta: str) -> None:
        """End the cluster."""
        await call("DELETE", f"/clusters/{meta}")


spark = app.resource("spark", Spark(size=4), max=2, slots=2, idle="2s", check="1s", retry=Retry(initial="1s"))


@dataclass
class Step:
    name: str
    cluster: str
    seconds: float = 0.5


class EmrStep(HttpWork):
    """Runs a step on a cluster."""

    def __init__(self) -> None:
        super().__init__(
            SERVICE,
            submit="POST /steps",
            status="GET /steps/{id}",
            cancel="DELETE /steps/{id}",
            running=("RUNNING",),
            done=("COMPLETED",),
            failed=("CANCELLED",),
            networks=("127.0.0.0/8",),
        )

    async def submit(self, args: Step, key: str) -> HttpMeta:
        return await super().submit(args, key)


retry = Retry(max_attempts=5, initial="1s")
step = app.external(name="step", every="500ms", timeout="2h", retry=retry)(EmrStep)


@app.workflow(timeout="1d")
async def pipeline(name: str) -> str:
    """Run steps one after the other on one cluster, and return which one."""
    async with spark.hold(where={"size": 4}, timeout="1h") as held:
        for part in ("load", "clean", "count"):
            await step.submit(Step(f"{name}-{part}", held.meta))
        return str(held.meta)


@app.workflow(timeout="1d")
async def night(pipelines: int) -> str:
    """Run the pipelines of a night, and return how many clusters they shared."""
    clusters = await asyncio.gather(*[pipeline.submit(f"p{number}") for number in range(pipelines)])
    return f"{len(clusters)} pipelines on {len(set(clusters))} clusters"

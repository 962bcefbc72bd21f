"""Steps share clusters, which Mainspring starts when steps wait, and ends when nobody has used them for a while."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

from mainspring import App, Resource, Retry, Status, current_job
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


spark = app.resource("spark", Spark(size=4), max=2, slots=3, idle="2s", check="1s", retry=Retry(initial="1s"))


@dataclass
class Step:
    name: str
    seconds: float = 1.0


class EmrStep(HttpWork):
    """Runs a step on the cluster of its job."""

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
        cluster = current_job().resource(spark).meta
        return await super().submit({**asdict(args), "cluster": cluster}, key)


retry = Retry(max_attempts=5, initial="1s")
step = app.external(name="step", every="500ms", timeout="2h", uses={spark: 1}, retry=retry)(EmrStep)


@app.workflow(timeout="1d")
async def night(steps: int) -> str:
    """Run the steps of a night, and return how many clusters they shared."""
    done = await asyncio.gather(*[step.submit(Step(f"step-{number}")) for number in range(steps)])
    return f"{len(done)} steps on {len({one.rpartition(' ')[2] for one in done})} clusters"

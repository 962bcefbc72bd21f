"""The executor of coroutine functions, on the worker's own event loop."""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from mainspring.worker.delivery import Delivery, Finish, Finished
from mainspring.worker.execution import RELEASED, Settlement, execute_coroutine, failure_of, stop_settlement
from mainspring.worker.executors.eager import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence


class CoroutineExecutor:
    """Runs each delivery on the running loop; one that has to wait becomes a task."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Delivery, asyncio.Task[Settlement]] = {}
        self._finished: list[Finished] = []
        self._delivering = False

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:  # noqa: ARG002 - only the thread executor uses it
        """Run a lone delivery up to its first wait, which saves a turn of the loop. Tasks of several ones take less time."""
        begun = self._loop.time()
        if len(deliveries) == 1:
            settlement = self.run(deliveries[0], begun)
            if settlement is not None:
                self._end(deliveries[0], settlement, begun, lone=True)
            return
        for delivery in deliveries:
            coroutine = execute_coroutine(delivery.function, delivery.payload, delivery.job)
            self._go_on(delivery, self._loop.create_task(coroutine, context=Context()), begun)

    def run(self, delivery: Delivery, begun: float) -> Settlement | None:
        """Run a delivery up to its first wait. If there is none, return its settlement; else the rest runs in a task."""
        coroutine = execute_coroutine(delivery.function, delivery.payload, delivery.job)
        try:
            execution = Execution(coroutine, self._loop, Context())
        except BaseException as error:  # noqa: BLE001 - as in `_done`
            return failure_of(error, final=False)
        if execution.ended:
            settlement: Settlement = execution.result
            return settlement
        self._go_on(delivery, execution.task, begun)
        return None

    def _go_on(self, delivery: Delivery, task: asyncio.Task[Settlement], begun: float) -> None:
        self._tasks[delivery] = task
        task.add_done_callback(partial(self._done, delivery, begun))

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:  # noqa: ARG002 - a coroutine has only one way to stop
        """Cancel the task."""
        task = self._tasks.get(delivery)
        if task is not None:
            task.cancel()

    def shrink(self) -> None:
        """Do nothing: there are no idle tasks."""

    async def close(self) -> None:
        """Cancel the running tasks, and wait for them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    def _done(self, delivery: Delivery, begun: float, task: asyncio.Task[Settlement]) -> None:
        del self._tasks[delivery]
        if task.cancelled():  # before its first step; later, `execute_coroutine` settles it
            settlement = stop_settlement(delivery.job) if delivery.job.cancel_requested else RELEASED
        else:
            error = task.exception()
            settlement = task.result() if error is None else failure_of(error, final=False)
        self._end(delivery, settlement, begun)

    def _end(self, delivery: Delivery, settlement: Settlement, begun: float, *, lone: bool = False) -> None:
        """Report the end of a delivery with others that end in this turn of the loop; a ``lone`` one at once."""
        waits = bool(self._finished)
        self._finished.append(Finished(delivery, settlement, self._loop.time() - begun))
        if lone and not waits and not self._delivering:
            self._deliver()
        elif not waits:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        batch, self._finished = self._finished, []
        self._delivering = True  # the callback may start deliveries: they end in a later turn, without recursion
        try:
            self._finish(batch)
        finally:
            self._delivering = False

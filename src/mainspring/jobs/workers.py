"""Workers that come, take jobs as they come, and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.jobs.context import Context
    from mainspring.jobs.foreground import Foreground
    from mainspring.jobs.functions import Functions
    from mainspring.jobs.held import Ability, FunctionQueue, Worker
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.settling import Settling

FUNCTIONS_AT_ONCE: Final = 100
"""Functions that a worker may leave at once; of more, a part in each turn of the loop."""


class Workers:
    """Registers workers for functions, and sees to what they leave behind."""

    def __init__(
        self,
        context: Context,
        serving: Serving,
        settling: Settling,
        foreground: Foreground,
        functions: Functions,
    ) -> None:
        self._dispatch = context.dispatch
        self._serving = serving
        self._settling = settling
        self._foreground = foreground
        self._functions = functions
        self._slices = context.slices

    def register(self, worker: Worker, function: bytes, ability: Ability) -> None:
        """A worker can run a function."""
        if ability.limits is not None:
            self._functions.declare(function, ability.limits)
        self._serving.serve(self._dispatch.register(worker, function, ability))

    def unregister(self, worker: Worker, function: bytes) -> None:
        """A worker can no longer run a function; what it runs of it goes to another one, as in Gearman."""
        queue = self._dispatch.queues.get(function)
        if queue is None or queue not in worker.abilities:
            return
        self._dispatch.unregister(worker, queue)
        for held in list(worker.running.values()):
            if held.queue is queue:
                self._settling.lost(held, "its worker said CANT_DO")
        self._serving.has_left(worker)
        self._left(queue)

    def unregister_all(self, worker: Worker, then: Callable[[], None]) -> None:
        """A worker can no longer run anything; ``then`` is called once that is so."""

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self.unregister(worker, queue.name)
                yield

        self._forget(worker, forget(), then)

    def _forget(self, worker: Worker, functions: Iterator[None], then: Callable[[], None] = lambda: None) -> None:
        """Have functions forget a worker, one with each step: at once where they are few."""
        if len(worker.abilities) > FUNCTIONS_AT_ONCE:
            self._slices.run(functions, then)
            return
        for _ in functions:
            pass
        then()

    def ready(self, worker: Worker, places: int) -> None:
        """A streaming worker takes so many more jobs."""
        worker.streams = True
        worker.credit += places
        while worker.credit > 0:
            held = self._dispatch.grab(worker)
            if held is None:
                self._dispatch.offer(worker)
                break
            worker.credit -= 1
            self._serving.start(held, worker)
            worker.connection.assign(held)
        self._serving.refill(worker)

    def gone(self, worker: Worker) -> None:
        """A worker's connection has ended."""
        self._dispatch.leave(worker)  # first, so that it is not given back what it leaves behind
        self._settling.worker_gone(worker, "its worker's connection ended")

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self._dispatch.unregister(worker, queue)
                self._left(queue)
                yield

        self._forget(worker, forget())

    def _left(self, queue: FunctionQueue) -> None:
        """A worker no longer runs a function: others take over what it was woken for, or nobody does."""
        if queue.workers:
            self._serving.serve(queue)
        else:
            self.give_back(queue)

    def give_back(self, queue: FunctionQueue) -> None:
        """No worker here can run a function's waiting jobs: they go back to the store, which bounds them."""
        for held in self._serving.waiting_apart(queue) + queue.queued():
            if held.stored:
                self._settling.released(held)
            else:
                self._foreground.pass_on(held)

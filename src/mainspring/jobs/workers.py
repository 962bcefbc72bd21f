"""Registration, readiness and departure of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.context import Context
    from mainspring.jobs.foreground import Foreground
    from mainspring.jobs.function_limits import Functions
    from mainspring.jobs.held import Ability, FunctionQueue, Worker
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.settlement import Settling

FUNCTIONS_AT_ONCE: Final = 100
"""The most functions that a worker leaves at once; more are left in steps."""


class Workers:
    """Registers workers for functions, and requeues the jobs of departed workers."""

    def __init__(
        self,
        context: Context,
        serving: Assigner,
        settling: Settling,
        foreground: Foreground,
        functions: Functions,
        roots: RootJobs,
    ) -> None:
        self._dispatch = context.dispatch
        self._serving = serving
        self._settling = settling
        self._foreground = foreground
        self._functions = functions
        self._roots = roots
        self._slices = context.slices

    def register(self, worker: Worker, function: bytes, ability: Ability) -> None:
        """Register a worker for a function, unless it has gone."""
        if worker.gone:
            return
        if ability.limits is not None:
            self._functions.declare(function, ability.limits)
        self._serving.serve(self._dispatch.register(worker, function, ability))

    def unregister(self, worker: Worker, function: bytes) -> None:
        """Unregister a worker from a function; its running jobs of it go to another worker, as in Gearman."""
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
        """Unregister a worker from all functions; ``then`` is called at the end."""

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self.unregister(worker, queue.name)
                yield

        self._forget(worker, forget(), then)

    def _forget(self, worker: Worker, functions: Iterator[None], then: Callable[[], None] = lambda: None) -> None:
        """Remove a worker from its functions, one with each step; at once if they are few."""
        if len(worker.abilities) > FUNCTIONS_AT_ONCE:
            self._slices.run(functions, then)
            return
        for _ in functions:
            pass
        then()

    def ready(self, worker: Worker, places: int) -> None:
        """Add to the credit of a streaming worker, and assign jobs to it; a worker that has gone gets none."""
        if worker.gone:
            return
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
        """Remove a worker whose connection has ended."""
        self._dispatch.leave(worker)  # first, so that it does not get its own jobs back
        self._settling.worker_gone(worker, "its worker's connection ended")

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self._dispatch.unregister(worker, queue)
                self._left(queue)
                yield

        self._forget(worker, forget())

    def _left(self, queue: FunctionQueue) -> None:
        """Serve a function that a worker has left, or give its jobs back if it was the last one."""
        if queue.workers:
            self._serving.serve(queue)
        else:
            self.give_back(queue)

    def became_root(self, function: bytes) -> None:
        """Begin runs for a function's jobs from now on, also for those that wait; a job that a worker has ends as before."""
        if function in self._roots.functions:
            return
        self._roots.functions.add(function)
        queue = self._dispatch.queue(function)
        queue.is_root = True
        for held in self._serving.waiting_apart(queue) + queue.queued():
            if held.stored:
                self._settling.released(held)
            else:
                self._foreground.begin_held(held)
        self._serving.serve(queue)

    def give_back(self, queue: FunctionQueue) -> None:
        """Give a function's waiting jobs back to the store, because no worker here can run them."""
        for held in self._serving.waiting_apart(queue) + queue.queued():
            if held.stored:
                self._settling.released(held)
            else:
                self._foreground.pass_on(held)

    @staticmethod
    def pass_over(worker: Worker | None, handle: bytes) -> bool:
        """Return whether a plain worker's reports about a job are ignored, because it was cancelled while it ran."""
        return worker is not None and handle in worker.ignored_results

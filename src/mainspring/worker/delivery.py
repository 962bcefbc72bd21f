"""A job that this worker holds, from its assignment to its settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Key


class Delivery:
    """One delivery. ``arrived`` is monotonic time; ``executor`` is the kind of its executor; ``running``: it was started.

    ``isolated``: it runs in a process of its own, even if its function has another executor.
    """

    __slots__ = ("arrived", "died", "executor", "function", "job", "key", "link", "payload", "running")

    def __init__(
        self,
        link: Link,
        key: Key,
        function: Function,
        payload: bytes,
        job: CurrentJob,
        arrived: float,
        *,
        isolated: bool = False,
    ) -> None:
        self.link = link
        self.key = key
        self.function = function
        self.payload = payload
        self.job = job
        self.arrived = arrived
        self.executor = "process" if isolated else function.executor
        self.running = False
        self.died = False
        """Whether its process ended before the function did."""


class Finished(NamedTuple):
    """A delivery whose function has ended, and its run time in seconds."""

    delivery: Delivery
    settlement: Settlement
    seconds: float


Finish: TypeAlias = "Callable[[Sequence[Finished]], None]"
"""A callback for finished deliveries, called on the loop's thread, with all that finished since the last call."""


class Executor(Protocol):
    """A way to run functions. Its methods are called on the loop's thread."""

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:
        """Start deliveries. ``brief``: the worker's recent jobs took much less than a millisecond."""

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Stop a started delivery, as far as this kind can; it finishes in the ordinary way. Its job has the reason."""

    def shrink(self) -> None:
        """End idle threads or processes that only extra places needed."""

    async def close(self) -> None:
        """End the executor's threads, tasks or processes."""

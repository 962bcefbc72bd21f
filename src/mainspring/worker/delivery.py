"""A job that this worker holds, from its assignment to its settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.link import Link
    from mainspring.worker.performance import Settlement
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Key


class Delivery:
    """One delivery. ``arrived`` is monotonic time; ``executor`` names what runs it, and ``running`` is set while that has it.

    ``isolated``: it runs in a process of its own, whatever its function says.
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
        """Its process has ended before the function did."""


class Finished(NamedTuple):
    """A delivery that an executor is done with, and the seconds that it took."""

    delivery: Delivery
    settlement: Settlement
    seconds: float


Finish: TypeAlias = "Callable[[Sequence[Finished]], None]"
"""Takes what executors are done with, on the loop's thread; several at once where several came."""


class Executor(Protocol):
    """Runs functions one way. Its methods are called on the loop's thread."""

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:
        """Start to run deliveries. ``brief``: such functions took much less than a millisecond of late."""

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Stop one that was started, as far as this kind can; it is finished as always. Its job knows the reason."""

    def shrink(self) -> None:
        """End idle threads or processes that only extra places needed."""

    async def close(self) -> None:
        """End what belongs to the executor."""

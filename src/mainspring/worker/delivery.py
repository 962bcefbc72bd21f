"""A job that this worker holds, from its assignment to its settlement, with the interfaces of the parts that execute it.

An `Executor` runs functions, a `Decider` the code of workflows. An `Origin` is all that a report about a job needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Assigned, Extended, Key


class Origin(NamedTuple):
    """The connection and the delivery of a job."""

    link: Link
    key: Key


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


class Decider(Protocol):
    """Decides runs of workflows, for all servers of a worker. It sends by ``link.session.send``, then ``link.flush``."""

    def attach(self) -> None:
        """Use the running loop."""

    def accepted(self, delivery: Delivery) -> None:
        """Note a job that the worker holds: it may be an activity of a run."""

    def ended(self, delivery: Delivery, settlement: Settlement | None) -> bool:
        """Take over the end of a job, which is then not settled alone; None: it is lost or given back."""

    def flush(self) -> None:
        """Send what this turn of the loop has brought."""

    def activation(self) -> tuple[str, Origin | None] | None:
        """Return the workflow whose code runs at the moment, with the delivery of its decision. Called from any thread."""

    @property
    def busy(self) -> bool:
        """Whether a drain has to wait, because a decision is under way."""

    def agreed(self, link: Link) -> None:
        """Handle a new connection; the functions are registered."""

    def lost(self, link: Link) -> None:
        """Handle the end of a connection, after ``stop`` for its deliveries: nothing that it carried is answered."""

    def tick(self) -> None:
        """Do what is due; called twice a second."""

    def assigned(self, link: Link, decision: Assigned) -> None:
        """Decide a run. The decider ends the delivery, with ``link.session.settle`` or ``drop``."""

    def stop(self, link: Link, key: Key, reason: str) -> None:
        """Stop a decision: ``cancelled``, ``timeout`` or ``lost``; the last one also at the end of the connection."""

    def received(self, link: Link, packet: Extended) -> None:
        """Handle a packet about runs."""

    def drain(self) -> None:
        """Begin no more decisions and steps, because the worker ends. Give decisions back whose steps do not run."""

    def release_all(self) -> None:
        """Give all decisions back, because the grace of the worker's end is over."""

    async def close(self) -> None:
        """Release everything; the connections still exist."""

"""The interface between a worker and the part of it that decides runs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.origin import Origin
    from mainspring.worker.session import Assigned, Extended, Key


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

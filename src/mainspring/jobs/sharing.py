"""What a node does because other nodes have the same store open: what they say, and what they leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.events.relay import Abandoned, Ask, Message, Pending, Progress, Running, Settled, Stop
from mainspring.jobs.store import Recover

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.events.relay import Relay
    from mainspring.jobs.claiming import Allowance
    from mainspring.jobs.clients import Clients
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.footing import Footing
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.holders import Holders
    from mainspring.jobs.leasing import Leasing
    from mainspring.jobs.looking import Looking
    from mainspring.jobs.noting import Noting
    from mainspring.jobs.reports import Reports
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import Recovered

ASK_EVERY = 5.0
"""Seconds between questions for the jobs that clients here wait for: what the relay has lost is found then."""


class Shared(NamedTuple):
    """How a node reaches the others that have its store open, and what it knows of them."""

    relay: Relay
    believes: Callable[[], bool]
    """Says whether the jobs here may be believed to be this node's. A node that was stopped learns from its workers that it runs
    again, before its timers tell it that its lease has ended."""
    elsewhere: Callable[[], frozenset[bytes] | None]
    """Returns the functions of the other nodes' workers; None where this node cannot know them at present."""
    share: Callable[[FunctionQueue], Allowance] | None = None
    """Says what this node may take of a function's stored jobs at this moment; None: always everything."""


class Sharing:
    """This node's part among the others."""

    def __init__(
        self,
        footing: Footing,
        serving: Serving,
        relay: Relay,
        leasing: Leasing,
        looking: Looking,
        noting: Noting,
        holders: Holders,
        reports: Reports,
        ends: Ends,
        clients: Clients,
    ) -> None:
        self._table, self._dispatch, self._commits = footing.table, footing.dispatch, footing.commits
        self._serving = serving
        self._leasing = leasing
        self._looking = looking
        self._noting = noting
        self._holders = holders
        self._reports = reports
        self._ends = ends
        self._clients = clients
        self._asked = footing.clock.monotonic()
        self._unrecovered: list[Sequence[int]] = []
        """Ended terms whose jobs are given back once all that is waited for is noted: this node's last one may be among them."""
        relay.listen(self.hear)

    def hear(self, message: Message) -> None:
        """Take a message of another node, or of this one."""
        match message:
            case Pending(functions):
                for name in functions:
                    queue = self._dispatch.queues.get(name)
                    if queue is not None and queue.gate is not None:
                        self._leasing.hint(queue)
                    if queue is not None and queue.workers:
                        self._serving.hint(queue)
            case Settled(ids):
                self._noting.ask(ids)
            case Abandoned(terms):
                self.recover(terms)
            case Progress():
                self._reports.reported_elsewhere(message)
            case Ask(job_id, by):
                self._holders.asked(job_id, by)
            case Running():
                self._holders.answered(message)
            case Stop(job_id, reason):
                held = self._table.find(job_id)
                if held is not None:
                    self._clients.cancel_held(held, reason, lambda _: None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._leasing.tick()
        self._looking.tick(now)
        if now - self._asked >= ASK_EVERY:
            self._asked = now
            self._noting.ask_all()

    def noted(self) -> None:
        """What is waited for is noted under the node's new term: what others leave behind may be given back."""
        unrecovered, self._unrecovered = self._unrecovered, []
        for terms in unrecovered:
            self.recover(terms)

    def recover(self, terms: Sequence[int]) -> None:
        """Give the jobs of ended terms back, a part at a time."""
        if self._noting.under_way:
            self._unrecovered.append(terms)
            return

        def recovered(outcome: Recovered) -> None:
            for (function, _), number in outcome.pending.items():
                queue = self._dispatch.known(function)
                if queue is not None:
                    self._serving.no_longer_away(queue, number)
            self._looking.add_pending(outcome.pending)
            self._ends.recovered(outcome.lost)
            if outcome.more:
                self.recover(terms)

        # What could not be given back now is found abandoned again.
        self._commits.put(Recover(self._table.term, terms), recovered, lambda _: None)

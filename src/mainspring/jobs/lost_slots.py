"""Jobs that lose their slots of resources while they run: an operator takes them away, or their rows are gone.

The attempt ends then, and its worker is asked to stop it. An operator's take-away is a settlement of the job: its lease ends in
the transaction that frees the slots, so nobody gets them before. The node that holds the job does it, and others ask that node.

Every few seconds a node looks whether its jobs still have their rows. So an attempt ends whatever has deleted them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Act
from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.events import TakeSlots
from mainspring.jobs.settlement_records import SettleBatch
from mainspring.resources.hold_store import FindHolds, FindKept, NoteTaken
from mainspring.resources.holds import HolderKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.events import Relay
    from mainspring.jobs.held import Held
    from mainspring.jobs.hold_requests import HoldRequests
    from mainspring.jobs.settlement import Ends, Settling
    from mainspring.jobs.table import Context
    from mainspring.resources.holds import Hold, Holder
    from mainspring.storage.reads import Reads

LOOK_INTERVAL: Final = 5.0
"""Seconds between looks whether jobs still have their slots."""
ASKED_AGAIN: Final = 1.0
"""Seconds after which a request to another node is repeated."""
LOOKS: Final = 5
"""Looks at the outcome between two repetitions."""
LONGEST: Final = 10.0
"""Seconds to wait for another node."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Act).decode


class LostSlots:
    """Takes slots of jobs away, and ends the attempts of jobs that have lost theirs. A shared store has a ``relay``."""

    def __init__(
        self,
        context: Context,
        reads: Reads,
        settling: Settling,
        ends: Ends,
        requests: HoldRequests,
        relay: Relay | None,
    ) -> None:
        self._table, self._commits, self._timers = context.table, context.commits, context.timers
        self._clock = context.clock
        self._reads = reads
        self._settling, self._ends = settling, ends
        self._requests = requests
        self._relay = relay
        self._look_at = 0.0
        self._looking = False

    # ---- taken away ----

    @shielded
    async def take(self, hold: Hold, act: Act, *, cancel: bool) -> None:
        """Take the slots of a job away: its attempt ends. It waits for its slots again, behind others; ``cancel``: it ends, too.

        All slots that the job has are free then. Raises ConflictError if it has just ended, and StoreError.
        """
        holder = hold.holder
        if self._relay is None or holder.term == self._table.term:
            held = self._held(holder.id, hold.turn)
            if held is None:
                raise ConflictError(
                    "the job has just ended, or its work goes on elsewhere and waits for the next worker"
                )
            await self._take(held, hold.resource, act, cancel=cancel)
            return
        message = TakeSlots(holder.id, hold.turn, hold.resource, cancel, _encode(act))
        asked = self._clock.monotonic()
        while self._clock.monotonic() - asked < LONGEST:
            self._relay.send(holder.term, message)
            for _ in range(LOOKS):
                await self._later(ASKED_AGAIN / LOOKS)
                if not await self._reads.read(FindKept(((holder, hold.turn),))):
                    await self._check_free(hold)
                    return
        raise ConflictError(
            "the node that has the job does not answer; if it is gone, its jobs lose their slots when its lease ends"
        )

    async def _check_free(self, hold: Hold) -> None:
        """Raise ConflictError if the next lease of a job has taken its slots over: the last one ended before the message came."""
        query = FindHolds((hold.resource,), to_us(self._clock.wall()))
        (holding,) = await self._reads.read(query)
        if any(one.number == hold.number for one in holding.holds):
            raise ConflictError("the job's work goes on elsewhere, and its next lease has the slots: try again")

    def asked(self, message: TakeSlots) -> None:
        """Do what another node asks for, unless the job has other slots by now or has ended."""
        held = self._held(message.id, message.turn)
        if held is not None:
            taking = self._take(held, message.resource, _decode(message.act), cancel=message.cancel)
            CallInProgress(taking, lambda _: None, lambda _: None)  # the other node looks at the outcome

    def _held(self, job_id: int, turn: int) -> Held | None:
        held = self._table.find(job_id)
        slots = None if held is None else held.slots
        return held if slots is not None and slots.holds and slots.request.turn == turn else None

    async def _take(self, held: Held, resource: str, act: Act, *, cancel: bool) -> None:
        slots = held.slots
        assert slots is not None
        units = sum(hold.units for hold in slots.holds or () if hold.resource == resource)
        note = NoteTaken(resource, slots.request, units)
        note.act = act
        batch = SettleBatch()
        why = f"its slots were taken away: {act.reason}" if act.reason else "its slots were taken away"

        def put(done: Callable[[None], None], failed: Callable[[Exception], None]) -> None:
            self._commits.put_atomic([self._ends.of_batch(batch), (note, done, failed)])
            self._settling.without_slots(held, why, batch, cancel=cancel)

        await Callback[None](put)

    async def _later(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        await Callback[None](lambda done, _: self._timers.at(at, lambda: done(None)))

    # ---- lost ----

    def tick(self, now: float) -> None:
        """Look whether jobs still have their slots, if it is time."""
        if now >= self._look_at and self._table.term and not self._looking:
            self._look_at = now + LOOK_INTERVAL
            self.look()

    def look(self) -> None:
        """End the attempts of jobs whose holds are gone."""
        granted = [
            (slots.request.holder, slots.request.turn)
            for held in self._requests.granted.values()
            if (slots := held.slots) is not None
        ]
        if granted:
            self._looking = True
            reading = self._reads.read(FindKept(tuple(granted)))
            CallInProgress(reading, lambda kept: self._looked(granted, kept), lambda _: self._looked((), ()))

    def _looked(self, granted: Collection[tuple[Holder, int]], kept: Collection[tuple[Holder, int]]) -> None:
        self._looking = False
        for holder, turn in granted:
            if (holder, turn) not in kept and holder.kind == HolderKind.LEASE and holder.term == self._table.term:
                held = self._held(holder.id, turn)
                if held is not None:
                    self._settling.without_slots(held, "its slots are gone")

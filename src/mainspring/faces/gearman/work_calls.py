"""The calls of workers that watch work in other systems. They name deliveries of the connection; others are passed over.

| call | when | the answer comes |
|---|---|---|
| ``work.begin`` | before a worker submits, or goes on to watch | with the key, once that is on disk |
| ``work.submitted`` | the other system has answered | once its answer is on disk: the worker looks at it from then on |
| ``work.ended`` | the work has ended, before the SETTLE of its delivery | at once; this is committed first, or with it |
| ``work.looked`` | a worker has looked | at once; nothing is stored |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.request import Code, Problem, Request, write
from mainspring.external.store import Status
from mainspring.features import Feature
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations
from mainspring.wire.gearman_protocol import Type, response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.external.service import Begun, WorkService
    from mainspring.faces.gearman.peer_io import Outbox, Outstanding
    from mainspring.jobs.held import Held

MOST_WORKS = 1000
"""Deliveries in one call."""
MOST_META = 65_536
"""Characters of the answer of another system, as JSON."""
MOST_PROBLEM = 512
NEVER = 1e9
"""Seconds since a look that there has not been."""
CALL_COST = 16
"""The number of unanswered requests that such a call counts as."""


class Watching(Protocol):
    """The part of a peer that these calls use."""

    unanswered: Outstanding
    outbox: Outbox

    @property
    def works(self) -> WorkService | None:
        """The work in other systems of its node; None if the store keeps none."""

    def running(self, handle: bytes) -> Held | None:
        """Return the job that one of this peer's workers runs under a handle."""

    def now(self) -> float:
        """Return monotonic time."""


class BeginsWork(Request[None]):
    """Begin the work of deliveries in another system, or go on with it: the answer has the key and what is recorded of each."""

    permission = Permission.DEVELOP
    call = "work.begin"
    requires = Feature.EXTERNAL
    deliveries: Annotated[list[tuple[Text, Text]], msgspec.Meta(max_length=MOST_WORKS)]
    """Handles and delivery tokens of the worker."""


class SubmittedWork(msgspec.Struct, array_like=True):
    """The answer of the other system to a submission."""

    handle: Text
    token: Text
    number: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    meta: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_META)]
    """JSON."""

    def __post_init__(self) -> None:
        try:
            msgspec.json.decode(self.meta)  # it is shown and sent as JSON later
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the answer of the other system is not JSON: {error}") from None


class RecordsWork(Request[None]):
    """Record what other systems have answered to submissions, by which workers look at the work and cancel it."""

    permission = Permission.DEVELOP
    call = "work.submitted"
    requires = Feature.EXTERNAL
    works: Annotated[list[SubmittedWork], msgspec.Meta(max_length=MOST_WORKS)]


class EndedWork(msgspec.Struct, array_like=True):
    """A submission that has ended in the other system."""

    handle: Text
    token: Text
    succeeded: bool


class EndsWork(Request[None]):
    """Report that work has ended in other systems: it is not cancelled. The settlements of its deliveries follow."""

    permission = Permission.DEVELOP
    call = "work.ended"
    requires = Feature.EXTERNAL
    works: Annotated[list[EndedWork], msgspec.Meta(max_length=MOST_WORKS)]


class LookedAt(msgspec.Struct, array_like=True):
    """A look at work."""

    handle: Text
    token: Text
    ago: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    """Seconds since it."""
    problem: Annotated[str, msgspec.Meta(max_length=MOST_PROBLEM)] = ""


class LooksAtWork(Request[None]):
    """Report when the worker has looked at work last, and what went wrong."""

    permission = Permission.DEVELOP
    call = "work.looked"
    requires = Feature.EXTERNAL
    looks: Annotated[list[LookedAt], msgspec.Meta(max_length=MOST_WORKS)]


def _answer(peer: Watching, call_id: bytes, value: object) -> None:
    peer.outbox.write(response(Type.ANSWER, call_id, write(value)))


def _held(peer: Watching, handle: str, token: str) -> Held | None:
    held = peer.running(handle.encode())
    return held if held is not None and held.token == token.encode() and held.queue.runs_elsewhere else None


class _Pending:
    """A call whose answer waits for the store."""

    def __init__(self, peer: Watching, call_id: bytes, size: int) -> None:
        self._peer, self._call_id, self._size = peer, call_id, size
        peer.unanswered.add(CALL_COST, size)

    def answer(self, value: object) -> None:
        _answer(self._peer, self._call_id, value)
        self._peer.unanswered.remove(CALL_COST, self._size)

    def failed(self, error: StoreError) -> None:
        problem = Problem(Code.UNAVAILABLE, str(error))
        packet = response(Type.FAULT, self._call_id, problem.code.kind.encode(), problem.message.encode())
        self._peer.outbox.write(packet)
        self._peer.unanswered.remove(CALL_COST, self._size)


def _begin(peer: Watching, call_id: bytes, request: BeginsWork) -> None:
    assert peer.works is not None, "the store keeps it"
    some: Sequence[Held | None] = [_held(peer, handle, token) for handle, token in request.deliveries]
    pending = _Pending(peer, call_id, 100 * len(some))

    def begun(works: list[Begun | None]) -> None:
        pending.answer({"works": [None if one is None else one._asdict() for one in works]})

    peer.works.begin(some, begun, pending.failed)


def _record(peer: Watching, call_id: bytes, request: RecordsWork) -> None:
    assert peer.works is not None, "the store keeps it"
    held = [_held(peer, one.handle, one.token) for one in request.works]
    some = [(job, one.number, one.meta) for job, one in zip(held, request.works, strict=True) if job is not None]
    pending = _Pending(peer, call_id, sum(100 + len(one.meta) for one in request.works))

    def recorded(keys: set[tuple[int, int]]) -> None:
        found = [
            job is not None and (job.job.id, one.number) in keys for job, one in zip(held, request.works, strict=True)
        ]
        pending.answer({"recorded": found})

    peer.works.record(some, recorded, pending.failed)


def _end(peer: Watching, call_id: bytes, request: EndsWork) -> None:
    assert peer.works is not None, "the store keeps it"
    some = [(_held(peer, one.handle, one.token), one.succeeded) for one in request.works]
    peer.works.end([(held, Status.DONE if done else Status.OVER) for held, done in some if held is not None])
    _answer(peer, call_id, {})


def _looked(peer: Watching, call_id: bytes, request: LooksAtWork) -> None:
    now = peer.now()
    for one in request.looks:
        held = _held(peer, one.handle, one.token)
        if held is not None and held.elsewhere is not None:
            held.elsewhere.looked_at = now - one.ago if one.ago < NEVER else 0.0
            held.elsewhere.problem = one.problem
    _answer(peer, call_id, {})


WORK_CALLS: dict[type[Request[Any]], Callable[[Any, bytes, Any], None]] = {
    BeginsWork: _begin,
    RecordsWork: _record,
    EndsWork: _end,
    LooksAtWork: _looked,
}

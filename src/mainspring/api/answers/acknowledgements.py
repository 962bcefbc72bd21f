"""Failures that somebody has acknowledged, per function: acts in the audit, which hold until the next failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.audit import ListActs as StoredActs
from mainspring.api.answers.dead_letters import count_dead
from mainspring.api.answers.readings import Readings
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later, read_page
from mainspring.api.errors import ApiError, Code
from mainspring.api.functions import Acknowledge, Acknowledged
from mainspring.clock import to_us
from mainspring.jobs.model import State
from mainspring.queries.filters import JobFilter
from mainspring.queries.jobs import ListJobs
from mainspring.workflows.model import function_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.access.audit import Recorded
    from mainspring.access.caller import Caller
    from mainspring.access.service import AccessService
    from mainspring.api.answers.registry import Handlers
    from mainspring.clock import Clock
    from mainspring.jobs.service import JobService
    from mainspring.storage.reads import Reads

MOST: Final = 20
"""Functions of a namespace: those that were acknowledged last."""
MOST_ACTS: Final = 100
KEPT_FOR: Final = 5.0
"""Seconds for which the acts of a namespace are used again."""
MOST_KEPT: Final = 100
NEWEST: Final = 50
"""Dead letters of a function that are compared with the time of its act, besides their number and the counts of the last hour."""


class Acknowledgements:
    """Records them, and finds those that hold. ``kept``: the store keeps acts."""

    def __init__(self, access: AccessService, service: JobService, reads: Reads, clock: Clock, *, kept: bool) -> None:
        self._access = access
        self._service = service
        self._reads = reads
        self._clock = clock
        self._kept = kept
        self._acts: Readings[str, dict[bytes, Recorded]] = Readings(clock.monotonic, KEPT_FOR, MOST_KEPT)
        self.handlers: Handlers = {Acknowledge: self._acknowledge}

    async def of(
        self, namespace: str, letters: Mapping[bytes, int], failed_us: Mapping[bytes, int]
    ) -> list[Acknowledged]:
        """Return the acknowledged functions. ``letters`` has their dead letters, ``failed_us`` when they failed last."""
        if not self._kept:
            return []
        acts = await self._acts.get(namespace, lambda: self._read(namespace))
        found = []
        for name, recorded in acts.items():
            shown = _shown(recorded)
            number = letters.get(name, 0)
            if failed_us.get(name, 0) <= recorded.at_us and number <= shown.dead_letters:
                shown.dead_letters = number
                found.append(shown)
        return found

    async def _read(self, namespace: str) -> dict[bytes, Recorded]:
        """Return the newest acts of the functions without a dead letter after them."""
        query = StoredActs(namespace=namespace, what=Acknowledge.call, limit=MOST_ACTS, without_refusals=True)
        newest: dict[bytes, Recorded] = {}
        for one in (await read_page(self._access.list_acts, query)).items:
            newest.setdefault(function_named(one.act.object, namespace), one)
        found = {}
        for name in [*newest][:MOST]:
            failed = JobFilter(states=(State.FAILED,), function=name)
            page = await read_page(self._reads.ask, ListJobs(where=failed, limit=NEWEST))
            if all(job.ended_us <= newest[name].at_us for job in page.items):
                found[name] = newest[name]
        return found

    async def _acknowledge(self, request: Acknowledge, caller: Caller) -> Acknowledged:
        caller.check(request.permission, request.namespace, request.function)
        if not self._kept:
            raise ApiError(
                Code.UNSUPPORTED, "this store keeps no acts, and so no acknowledgements: use SQLite or PostgreSQL"
            )
        name = function_named(request.function, request.namespace)
        dead = (await count_dead(self._service, [name]) or {}).get(name, 0)
        if not dead and self._service.queue_of(name) is None:
            raise ApiError(
                Code.FUNCTION_NOT_FOUND,
                f"no job and no worker has the function {request.function}: mainspring functions list shows all",
            )
        after: dict[str, Any] = {"dead_letters": dead}
        act = caller.act(request.call, request.function, request.reason, namespace=request.namespace, after=after)
        await Later[None](lambda done, failed: self._access.record(act, done, failed))
        self._acts.forget(request.namespace)
        return Acknowledged(request.function, rfc3339(to_us(self._clock.wall())), caller.name, dead)


def _shown(recorded: Recorded) -> Acknowledged:
    act = recorded.act
    after = act.after if isinstance(act.after, dict) else {}
    return Acknowledged(act.object, rfc3339(recorded.at_us), act.who, int(after.get("dead_letters", 0)))

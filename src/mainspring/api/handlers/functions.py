"""Calls about functions: their work, limits and pauses, their failures, and the workers that have registered them.

The numbers of dead letters by function come from the counts in the store. That somebody has acknowledged the failures of a
function is an act in the audit, which holds until the next failure. `Readings` are values that several calls share: one of them
reads the store, and all use its value for some seconds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from msgspec import UNSET, to_builtins
from msgspec.structs import asdict, replace

from mainspring.access.audit import ListActs as StoredActs
from mainspring.api.functions import (
    Acknowledge,
    Acknowledged,
    FunctionInfo,
    IsRegistered,
    LimitFunction,
    ListFunctions,
    PauseFunction,
    Registration,
    ResumeFunction,
    ShowFunction,
)
from mainspring.api.handlers.pages import names_in_row, no_place, rfc3339
from mainspring.api.nodes import WaitingJobs
from mainspring.api.request import ApiError, Code, Page
from mainspring.api.submitting import LONG_NAME
from mainspring.callbacks import Callback
from mainspring.clock import to_us
from mainspring.errors import MainspringError, StoreError
from mainspring.features import Feature
from mainspring.jobs.function_index import FIRST_PLACE, PAGE_SIZE, Place
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import DECISIONS, FUNCTION_LIMIT, OWN_FUNCTION, State
from mainspring.jobs.store import ShowCounts
from mainspring.namespaces import name_of, namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.queries import JobFilter, QueryJobs
from mainspring.resources import rules
from mainspring.resources.rules import UNLIMITED, FunctionLimits, LimitSpec, encode_limits, limits_of, spec_of
from mainspring.workflows.model import decisions_of, function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime

    from mainspring.access.audit import Recorded
    from mainspring.access.caller import Act, Caller
    from mainspring.access.service import AccessService
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.callbacks import Ask, Done, Failed
    from mainspring.clock import Clock
    from mainspring.jobs.function_limits import Change
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Counted
    from mainspring.nodes.model import NodeRow
    from mainspring.storage.reads import Reads


KEPT_FOR: Final = 5.0
"""Seconds for which the numbers of a namespace are used again."""
MOST_KEPT: Final = 100
"""Namespaces whose numbers are kept."""
MOST_COUNTED: Final = 1000
"""Functions of one reading: it takes a few milliseconds."""
MOST_PAGES: Final = 10
"""Pages of the store's functions that are read for one answer: `jobs.store.ShowCounts` has 1,000 of them on each."""


class DeadNumbers(NamedTuple):
    """Those of a namespace."""

    by_function: Mapping[bytes, int]
    is_whole: bool
    """Whether functions that are not among them have none."""


async def count_dead(service: JobService, names: Sequence[bytes]) -> Mapping[bytes, int] | None:
    """Return the numbers of functions with dead letters; None while the store cannot be read. All else is in memory."""
    try:
        return _by_function(await service.reads.read(ShowCounts(dead=True, functions=tuple(names))))
    except StoreError:
        return None


def _by_function(found: Counted) -> Counter[bytes]:
    numbers = Counter[bytes]()
    for (function, _, _), number in found.counts.items():
        numbers[function] += number
    return numbers


class DeadLetters:
    """The numbers of namespaces that somebody watches. They are read again after some seconds."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._all: Readings[None, tuple[dict[bytes, int], bool]] = Readings(service.clock.monotonic, KEPT_FOR, 1)
        self._namespaces: Readings[str, DeadNumbers] = Readings(service.clock.monotonic, KEPT_FOR, MOST_KEPT)
        self._counted: Readings[str, DeadNumbers] = Readings(service.clock.monotonic, KEPT_FOR, MOST_KEPT)

    async def among(self, namespace: str, functions: Sequence[FunctionQueue], failing: Sequence[bytes]) -> DeadNumbers:
        """Return those of all functions; in a very large store of the failing ones, those with jobs, and some of the others.

        ``functions`` are those of the namespace, not those that one caller may see: others get the same numbers.
        """
        found = await self.of(namespace)
        if found.is_whole:
            return found
        return await self._counted.get(namespace, lambda: self._count(found, functions, failing))

    async def _count(
        self, found: DeadNumbers, functions: Sequence[FunctionQueue], failing: Sequence[bytes]
    ) -> DeadNumbers:
        queues = sorted(functions, key=lambda queue: not queue.total())
        names = list(dict.fromkeys([*failing, *(queue.name for queue in queues[:MOST_COUNTED])]))[:MOST_COUNTED]
        counted = await count_dead(self._service, names)
        numbers = {} if counted is None else {name: counted.get(name, 0) for name in names}
        return DeadNumbers({**found.by_function, **numbers}, is_whole=False)

    async def of(self, namespace: str) -> DeadNumbers:
        """Return those of all functions; of some of them, if not all of the store's functions can be read."""
        return await self._namespaces.get(namespace, lambda: self._read(namespace))

    async def _read(self, namespace: str) -> DeadNumbers:
        found, is_whole = await self.everywhere()
        return DeadNumbers({name: found[name] for name in found if namespace_of(name) == namespace}, is_whole)

    async def everywhere(self) -> tuple[dict[bytes, int], bool]:
        """Return the numbers of all functions with dead letters, and whether all of the store's functions were read."""
        return await self._all.get(None, self._read_all)

    async def _read_all(self) -> tuple[dict[bytes, int], bool]:
        numbers: dict[bytes, int] = {}
        after: bytes | None = b""
        for _ in range(MOST_PAGES):
            place = after or b""
            try:
                page = await self._service.reads.read(ShowCounts(dead=True, after=place))
            except StoreError:
                return numbers, False
            numbers |= _by_function(page)
            after = page.next
            if after is None:
                return numbers, True
        return numbers, False


MOST: Final = 20
"""Functions of a namespace: those that were acknowledged last."""
MOST_ACTS: Final = 100
"""Seconds for which the acts of a namespace are used again."""
NEWEST: Final = 50
"""Dead letters of a function that are compared with the time of its act, besides their number and the counts of the last hour."""


class Acknowledgements:
    """Records them, and finds those that hold."""

    def __init__(self, access: AccessService, service: JobService, reads: Reads, clock: Clock) -> None:
        self._access = access
        self._service = service
        self._reads = reads
        self._clock = clock
        self._acts: Readings[str, dict[bytes, Recorded]] = Readings(clock.monotonic, KEPT_FOR, MOST_KEPT)
        self.handlers: Handlers = {Acknowledge: self._acknowledge}

    async def of(
        self, namespace: str, letters: Mapping[bytes, int], failed_us: Mapping[bytes, int]
    ) -> list[Acknowledged]:
        """Return the acknowledged functions. ``letters`` has their dead letters, ``failed_us`` when they failed last."""
        if Feature.ACCESS in self._service.lacks:
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
        for one in (await self._access.list_acts(query)).items:
            newest.setdefault(function_named(one.act.object, namespace), one)
        found = {}
        for name in [*newest][:MOST]:
            failed = JobFilter(states=(State.FAILED,), function=name)
            page = await self._reads.read(QueryJobs(where=failed, limit=NEWEST))
            if all(job.ended_us <= newest[name].at_us for job in page.items):
                found[name] = newest[name]
        return found

    async def _acknowledge(self, request: Acknowledge, call: Call) -> Acknowledged:
        name = function_named(request.function, request.namespace)
        dead = (await count_dead(self._service, [name]) or {}).get(name, 0)
        if not dead and self._service.dispatch.queues.get(name) is None:
            raise call.not_found()
        after: dict[str, Any] = {"dead_letters": dead}
        await self._access.record(call.act(request.reason, after=after))
        self._acts.forget(request.namespace)
        return Acknowledged(request.function, rfc3339(to_us(self._clock.wall())), call.caller.name, dead)


def _shown(recorded: Recorded) -> Acknowledged:
    act = recorded.act
    after = act.after if isinstance(act.after, dict) else {}
    return Acknowledged(act.object, rfc3339(recorded.at_us), act.who, int(after.get("dead_letters", 0)))


LONGEST_PAUSE = 10 * 366 * 86_400.0
"""Seconds."""


def end_of_pause(until: datetime | None, now: float, what: str) -> int:
    """Return the end of a pause in microseconds of wall time; 0 for none. ``what`` is paused. Raises ApiError."""
    if until is None:
        return 0
    at = until.timestamp()
    if not 0 < at - now <= LONGEST_PAUSE:
        raise ApiError(
            Code.INVALID,
            f"until is a time in the future, at most ten years ahead; leave it out for a pause until {what} is resumed",
        )
    return to_us(at)


NAMES_LIMIT = 10_000
"""The largest number of names in one answer of ``functions.registered``."""
MOST_SEARCHED = 10_000
"""Functions that one answer of ``functions.list`` searches for a part of their names: it takes some milliseconds."""
CANDIDATES_LIMIT = 100_000
"""The largest number of names from which it selects these."""


class FunctionCalls:
    """Answers for the functions of a node.

    ``others`` returns the rows of the other live nodes, and ``dead`` the numbers of dead letters.
    """

    def __init__(self, service: JobService, dead: DeadLetters, others: Callable[[], Sequence[NodeRow]] = tuple) -> None:
        self._service = service
        self._dead = dead
        self._other_nodes = others
        self.handlers: Handlers = {
            ListFunctions: self._list,
            ShowFunction: self._show,
            IsRegistered: self._registered,
            LimitFunction: self._limit,
            PauseFunction: self._pause,
            ResumeFunction: self._resume,
        }

    # ---- reading ----

    async def _list(self, request: ListFunctions, call: Call) -> Page[FunctionInfo]:
        limit = request.limit
        try:
            place = _place(request.cursor)
        except ValueError:
            raise no_place(request.cursor) from None
        part = request.name.casefold()

        def fits(name: bytes) -> bool:
            return namespace_of(name) == request.namespace and part in function_text(name).casefold()

        others = self._others(request, call.caller, (await self._dead.everywhere())[0], fits)
        await self._counted()
        found: list[FunctionQueue] = []
        searched = 0
        while isinstance(place, Place):
            size = min(limit - len(found), PAGE_SIZE)
            page = await self._service.roster.page(place, size)
            searched += size
            # Functions of `others` come in the last part, unless they are in memory.
            found.extend(
                queue for queue in page.functions if fits(queue.name) and (queue.serial or queue.name not in others)
            )
            place = b"" if page.next is None else page.next
            # The pages of a search are as large as the rest of the answer: so it ends before they become very small.
            is_enough = bool(part) and (searched >= MOST_SEARCHED or len(found) * 4 > limit * 3)
            if len(found) >= limit or is_enough:
                return await self._listed(found, _token(place))
        # The last part: functions with limits, pauses or dead letters, and those that workers of other nodes have registered.
        after, remaining = place, limit - len(found)
        names = heapq.nsmallest(remaining + 1, (name for name in others if name > after))
        following = _token(names[-2]) if len(names) > remaining else None
        names = names[:remaining]
        stored = await self._service.roster.find(names)
        found.extend(stored.get(name) or FunctionQueue(name) for name in names)
        return await self._listed(found, following)

    async def _listed(self, found: list[FunctionQueue], following: str | None) -> Page[FunctionInfo]:
        return Page(await self._infos(*sorted(found, key=lambda queue: queue.name)), following)

    def _others(
        self, request: ListFunctions, caller: Caller, dead: Mapping[bytes, int], fits: Callable[[bytes], bool]
    ) -> set[bytes]:
        """Return the functions that are listed although this node has no jobs or workers of them.

        Their names are places between pages, so these are the ones that the caller may see.
        """
        service = self._service
        elsewhere = service.registered.of_others() or frozenset()
        return {
            name
            for name in (*service.functions.names(), *elsewhere, *dead)
            if fits(name)
            and service.dispatch.queues.get(name) is None
            and caller.may(request.permission, request.namespace, function_text(name))
        }

    def _counted(self) -> Callback[None]:
        return Callback(lambda done, _: self._service.counted(lambda: done(None)))

    async def _show(self, request: ShowFunction, call: Call) -> FunctionInfo:
        service, name = self._service, function_named(request.function, request.namespace)
        await self._counted()
        queue = (await self._service.roster.find([name])).get(name)
        is_known = queue is not None or name in service.functions.names() or service.registered.has(name)
        if not is_known and not await count_dead(service, [name]):
            raise call.not_found()
        return (await self._infos(queue or FunctionQueue(name)))[0]

    async def _registered(self, request: IsRegistered, _: Call) -> Registration:
        service = self._service
        has = service.registered.has(function_named(request.function, request.namespace))
        registered = (name for name in service.registered.names() if namespace_of(name) == request.namespace)
        names = [] if has else heapq.nsmallest(NAMES_LIMIT, islice(registered, CANDIDATES_LIMIT))
        return Registration(has, service.sharing is not None, names_in_row(map(function_text, names)))

    # ---- changing ----

    async def _limit(self, request: LimitFunction, call: Call) -> FunctionInfo:
        requested = {
            name: getattr(request, name) for name in LimitSpec.__struct_fields__ if not name.startswith("uses")
        }
        given = {name: limit for name, limit in requested.items() if limit is not UNSET}
        if bool(given) + request.unlimited + request.declared != 1:
            raise ApiError(
                Code.INVALID, "give limits, or `unlimited`, or `declared` for its workers' limits: exactly one of these"
            )
        limits_of(LimitSpec(**given))  # raises for an invalid limit

        def change(stored: FunctionLimits, now_us: int) -> FunctionLimits:
            if request.declared:
                return replace(stored, commanded=None)
            if request.unlimited:
                return replace(stored, commanded=UNLIMITED)
            # Other limits keep their values, whether a command or workers have set them.
            before = replace(spec_of(rules.effective(stored, now_us)), uses=None, uses_timeout=None)
            return replace(stored, commanded=limits_of(replace(before, **given)))

        return await self._change(request, call, change)

    async def _pause(self, request: PauseFunction, call: Call) -> FunctionInfo:
        until_us = end_of_pause(request.until, self._service.clock.wall(), "the function")
        return await self._change(
            request,
            call,
            lambda stored, now_us: rules.paused(stored, now_us, request.reason, until_us, call.caller.name),
            request.reason,
        )

    async def _resume(self, request: ResumeFunction, call: Call) -> FunctionInfo:
        return await self._change(request, call, lambda stored, _: rules.resumed(stored))

    async def _change(
        self, request: LimitFunction | PauseFunction | ResumeFunction, call: Call, change: Change, reason: str = ""
    ) -> FunctionInfo:
        function, revision = request.function, request.revision
        service = self._service
        name = function_named(function, request.namespace)
        bare = name_of(name)
        if (decisions := decisions_of(name)) is not None:
            raise ApiError(
                Code.INVALID,
                f"{function}: decisions have no limits and no pause; pause the workflow {decisions[1]} instead, so that no new"
                " runs begin",
            )
        if not bare or b"\0" in bare:
            raise ApiError(Code.INVALID, "a function needs a name, without NUL bytes")
        if DECISIONS in bare:
            raise ApiError(Code.INVALID, OWN_FUNCTION)
        if len(bare) > FUNCTION_LIMIT:
            raise ApiError(Code.TOO_LARGE, LONG_NAME)
        if name not in service.functions.names() and not service.dispatch.admits(name, call.caller):
            raise ApiError(Code.TOO_MANY_FUNCTIONS, service.roster.too_many(name, call.caller))
        if revision is not None:
            change = _if_unchanged(change, function, revision)

        def act(before: FunctionLimits, after: FunctionLimits) -> Act:
            return call.act(reason, before=self._shown(before), after=self._shown(after))

        await service.functions.change(name, change, act)
        return (await self._infos((await self._service.roster.find([name])).get(name) or FunctionQueue(name)))[0]

    def _shown(self, stored: FunctionLimits) -> dict[str, Any]:
        """Return limits as the audit shows them."""
        limits = spec_of(rules.effective(stored, to_us(self._service.clock.wall())))
        shown: dict[str, Any] = to_builtins(limits)
        return shown | {"paused": stored.paused}

    # ---- writing ----

    async def _infos(self, *queues: FunctionQueue) -> list[FunctionInfo]:
        dead = await count_dead(self._service, [queue.name for queue in queues])
        running = running_by_function(self._other_nodes())
        return [
            self._info(queue, None if dead is None else dead.get(queue.name, 0), running.get(queue.name, 0))
            for queue in queues
        ]

    def _info(self, queue: FunctionQueue, dead: int | None, elsewhere: int) -> FunctionInfo:
        service = self._service
        function_limits = service.functions.limits_of(queue.name)
        now_us = to_us(service.clock.wall())
        limits, times = rules.effective(function_limits, now_us), rules.effective_times(function_limits, now_us)
        waiting = queue.waiting_by_priority()
        return FunctionInfo(
            function=function_text(queue.name),
            paused=function_limits.paused,
            **asdict(spec_of(limits)),
            source="command" if function_limits.commanded is not None else "workers" if limits != UNLIMITED else None,
            waiting=sum(waiting),
            running=queue.running,
            workers=sum(queue.workers.values()),
            registered=service.registered.has(queue.name),
            pause_reason=function_limits.pause_reason or None,
            paused_at=rfc3339(function_limits.paused_us),
            paused_until=rfc3339(function_limits.until_us),
            revision=revision_of(function_limits),
            dead_letters=dead,
            waiting_by_priority=WaitingJobs(*waiting),
            running_at_all_nodes=queue.running + elsewhere,
            paused_by=function_limits.paused_by or None,
            start_within=times.start_within,
            deadline=times.deadline,
        )


def revision_of(limits: FunctionLimits) -> str:
    """Return the revision of what commands have set. Declarations, which workers repeat, do not change it.

    Nor does ``paused_by``: nodes of earlier versions leave it out, and return the same revision.
    """
    commanded = replace(limits, function=b"", declared=(), version=0, paused_by="", times=())
    return blake2b(encode_limits(commanded), digest_size=8).hexdigest()


def _if_unchanged(change: Change, function: str, revision: str) -> Change:
    """Return a change that raises ApiError if the function has another revision."""

    def checked(stored: FunctionLimits, now_us: int) -> FunctionLimits:
        if revision_of(stored) != revision:
            raise ApiError(
                Code.CHANGED,
                f"the limits or the pause of {function} were changed since revision {revision}: read them again",
            )
        return change(stored, now_us)

    return checked


def _token(place: Place | bytes) -> str:
    """Write a place as a token for clients."""
    if isinstance(place, bytes):
        return "n" + place.hex()
    return f"m{place.serial}" if place.row is None else f"s{place.serial}.{place.row.hex()}"


def _place(token: str | None) -> Place | bytes:
    """Read the place of a token. Raises ValueError."""
    if token is None:
        return FIRST_PLACE
    kind, rest = token[:1], token[1:]
    if kind == "n":
        return bytes.fromhex(rest)
    if kind not in {"m", "s"}:
        raise ValueError(token)
    serial, _, row = rest.partition(".")
    return Place(int(serial), bytes.fromhex(row) if kind == "s" else None)


V = TypeVar("V")
K = TypeVar("K")


class _Reading(NamedTuple, Generic[V]):
    """A value, and the monotonic time at which its reading began."""

    read_at: float
    value: V


class _EndedError(Exception):
    """The call that was reading has ended, so another one has to read."""


class Readings(Generic[K, V]):
    """The newest values by key, at most ``most`` of them; ``seconds`` is for how long a value is used."""

    def __init__(self, monotonic: Callable[[], float], seconds: float, most: int) -> None:
        self._monotonic = monotonic
        self._seconds = seconds
        self._most = most
        self._kept: dict[K, _Reading[V]] = {}
        self._under_way: dict[K, list[tuple[Done, Failed]]] = {}
        """The calls that wait for a reading of another call."""

    async def get(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        """Return a value, with ``read`` if it is too old and no other call reads it. Raises what ``read`` raises."""
        while True:
            kept = self._kept.get(key)
            if kept is not None and self._monotonic() - kept.read_at < self._seconds:
                return kept.value
            waiting = self._under_way.get(key)
            if waiting is None:
                return await self._read(key, read)
            try:
                return await Callback[V](lambda done, failed, calls=waiting: calls.append((done, failed)))  # type: ignore[misc]
            except _EndedError:
                continue

    def forget(self, key: K) -> None:
        """Read a value anew the next time."""
        self._kept.pop(key, None)

    async def _read(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        waiting = self._under_way[key] = []
        began = self._monotonic()
        try:
            value = await read()
        except BaseException as error:
            del self._under_way[key]
            for _, failed in waiting:
                failed(error if isinstance(error, MainspringError) else _EndedError())
            raise
        del self._under_way[key]
        self._keep(key, _Reading(began, value))
        for done, _ in waiting:
            done(value)
        return value

    def _keep(self, key: K, kept: _Reading[V]) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = kept

"""Calls about functions: their work, limits and pauses, and the workers that have registered them."""

from __future__ import annotations

import heapq
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, to_builtins
from msgspec.structs import asdict, replace

from mainspring.api.answers.dead_letters import DeadLetters, count_dead
from mainspring.api.answers.page_size import names_in_row
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.functions import FunctionInfo, Limit, List, Listed, Pause, Registered, Registration, Resume, Show
from mainspring.api.status import Waiting
from mainspring.api.submitting import LONG_NAME, RESERVED_NAME
from mainspring.clock import to_us
from mainspring.jobs.functions import NOT_KEPT
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import DECISIONS, FUNCTION_LIMIT
from mainspring.jobs.roster import FIRST_PLACE, PAGE_SIZE, Place
from mainspring.namespaces import name_of, namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.resources import rules
from mainspring.resources.limit_specs import LimitSpec, limits_of, spec_of
from mainspring.resources.model import UNLIMITED, FunctionLimits, encode_limits
from mainspring.workflows.model import decisions_of, function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.access.acts import Act
    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.jobs.functions import Change
    from mainspring.jobs.roster import Page
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import NodeRow


NO_LIMITS = (
    "{0} is a workflow: limits hold jobs of tasks back, and no runs. Limit the tasks that its runs call, or begin no new runs"
    " for a time, with: mainspring functions pause {0}"
)
LONGEST_PAUSE = 10 * 366 * 86_400.0
"""Seconds."""
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
            List: self._list,
            Show: self._show,
            Registered: self._registered,
            Limit: self._limit,
            Pause: self._pause,
            Resume: self._resume,
        }

    # ---- reading ----

    async def _list(self, request: List, caller: Caller) -> Listed:
        limit = request.limit
        try:
            place = _place(request.after)
        except ValueError:
            raise ApiError(Code.INVALID, f"{request.after!r} is not the `next` of an earlier answer") from None
        part = request.name.casefold()

        def fits(name: bytes) -> bool:
            return namespace_of(name) == request.namespace and part in function_text(name).casefold()

        others = self._others(request, caller, (await self._dead.everywhere())[0], fits)
        await self._counted()
        found: list[FunctionQueue] = []
        searched = 0
        while isinstance(place, Place):
            size = min(limit - len(found), PAGE_SIZE)
            page = await self._page(place, size)
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
        stored = await self._find(names)
        found.extend(stored.get(name) or FunctionQueue(name) for name in names)
        return await self._listed(found, following)

    async def _listed(self, found: list[FunctionQueue], following: str | None) -> Listed:
        return Listed(await self._infos(*sorted(found, key=lambda queue: queue.name)), following)

    def _others(
        self, request: List, caller: Caller, dead: Mapping[bytes, int], fits: Callable[[bytes], bool]
    ) -> set[bytes]:
        """Return the functions that are listed although this node has no jobs or workers of them.

        Their names are places between pages, so these are the ones that the caller may see.
        """
        service = self._service
        elsewhere = service.registered_elsewhere() or frozenset()
        return {
            name
            for name in (*service.limited_functions(), *elsewhere, *dead)
            if fits(name)
            and service.queue_of(name) is None
            and caller.may(request.permission, request.namespace, function_text(name))
        }

    def _page(self, place: Place, size: int) -> Later[Page]:
        return Later(lambda done, failed: self._service.page_of_functions(place, done, failed, size))

    def _counted(self) -> Later[None]:
        return Later(lambda done, _: self._service.counted(lambda: done(None)))

    def _find(self, names: Sequence[bytes]) -> Later[Mapping[bytes, FunctionQueue]]:
        return Later(lambda done, failed: self._service.find_functions(names, done, failed))

    async def _show(self, request: Show) -> FunctionInfo:
        service, name = self._service, function_named(request.function, request.namespace)
        await self._counted()
        queue = (await self._find([name])).get(name)
        is_known = queue is not None or name in service.limited_functions() or service.is_registered(name)
        if not is_known and not await count_dead(service, [name]):
            raise ApiError(Code.FUNCTION_NOT_FOUND, f"there is no function {request.function}")
        return (await self._infos(queue or FunctionQueue(name)))[0]

    async def _registered(self, request: Registered) -> Registration:
        service = self._service
        has = service.is_registered(function_named(request.function, request.namespace))
        registered = (name for name in service.registered_names() if namespace_of(name) == request.namespace)
        names = [] if has else heapq.nsmallest(NAMES_LIMIT, islice(registered, CANDIDATES_LIMIT))
        return Registration(has, service.sharing is not None, names_in_row(map(function_text, names)))

    # ---- changing ----

    async def _limit(self, request: Limit, caller: Caller) -> FunctionInfo:
        requested = {name: getattr(request, name) for name in LimitSpec.__struct_fields__}
        given = {name: limit for name, limit in requested.items() if limit is not UNSET}
        if bool(given) + request.unlimited + request.declared != 1:
            raise ApiError(
                Code.INVALID, "give limits, or `unlimited`, or `declared` for its workers' limits: exactly one of these"
            )
        limits_of(LimitSpec(**given))  # raises for an invalid limit
        if given and self._is_workflow(function_named(request.function, request.namespace)):
            raise ApiError(Code.INVALID, NO_LIMITS.format(request.function))

        def change(stored: FunctionLimits, now_us: int) -> FunctionLimits:
            if request.declared:
                return replace(stored, commanded=None)
            if request.unlimited:
                return replace(stored, commanded=UNLIMITED)
            # Other limits keep their values, whether a command or workers have set them.
            return replace(stored, commanded=limits_of(replace(spec_of(rules.effective(stored, now_us)), **given)))

        return await self._change(request, caller, change)

    async def _pause(self, request: Pause, caller: Caller) -> FunctionInfo:
        until = request.until
        if until is not None and not 0 < until - self._service.wall() <= LONGEST_PAUSE:
            raise ApiError(
                Code.INVALID,
                "until is a time in the future, at most ten years ahead, in seconds since 1970; leave it out"
                " for a pause until the function is resumed",
            )
        until_us = 0 if until is None else to_us(until)
        return await self._change(
            request,
            caller,
            lambda stored, now_us: rules.paused(stored, now_us, request.reason, until_us, caller.name),
            request.reason,
        )

    async def _resume(self, request: Resume, caller: Caller) -> FunctionInfo:
        return await self._change(request, caller, lambda stored, _: rules.resumed(stored))

    async def _change(
        self, request: Limit | Pause | Resume, caller: Caller, change: Change, reason: str = ""
    ) -> FunctionInfo:
        function, revision = request.function, request.revision
        caller.check(request.permission, request.namespace, function)
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
            raise ApiError(Code.INVALID, RESERVED_NAME)
        if len(bare) > FUNCTION_LIMIT:
            raise ApiError(Code.TOO_LARGE, LONG_NAME)
        if not service.keeps_limits:
            raise ApiError(Code.UNSUPPORTED, NOT_KEPT)
        if name not in service.limited_functions() and not service.admits(name, caller):
            raise ApiError(Code.TOO_MANY_FUNCTIONS, service.too_many_functions(name, caller))
        if revision is not None:
            change = _if_unchanged(change, function, revision)

        def act(before: FunctionLimits, after: FunctionLimits) -> Act:
            shown = self._shown(before), self._shown(after)
            return caller.act(
                request.call, function, reason, namespace=request.namespace, before=shown[0], after=shown[1]
            )

        await Later[Any](lambda done, failed: service.change_limits(name, change, done, failed, act))
        return (await self._infos((await self._find([name])).get(name) or FunctionQueue(name)))[0]

    def _shown(self, stored: FunctionLimits) -> dict[str, Any]:
        """Return limits as the audit shows them."""
        limits = spec_of(rules.effective(stored, to_us(self._service.wall())))
        shown: dict[str, Any] = to_builtins(limits)
        return shown | {"paused": stored.paused}

    def _is_workflow(self, name: bytes) -> bool:
        queue = self._service.queue_of(name)
        return queue is not None and queue.is_root

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
        function_limits = stored = service.spec_of(queue.name)
        if queue.is_root:  # limits of its time before the workflow have no effect
            function_limits = replace(function_limits, declared=(), commanded=None)
        limits = rules.effective(function_limits, to_us(service.wall()))
        waiting = queue.waiting_by_priority()
        return FunctionInfo(
            function=function_text(queue.name),
            paused=function_limits.paused,
            **asdict(spec_of(limits)),
            source="command" if function_limits.commanded is not None else "workers" if limits != UNLIMITED else None,
            waiting=sum(waiting),
            running=queue.running,
            workers=sum(queue.workers.values()),
            registered=service.is_registered(queue.name),
            pause_reason=function_limits.pause_reason or None,
            paused_at=rfc3339(function_limits.paused_us),
            paused_until=rfc3339(function_limits.until_us),
            revision=revision_of(stored),
            dead_letters=dead,
            waiting_by_priority=Waiting(*waiting),
            running_at_all_nodes=queue.running + elsewhere,
            paused_by=function_limits.paused_by or None,
        )


def revision_of(limits: FunctionLimits) -> str:
    """Return the revision of what commands have set. Declarations, which workers repeat, do not change it.

    Nor does ``paused_by``: nodes of earlier versions leave it out, and return the same revision.
    """
    commanded = replace(limits, function=b"", declared=(), version=0, paused_by="")
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

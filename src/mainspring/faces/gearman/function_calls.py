"""The methods of CALL that are about functions: what `mainspring functions` asks."""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.jobs.functions import NOT_KEPT
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.roster import BEGIN, PAGE, Place
from mainspring.resources import rules
from mainspring.resources.model import UNLIMITED, FunctionLimits
from mainspring.resources.said import SaidLimits, SaidRate, limits_of, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.gearman.calls import Call, Methods
    from mainspring.jobs.functions import Change
    from mainspring.jobs.roster import Page
    from mainspring.jobs.service import JobService


LISTED = 1000
"""Functions that one answer of ``functions.list`` has at most."""


class _FunctionParams(msgspec.Struct, forbid_unknown_fields=True):
    function: str


class _ListParams(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED)] = LISTED
    after: str | None = None


class _LimitParams(msgspec.Struct, forbid_unknown_fields=True):
    function: str
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    concurrency_per_key: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: SaidRate | msgspec.UnsetType | None = msgspec.UNSET
    rate_per_key: SaidRate | msgspec.UnsetType | None = msgspec.UNSET
    unlimited: bool = False
    declared: bool = False


MOST_NAMES = 10_000
"""Functions that one answer of ``functions.registered`` names."""
LOOKED_AT = 100_000
"""Functions that it chooses them from."""
_LIMITS = ("concurrency", "concurrency_per_key", "rate", "rate_per_key")


def describe(queue: FunctionQueue, service: JobService) -> dict[str, Any]:
    """Return a function as tools see it; docs/reference/protocol.md lists the keys."""
    said = service.said_of(queue.name)
    now_us = to_us(service.wall())
    limits = rules.effective(said, now_us)
    source = "command" if said.commanded is not None else "workers" if limits != UNLIMITED else None
    return {
        "function": queue.name.decode("utf-8", "backslashreplace"),
        "paused": said.paused,
        **told(limits),
        "source": source,
        "waiting": sum(queue.waiting_by_priority()),
        "running": queue.running,
        "workers": sum(queue.workers.values()),
        "registered": service.is_registered(queue.name),
    }


def _list(call: Call, said: _ListParams) -> None:
    service = call.peer.service
    try:
        place = _place(said.after)
    except ValueError:
        call.fault("usage", f"{said.after!r} is not the `next` of an earlier answer")
        return
    others = _others(service)
    found: list[FunctionQueue] = []

    def answer(following: str | None) -> None:
        functions = [describe(queue, service) for queue in sorted(found, key=lambda queue: queue.name)]
        call.answer({"functions": functions, "next": following})

    def more(place: Place | bytes) -> None:
        if isinstance(place, bytes):
            the_rest(place)
        else:
            service.page_of_functions(place, listed, call.failed, min(said.limit - len(found), PAGE))

    def listed(page: Page) -> None:
        # Those of the last part are in memory, or left to that part.
        found.extend(queue for queue in page.functions if queue.serial or queue.name not in others)
        following = b"" if page.next is None else page.next
        if len(found) < said.limit:
            more(following)
        else:
            answer(_token(following))

    def the_rest(after: bytes) -> None:
        """List functions of which something is said, or that workers of other nodes have registered."""
        names = heapq.nsmallest(said.limit - len(found) + 1, (name for name in others if name > after))
        following = _token(names[-2]) if len(names) > said.limit - len(found) else None
        names = names[: said.limit - len(found)]

        def looked(functions: Mapping[bytes, FunctionQueue]) -> None:
            found.extend(functions.get(name) or FunctionQueue(name) for name in names)
            answer(following)

        service.find_functions(names, looked, call.failed)

    service.counted(lambda: more(place))


def _others(service: JobService) -> set[bytes]:
    """Return the functions that are listed although this node has nothing to do with them."""
    elsewhere = service.registered_elsewhere() or frozenset()
    return {name for name in (*service.said_functions(), *elsewhere) if service.queue_of(name) is None}


def _token(place: Place | bytes) -> str:
    """Write a place as clients hand it back."""
    if isinstance(place, bytes):
        return "n" + place.hex()
    return f"m{place.serial}" if place.row is None else f"s{place.serial}.{place.row.hex()}"


def _place(token: str | None) -> Place | bytes:
    """Read a place. Raises ValueError."""
    if token is None:
        return BEGIN
    kind, rest = token[:1], token[1:]
    if kind == "n":
        return bytes.fromhex(rest)
    if kind not in {"m", "s"}:
        raise ValueError(token)
    serial, _, row = rest.partition(".")
    return Place(int(serial), bytes.fromhex(row) if kind == "s" else None)


def _show(call: Call, said: _FunctionParams) -> None:
    service, name = call.peer.service, said.function.encode()

    def found(functions: Mapping[bytes, FunctionQueue]) -> None:
        queue = functions.get(name)
        if queue is not None or name in service.said_functions() or service.is_registered(name):
            call.answer(describe(queue or FunctionQueue(name), service))
        else:
            call.fault("not_found", f"the server knows no function {said.function}")

    service.counted(lambda: service.find_functions([name], found, call.failed))


def _registered(call: Call, said: _FunctionParams) -> None:
    service = call.peer.service
    has = service.is_registered(said.function.encode())
    names = [] if has else heapq.nsmallest(MOST_NAMES, islice(service.registered_names(), LOOKED_AT))
    shown = [name.decode("utf-8", "backslashreplace") for name in names]
    call.answer({"registered": has, "shared": service.sharing is not None, "functions": shown})


def _limit(call: Call, said: _LimitParams) -> None:
    given = {name: getattr(said, name) for name in _LIMITS if getattr(said, name) is not msgspec.UNSET}
    if bool(given) + said.unlimited + said.declared != 1:
        call.fault("usage", "give limits, or that it is unlimited, or that what its workers declare holds")
        return
    try:
        limits_of(SaidLimits(**given))
    except UsageError as error:
        call.fault("usage", str(error))
        return

    def change(stored: FunctionLimits, now_us: int) -> FunctionLimits:
        if said.declared:
            return msgspec.structs.replace(stored, commanded=None)
        if said.unlimited:
            return msgspec.structs.replace(stored, commanded=UNLIMITED)
        # What is not given stays as it is, whoever said it.
        limits = limits_of(msgspec.convert(told(rules.effective(stored, now_us)) | _builtins(given), SaidLimits))
        return msgspec.structs.replace(stored, commanded=limits)

    _change(call, said.function, change)


def _builtins(given: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = msgspec.to_builtins(given)
    return changed


def _pause(call: Call, said: _FunctionParams, *, paused: bool) -> None:
    _change(call, said.function, lambda stored, _: msgspec.structs.replace(stored, paused=paused))


def _change(call: Call, function: str, change: Change) -> None:
    name = function.encode()
    if not name or b"\0" in name:
        call.fault("usage", "a function has a name")
        return
    service = call.peer.service
    if not service.keeps_limits:
        call.fault("usage", NOT_KEPT)
        return
    if name not in service.said_functions() and not service.admits(name):
        call.fault("usage", call.peer.face.too_many_functions().decode())
        return

    def changed(_: FunctionLimits) -> None:
        service.find_functions([name], found, call.failed)

    def found(functions: Mapping[bytes, FunctionQueue]) -> None:
        call.answer(describe(functions.get(name) or FunctionQueue(name), service))

    service.change_limits(name, change, changed, call.failed)


METHODS: Methods = {
    "functions.list": (_ListParams, _list),
    "functions.show": (_FunctionParams, _show),
    "functions.registered": (_FunctionParams, _registered),
    "functions.limit": (_LimitParams, _limit),
    "functions.pause": (_FunctionParams, lambda call, said: _pause(call, said, paused=True)),
    "functions.resume": (_FunctionParams, lambda call, said: _pause(call, said, paused=False)),
}

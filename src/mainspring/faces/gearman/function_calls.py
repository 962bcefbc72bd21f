"""The methods of CALL that are about functions: what `mainspring functions` asks."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.faces.gearman.calls import NoParams
from mainspring.jobs.functions import NOT_KEPT
from mainspring.resources import rules
from mainspring.resources.model import UNLIMITED, FunctionLimits
from mainspring.resources.said import SaidLimits, SaidRate, limits_of, told

if TYPE_CHECKING:
    from mainspring.faces.gearman.calls import Call, Methods
    from mainspring.jobs.functions import Change
    from mainspring.jobs.service import JobService


class _FunctionParams(msgspec.Struct, forbid_unknown_fields=True):
    function: str


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
_LIMITS = ("concurrency", "concurrency_per_key", "rate", "rate_per_key")


def describe(function: bytes, service: JobService) -> dict[str, Any]:
    """Return a function as tools see it; docs/reference/protocol.md lists the keys."""
    said = service.functions.said(function)
    now_us = to_us(service.clock.wall())
    limits = rules.effective(said, now_us)
    source = "command" if said.commanded is not None else "workers" if limits != UNLIMITED else None
    queue = service.dispatch.queues.get(function)
    high, normal, low = queue.waiting_by_priority() if queue is not None else (0, 0, 0)
    return {
        "function": function.decode("utf-8", "backslashreplace"),
        "paused": said.paused,
        **told(limits),
        "source": source,
        "waiting": high + normal + low,
        "running": queue.running if queue is not None else 0,
        "workers": sum(queue.workers.values()) if queue is not None else 0,
        "registered": service.registered.has(function),
    }


def _list(call: Call, _: object) -> None:
    service = call.peer.service

    def counted() -> None:
        names = {*service.dispatch.queues, *service.functions.names(), *service.registered.names()}
        call.answer({"functions": [describe(name, service) for name in sorted(names)]})

    service.counted(counted)


def _show(call: Call, said: _FunctionParams) -> None:
    service, name = call.peer.service, said.function.encode()

    def counted() -> None:
        if name in service.dispatch.queues or name in service.functions.names() or service.registered.has(name):
            call.answer(describe(name, service))
        else:
            call.fault("not_found", f"the server knows no function {said.function}")

    service.counted(counted)


def _registered(call: Call, said: _FunctionParams) -> None:
    registered = call.peer.service.registered
    has = registered.has(said.function.encode())
    names = [] if has else heapq.nsmallest(MOST_NAMES, registered.names())
    shown = [name.decode("utf-8", "backslashreplace") for name in names]
    call.answer({"registered": has, "shared": call.peer.service.sharing is not None, "functions": shown})


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
    if not service.functions.kept:
        call.fault("usage", NOT_KEPT)
        return
    service.functions.change(name, change, lambda _: call.answer(describe(name, service)), call.failed)


METHODS: Methods = {
    "functions.list": (NoParams, _list),
    "functions.show": (_FunctionParams, _show),
    "functions.registered": (_FunctionParams, _registered),
    "functions.limit": (_LimitParams, _limit),
    "functions.pause": (_FunctionParams, lambda call, said: _pause(call, said, paused=True)),
    "functions.resume": (_FunctionParams, lambda call, said: _pause(call, said, paused=False)),
}

"""Grants for some functions, and for payloads, applied to calls about functions, schedules and runs of workflows.

`Api` checks the permission of a request, for the functions of its object, too: the classes here look those up. Their handlers
stand around those of a subject. For a caller whose grants name some functions, they leave others out of lists. Callers without
the right to see payloads get sizes in their place. Most callers are not restricted, and cost nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from mainspring.access.caller import LOCAL, Permission
from mainspring.api import functions, schedules, workflows
from mainspring.api.handlers.registry import Call
from mainspring.api.request import Touches
from mainspring.errors import ForbiddenError
from mainspring.schedules.specification import Specification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Finder, Handlers
    from mainspring.api.request import Page

SHOWN_ENDS = ("Id", "Type", "Timeout", "Name", "Priority", "Policy")
SHOWN = frozenset(
    {
        "name",
        "version",
        "cause",
        "reason",
        "message",
        "identity",
        "taskList",
        "tagList",
        "tags",
        "function",
        "type",
        "digest",
    }
)
"""The attributes of events whose texts are no payload: these, and those with the ends above."""


class FunctionGrants:
    """The calls about functions."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = handlers
        self.handlers: Handlers = {
            **handlers,
            functions.ListFunctions: self._list,
            functions.IsRegistered: self._registered,
        }

    async def _list(self, request: functions.ListFunctions, call: Call) -> Page[functions.FunctionInfo]:
        listed: Page[functions.FunctionInfo] = await self._inner[functions.ListFunctions](request, call)
        listed.items = call.shown(listed.items, lambda one: one.function)
        return listed

    async def _registered(self, request: functions.IsRegistered, call: Call) -> functions.Registration:
        answer: functions.Registration = await self._inner[functions.IsRegistered](request, call)
        answer.functions = call.shown(answer.functions, str)
        return answer


class ScheduleGrants:
    """The calls about schedules."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = handlers
        self.handlers: Handlers = {
            **handlers,
            schedules.ListAllSchedules: self._list,
            schedules.ShowSchedule: self._show,
            schedules.DeclareSchedules: self._declare,
        }
        self.objects: Mapping[Touches, Finder] = {Touches.SCHEDULE: self._functions_of}

    async def _functions_of(self, request: Any, caller: Caller) -> list[str]:
        """Return the function that the schedule of a request has, and the one that the request gives it.

        The history of a removed schedule stays; its function is unknown, and by default has its name.
        """
        functions_by_name: dict[str, str] = {}
        place: str | None = ""
        while place is not None:
            asked = schedules.ListAllSchedules(namespace=request.namespace, cursor=place or None)
            listed = await self._inner[schedules.ListAllSchedules](asked, Call(asked, caller))
            functions_by_name |= {one.name: one.function for one in listed.items}
            place = listed.next
        found = [functions_by_name[request.name]] if request.name in functions_by_name else []
        if isinstance(request, Specification) and request.parents:
            for parent in request.parents:  # a schedule shows when those before it ran, and nobody can remove these
                if parent in functions_by_name:
                    caller.check(Permission.READ, request.namespace, functions_by_name[parent])
        if isinstance(request, Specification) and isinstance(request.function, str):
            return [*found, request.function]
        return [*found, request.name] if not found or isinstance(request, schedules.ReplaceSchedule) else found

    async def _list(self, request: schedules.ListAllSchedules, call: Call) -> Page[schedules.ScheduleInfo]:
        listed: Page[schedules.ScheduleInfo] = await self._inner[schedules.ListAllSchedules](request, call)
        listed.items = call.shown(listed.items, lambda one: one.function)
        return listed

    async def _show(self, request: schedules.ShowSchedule, call: Call) -> schedules.ScheduleDetails:
        shown: schedules.ScheduleDetails = await self._inner[schedules.ShowSchedule](request, call)
        call.check(shown.function)
        if not call.caller.may(Permission.PAYLOADS, request.namespace, shown.function):
            shown.payload, shown.args = b"", UNSET
        return shown

    async def _declare(self, request: schedules.DeclareSchedules, call: Call) -> Any:
        if call.is_restricted:
            for one in request.schedules:
                call.check(one.function if isinstance(one.function, str) else one.name)
        return await self._inner[schedules.DeclareSchedules](request, call)


class RunGrants:
    """The calls about workflows and their runs."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = handlers
        self.handlers: Handlers = {
            **handlers,
            workflows.ListWorkflowRuns: self._list,
            workflows.ShowRun: self._show,
            workflows.ReadHistory: self._history,
            workflows.TerminateRun: self._terminate,
            workflows.ListVersions: self._versions,
            workflows.ListDeciders: self._workers,
        }
        self.objects: Mapping[Touches, Finder] = {Touches.RUN: self._functions_of}

    async def _type(self, request: Any, caller: Caller) -> str:
        asked = workflows.ShowRun(namespace=request.namespace, key=request.key)
        shown = await self._inner[workflows.ShowRun](asked, Call(asked, caller))
        found: str = shown.type
        return found

    async def _functions_of(self, request: Any, caller: Caller) -> list[str] | None:
        """Return the type of the run of a request; None for a request about all runs."""
        return None if request.key is None else [await self._type(request, caller)]

    async def _terminate(self, request: workflows.TerminateRun, call: Call) -> Any:
        if request.children is not None and call.is_restricted:
            raise ForbiddenError(
                f"{call.caller.name!r} has grants for some functions, and the children of a run may have others: leave out"
                " children, so that each child follows its own policy"
            )
        return await self._inner[workflows.TerminateRun](request, call)

    async def _list(self, request: workflows.ListWorkflowRuns, call: Call) -> Page[workflows.RunInfo]:
        listed: Page[workflows.RunInfo] = await self._inner[workflows.ListWorkflowRuns](request, call)
        listed.items = call.shown(listed.items, lambda one: one.type)
        return listed

    async def _show(self, request: workflows.ShowRun, call: Call) -> workflows.RunDetails:
        shown: workflows.RunDetails = await self._inner[workflows.ShowRun](request, call)
        call.check(shown.type)
        return shown

    async def _history(self, request: workflows.ReadHistory, call: Call) -> workflows.HistoryPage:
        if call.caller is LOCAL:
            whole: workflows.HistoryPage = await self._inner[workflows.ReadHistory](request, call)
            return whole
        patterns = call.caller.functions(Permission.PAYLOADS, request.namespace)
        sees_payloads = patterns is None
        if call.is_restricted or patterns:
            kind = await self._type(request, call.caller)
            call.check(kind)
            sees_payloads = call.caller.may(Permission.PAYLOADS, request.namespace, kind)
        if request.exact and not sees_payloads:
            raise ForbiddenError(
                f"{call.caller.name!r} lacks the permission {Permission.PAYLOADS.value!r}, and an exact history contains all"
                " payloads: use a token that has it"
            )
        events: workflows.HistoryPage = await self._inner[workflows.ReadHistory](request, call)
        if not sees_payloads:
            events.items = [without_payloads(event) for event in events.items]
        return events

    async def _versions(self, request: workflows.ListVersions, call: Call) -> Page[workflows.VersionInfo]:
        found: Page[workflows.VersionInfo] = await self._inner[workflows.ListVersions](request, call)
        found.items = call.shown(found.items, lambda one: one.type)
        return found

    async def _workers(self, request: workflows.ListDeciders, call: Call) -> Page[workflows.DeciderInfo]:
        found: Page[workflows.DeciderInfo] = await self._inner[workflows.ListDeciders](request, call)
        if call.is_restricted:
            for worker in found.items:
                worker.versions = call.shown(worker.versions, lambda one: one.rpartition("@")[0])
            found.items = [worker for worker in found.items if worker.versions]
        return found


def without_payloads(event: Any) -> Any:
    """Return an event of a history with the size of each text that may be a payload in its place."""
    if isinstance(event, list):
        return [without_payloads(one) for one in event]
    if not isinstance(event, dict):
        return None if isinstance(event, (str, bytes)) else event  # a text of a list without a name
    found: dict[str, Any] = {}
    for name, value in event.items():
        if isinstance(value, (dict, list)) and name not in SHOWN:
            found[name] = without_payloads(value)
        elif isinstance(value, (str, bytes)) and not (name in SHOWN or name.endswith(SHOWN_ENDS)):
            found[f"{name}Size"] = len(value.encode()) if isinstance(value, str) else len(value)
        else:
            found[name] = value
    return found

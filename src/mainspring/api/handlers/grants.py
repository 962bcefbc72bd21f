"""Grants for some functions, and for payloads, applied to calls about functions, schedules and runs of workflows.

`Api` checks the permission of a request, for the functions of its object, too: the classes here look those up. Their handlers
stand around those of a subject. For a caller whose grants name some functions, they leave others out of lists. Callers without
the right to see payloads get sizes in their place. Most callers are not restricted, and cost nothing more.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from mainspring.access.caller import LOCAL
from mainspring.access.roles import Permission
from mainspring.api import functions, schedules, workflows
from mainspring.api.request import Touches
from mainspring.errors import ForbiddenError
from mainspring.schedules.specification import Specification

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from msgspec import UnsetType

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Finder, Handlers
    from mainspring.api.request import Request
    from mainspring.callbacks import Ask

if TYPE_CHECKING:
    Handler = Callable[[Any, Caller], Coroutine[Ask, Any, Any]]

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


def is_restricted(request: Request[Any], caller: Caller) -> bool:
    """Return whether the caller's grants for a request name some functions."""
    return caller is not LOCAL and caller.functions(request.permission, request.namespace) is not None


def _inner(handlers: Handlers) -> dict[type[Request[Any]], Handler]:
    """Return the handlers of a subject, each with two parameters."""

    def with_caller(handler: Callable[..., Coroutine[Ask, Any, Any]]) -> Handler:
        if len(signature(handler).parameters) > 1:
            return handler
        return lambda request, _: handler(request)

    return {kind: with_caller(handler) for kind, handler in handlers.items()}


class FunctionGrants:
    """The calls about functions. Changes check their function themselves."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = _inner(handlers)
        self.handlers: Handlers = {
            **handlers,
            functions.ListFunctions: self._list,
            functions.ShowFunction: self._show,
            functions.IsRegistered: self._registered,
        }

    async def _list(self, request: functions.ListFunctions, caller: Caller) -> functions.ListedFunctions:
        listed: functions.ListedFunctions = await self._inner[functions.ListFunctions](request, caller)
        if is_restricted(request, caller):
            listed.functions = [one for one in listed.functions if _sees(request, caller, one.function)]
        return listed

    async def _show(self, request: functions.ShowFunction, caller: Caller) -> functions.FunctionInfo:
        caller.check(request.permission, request.namespace, request.function)
        shown: functions.FunctionInfo = await self._inner[functions.ShowFunction](request, caller)
        return shown

    async def _registered(self, request: functions.IsRegistered, caller: Caller) -> functions.Registration:
        caller.check(request.permission, request.namespace, request.function)
        answer: functions.Registration = await self._inner[functions.IsRegistered](request, caller)
        if is_restricted(request, caller):
            answer.functions = [name for name in answer.functions if _sees(request, caller, name)]
        return answer


class ScheduleGrants:
    """The calls about schedules."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = _inner(handlers)
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
        after: str | UnsetType | None = None
        while after is not UNSET:
            listed = await self._inner[schedules.ListAllSchedules](
                schedules.ListAllSchedules(namespace=request.namespace, after=after), caller
            )
            functions_by_name |= {one.name: one.function for one in listed.schedules}
            after = listed.next
        found = [functions_by_name[request.name]] if request.name in functions_by_name else []
        if isinstance(request, Specification) and request.parents:
            for parent in request.parents:  # a schedule shows when those before it ran, and nobody can remove these
                if parent in functions_by_name:
                    caller.check(Permission.READ, request.namespace, functions_by_name[parent])
        if isinstance(request, Specification) and isinstance(request.function, str):
            return [*found, request.function]
        return [*found, request.name] if not found or isinstance(request, schedules.ReplaceSchedule) else found

    async def _list(self, request: schedules.ListAllSchedules, caller: Caller) -> schedules.ListedSchedules:
        listed: schedules.ListedSchedules = await self._inner[schedules.ListAllSchedules](request, caller)
        if is_restricted(request, caller):
            listed.schedules = [one for one in listed.schedules if _sees(request, caller, one.function)]
        return listed

    async def _show(self, request: schedules.ShowSchedule, caller: Caller) -> schedules.ScheduleDetails:
        shown: schedules.ScheduleDetails = await self._inner[schedules.ShowSchedule](request, caller)
        caller.check(request.permission, request.namespace, shown.function)
        if not caller.may(Permission.PAYLOADS, request.namespace, shown.function):
            shown.payload, shown.args = b"", UNSET
        return shown

    async def _declare(self, request: schedules.DeclareSchedules, caller: Caller) -> Any:
        if is_restricted(request, caller):
            for one in request.schedules:
                given = one.function if isinstance(one.function, str) else one.name
                caller.check(request.permission, request.namespace, given)
        return await self._inner[schedules.DeclareSchedules](request, caller)


class RunGrants:
    """The calls about workflows and their runs."""

    def __init__(self, handlers: Handlers) -> None:
        self._inner = _inner(handlers)
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
        shown = await self._inner[workflows.ShowRun](
            workflows.ShowRun(namespace=request.namespace, key=request.key), caller
        )
        found: str = shown.type
        return found

    async def _functions_of(self, request: Any, caller: Caller) -> list[str] | None:
        """Return the type of the run of a request; None for a request about all runs."""
        return None if request.key is None else [await self._type(request, caller)]

    async def _terminate(self, request: workflows.TerminateRun, caller: Caller) -> Any:
        if request.children is not None and is_restricted(request, caller):
            raise ForbiddenError(
                f"{caller.name!r} has grants for some functions, and the children of a run may have others: leave out"
                " children, so that each child follows its own policy"
            )
        return await self._inner[workflows.TerminateRun](request, caller)

    async def _list(self, request: workflows.ListWorkflowRuns, caller: Caller) -> workflows.ListedRuns:
        listed: workflows.ListedRuns = await self._inner[workflows.ListWorkflowRuns](request, caller)
        if is_restricted(request, caller):
            listed.runs = [one for one in listed.runs if _sees(request, caller, one.type)]
        return listed

    async def _show(self, request: workflows.ShowRun, caller: Caller) -> workflows.RunDetails:
        shown: workflows.RunDetails = await self._inner[workflows.ShowRun](request, caller)
        caller.check(request.permission, request.namespace, shown.type)
        return shown

    async def _history(self, request: workflows.ReadHistory, caller: Caller) -> workflows.HistoryPage:
        if caller is LOCAL:
            whole: workflows.HistoryPage = await self._inner[workflows.ReadHistory](request, caller)
            return whole
        patterns = caller.functions(Permission.PAYLOADS, request.namespace)
        sees_payloads = patterns is None
        if is_restricted(request, caller) or patterns:
            kind = await self._type(request, caller)
            caller.check(request.permission, request.namespace, kind)
            sees_payloads = caller.may(Permission.PAYLOADS, request.namespace, kind)
        if request.exact and not sees_payloads:
            raise ForbiddenError(
                f"{caller.name!r} lacks the permission {Permission.PAYLOADS.value!r}, and an exact history contains all"
                " payloads: use a token that has it"
            )
        events: workflows.HistoryPage = await self._inner[workflows.ReadHistory](request, caller)
        if not sees_payloads:
            events.events = [without_payloads(event) for event in events.events]
        return events

    async def _versions(self, request: workflows.ListVersions, caller: Caller) -> workflows.VersionList:
        found: workflows.VersionList = await self._inner[workflows.ListVersions](request, caller)
        if is_restricted(request, caller):
            found.versions = [one for one in found.versions if _sees(request, caller, one.type)]
        return found

    async def _workers(self, request: workflows.ListDeciders, caller: Caller) -> workflows.DeciderList:
        found: workflows.DeciderList = await self._inner[workflows.ListDeciders](request, caller)
        if is_restricted(request, caller):
            for worker in found.workers:
                worker.versions = [one for one in worker.versions if _sees(request, caller, one.rpartition("@")[0])]
            found.workers = [worker for worker in found.workers if worker.versions]
        return found


def _sees(request: Request[Any], caller: Caller, function: str) -> bool:
    return caller.may(request.permission, request.namespace, function)


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

"""Writes the methods by which an App operates what its servers have, from the declared requests: ``python -m checks.operating``.

`FILES` is the table: a class has methods, each for one request of `mainspring.api`, blocking and for asyncio. A test
compares the files with what this module would write. The bodies pass their arguments to `mainspring.client.declared`, which makes
the request of them.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec import inspect as types

from mainspring.api import functions, jobs, operations, schedules, workflows
from mainspring.api.request import answer_type, is_list
from mainspring.client.declared import ARGUMENTS, DURATIONS, INSTANTS, NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.api.request import Request

CLIENT: Final = Path(__file__).parent.parent / "src" / "mainspring" / "client"
_CODES: Final = re.compile(r"\s*Codes: .*", re.DOTALL)
_TYPES: Final = {
    **dict.fromkeys(DURATIONS, "Duration"),
    **dict.fromkeys(INSTANTS, "datetime"),
    ARGUMENTS: "Any",
    "function": "str | Named",
    "parents": "Sequence[str | Named]",
    "exclude": "Sequence[date | str]",
}
"""The types of parameters where Python has better ones than JSON."""
_STRUCTS: Final = {"Retry": "Retry", "RateSpec": "Rate"}
"""The classes for objects in JSON."""
_PLAIN: Final = {types.StrType: "str", types.IntType: "int", types.FloatType: "float", types.BoolType: "bool"}
WIDTH: Final = 118
"""Characters of a line of a docstring."""


@dataclass(frozen=True)
class Fields:
    """A TypedDict of the optional fields of a request, which several methods take as keyword arguments."""

    name: str
    doc: str
    request: type[Request[Any]]
    apart: frozenset[str] = frozenset({"cursor", "limit", "revision"})
    """Optional fields that are none of them."""

    @property
    def members(self) -> dict[str, msgspec.structs.FieldInfo]:
        """The fields by their names."""
        found = msgspec.structs.fields(self.request)
        return {one.name: one for one in found if not one.required and one.name not in {*NEVER, *self.apart}}


@dataclass(frozen=True)
class Method:
    """A method for a request; for a list, it yields the rows of all pages."""

    name: str
    request: type[Request[Any]]
    rows: str = ""
    """The key of an answer that the method returns."""
    first: bool = False
    """Whether it returns the first item, or None."""
    returns: str = ""
    """The object that is made of an answer, or of an item, by the method ``_as_…`` of the class; empty: none is made."""
    own: str = ""
    """The field that the object of the method has as its own: ``handle`` or ``key``."""
    says: str = ""
    """The sentence about the method, if that of the request does not fit."""
    fields: Fields | None = None
    """The fields of the request that it shares with other methods, as one TypedDict."""

    @property
    def is_list(self) -> bool:
        """Whether its request is that of a list."""
        return is_list(self.request)

    @property
    def limits(self) -> bool:
        """Whether it has a limit of rows."""
        return self.is_list and not self.first


@dataclass(frozen=True)
class Group:
    """A class with methods."""

    name: str
    doc: str
    methods: tuple[Method, ...]
    base: str


@dataclass(frozen=True)
class File:
    """A module with classes."""

    name: str
    doc: str
    groups: tuple[Group, ...]
    fields: tuple[Fields, ...] = ()
    imports: tuple[str, ...] = field(default=())


JOB_CRITERIA: Final = Fields("JobCriteria", "Criteria of the jobs in a list.", jobs.ListJobs)
CLONE_CHANGES: Final = Fields("CloneChanges", "The parts of a clone that differ from its job.", jobs.CloneJob)
RUN_CRITERIA: Final = Fields("RunCriteria", "Criteria of the runs in a list.", workflows.ListWorkflowRuns)
RUN_START: Final = Fields("RunStart", "The options of the start of a run.", workflows.StartRun)
LIMITS: Final = Fields("FunctionLimits", "The limits of a function.", functions.LimitFunction)
SCHEDULE: Final = Fields("ScheduleFields", "The parts of a schedule beside its name.", schedules.AddSchedule)
FIRE_CRITERIA: Final = Fields("FireCriteria", "Criteria of the fire times in a list.", schedules.ListFires)
BACKFILL: Final = Fields("BackfillBounds", "The bounds and the pace of a backfill.", operations.Backfill)
JOB: Final = (
    Method("retry", jobs.RetryJob, own="handle"),
    Method("update", jobs.UpdateJob, own="handle"),
    Method("snooze", jobs.SnoozeJob, own="handle"),
    Method("delete", jobs.DeleteJob, own="handle"),
    Method("attempts", jobs.ListAttempts, own="handle", rows="attempts", says="Return the attempts, oldest first."),
    Method("arguments", jobs.ShowArguments, own="handle", says="Return the arguments, as far as they are kept."),
)
RUN: Final = (
    Method("move", workflows.MoveRun, own="key"),
    Method("reset", workflows.ResetRun, own="key"),
    Method("pause", workflows.PauseRun, own="key"),
    Method("resume", workflows.ResumeRun, own="key", says="Resume the run, if it is paused."),
    Method("rerun", workflows.RerunRun, own="key"),
    Method("unpark", workflows.UnparkRun, own="key", says="Let the code try the run again, if it is parked."),
)
JOBS: Final = (
    Method(
        "list",
        jobs.ListJobs,
        returns="ListedJob",
        says="Yield the jobs that match all given criteria, newest first.",
        fields=JOB_CRITERIA,
    ),
    Method(
        "find",
        jobs.ListJobs,
        returns="ListedJob",
        first=True,
        says="Return the newest job that matches all given criteria; None if there is none.",
        fields=JOB_CRITERIA,
    ),
    Method("get", jobs.ShowJob, returns="ListedJob", says="Return a job by its handle. ``row`` has all its details."),
    Method("clone", jobs.CloneJob, returns="Job", fields=CLONE_CHANGES),
)
RUNS: Final = (
    Method(
        "start",
        workflows.StartRun,
        returns="Run",
        says="Start a run of a workflow, or join the open run with the workflow id ``id``.",
        fields=RUN_START,
    ),
    Method(
        "list",
        workflows.ListWorkflowRuns,
        returns="ListedRun",
        says="Yield the runs that match all given criteria, newest first.",
        fields=RUN_CRITERIA,
    ),
    Method(
        "find",
        workflows.ListWorkflowRuns,
        returns="ListedRun",
        first=True,
        says="Return the newest run that matches all given criteria; None if there is none.",
        fields=RUN_CRITERIA,
    ),
    Method(
        "get",
        workflows.ShowRun,
        returns="ListedRun",
        says="Return a run by its handle or workflow id. ``row`` has all its details.",
    ),
)
FUNCTIONS: Final = (
    Method(
        "list",
        functions.ListFunctions,
        says="Yield the functions. ``name`` is a part of their names.",
    ),
    Method("get", functions.ShowFunction, says="Return a function."),
    Method("pause", functions.PauseFunction),
    Method("resume", functions.ResumeFunction),
    Method("limit", functions.LimitFunction, fields=LIMITS),
)
SCHEDULES: Final = (
    Method("list", schedules.ListAllSchedules, says="Yield the schedules, by name."),
    Method("get", schedules.ShowSchedule, says="Return a schedule with all its details."),
    Method("add", schedules.AddSchedule, fields=SCHEDULE),
    Method("edit", schedules.EditSchedule, fields=SCHEDULE),
    Method("replace", schedules.ReplaceSchedule, fields=SCHEDULE),
    Method(
        "preview",
        schedules.PreviewSchedule,
        says="Return what ``add`` or ``edit`` would do, and save nothing.",
        fields=SCHEDULE,
    ),
    Method("pause", schedules.PauseSchedule),
    Method("resume", schedules.ResumeSchedule),
    Method("trigger", schedules.TriggerSchedule),
    Method("remove", schedules.RemoveSchedule),
    Method("next", schedules.NextTimes, says="Return the next times of a schedule."),
    Method(
        "fires",
        schedules.ListFires,
        says="Yield the outcomes of the fire times of all schedules, or of one, newest first.",
        fields=FIRE_CRITERIA,
    ),
    Method("backfill", operations.Backfill, fields=BACKFILL),
)
RAISES: Final = (
    "Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and\n"
    "    ConnectionLostError. Methods that begin with ``a`` are for asyncio."
)
FILES: Final = (
    File(
        "acts.py",
        "The methods of a job and of a run that change it, or read what is kept of it.",
        (
            Group("JobActs", f"Changes a job, and reads what is kept of it.\n\n    {RAISES}", JOB, "OfJob"),
            Group(
                "RunActs",
                f"Changes a run of a workflow, beside the methods of its job.\n\n    {RAISES}",
                RUN,
                "OfRun",
            ),
        ),
    ),
    File(
        "operating.py",
        "The jobs, runs, functions and schedules of an App's servers.",
        (
            Group("Jobs", f"The jobs on an App's servers.\n\n    {RAISES}", JOBS, "FindsJobs"),
            Group("Runs", f"The runs of workflows on an App's servers.\n\n    {RAISES}", RUNS, "FindsRuns"),
            Group("Functions", f"The functions on an App's servers.\n\n    {RAISES}", FUNCTIONS, "OnServers"),
            Group("Schedules", f"The schedules on an App's servers.\n\n    {RAISES}", SCHEDULES, "OnServers"),
        ),
        (JOB_CRITERIA, CLONE_CHANGES, RUN_START, RUN_CRITERIA, LIMITS, SCHEDULE, FIRE_CRITERIA, BACKFILL),
        (
            "from mainspring.client.job import FindsJobs",
            "from mainspring.client.run import FindsRuns",
            "from mainspring.client.job import Job, ListedJob",
            "from mainspring.client.run import ListedRun, Run",
        ),
    ),
)


def text_of(file: File) -> str:
    """Return the text of a module, not yet formatted."""
    imports: set[str] = set()
    classes = [_typed_dict(fields, imports) for fields in file.fields]
    classes += [_class(group, imports) for group in file.groups]
    checked = "\n".join(f"    {line}" for line in sorted(imports | set(file.imports[2:])))
    bases = sorted({group.base for group in file.groups} & {"OnServers", "OfJob", "OfRun"})
    run_time = [f"from mainspring.client.connections import {', '.join(bases)}", *file.imports[:2]]
    return f'''"""{file.doc}

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import UNSET, UnsetType

{chr(10).join(run_time)}

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from datetime import date, datetime
    from typing import Unpack

    from mainspring.client.connections import Named
    from mainspring.client.options import Duration, Rate, Retry
{checked}


{chr(10).join(classes)}'''


def _typed_dict(fields: Fields, imports: set[str]) -> str:
    members = "\n".join(f"    {_typed(one, imports)}" for one in fields.members.values())
    return f'class {fields.name}(TypedDict, total=False):\n    """{fields.doc}"""\n\n{members}\n\n'


def _class(group: Group, imports: set[str]) -> str:
    methods = "\n".join(text for method in group.methods for text in _twins(method, imports))
    slots = "    __slots__ = ()\n\n" if group.base.startswith("Of") else ""
    return f'class {group.name}({group.base}):\n    """{group.doc}\n    """\n\n{slots}{methods}\n'


def _twins(method: Method, imports: set[str]) -> Iterator[str]:
    shown = [one for one in msgspec.structs.fields(method.request) if one.name not in {*NEVER, method.own}]
    if method.is_list:
        shown = [one for one in shown if one.name not in {"cursor", "limit"}]
    if method.own == "key":
        shown = [one for one in shown if one.name != "all"]
    shared = method.fields.members if method.fields else {}
    shown = [one for one in shown if one.name not in shared]
    required = [_parameter(one, imports) for one in shown if one.required]
    others = [_parameter(one, imports) for one in shown if not one.required]
    if method.limits:
        others.append("limit: int | None = None")
    parameters = ["self", *required, *(["*", *others] if others else [])]
    entries = [f'"{one.name}": {one.name}' for one in shown]
    if method.fields:
        parameters.append(f"**fields: Unpack[{method.fields.name}]")
        entries.append("**fields")
    given = "{" + ", ".join(entries) + "}" if entries != ["**fields"] else "fields"
    answer = _answer(method, imports)
    sentence = _sentence(method)
    yield _method(method, parameters, given, answer, sentence, is_async=False)
    yield _method(method, parameters, given, answer, sentence, is_async=True)


def _method(method: Method, parameters: list[str], given: str, answer: str, sentence: str, *, is_async: bool) -> str:
    a = "a" if is_async else ""
    iterates = method.limits
    name, call = f"{a}{method.name}", method.request.call
    awaits = "await " if is_async and not iterates else ""
    own = f"_of_{'handle' if method.own == 'handle' else 'key'}" if method.own else ""
    kind = f"{'AsyncIterator' if is_async else 'Iterator'}[{answer}]" if iterates else answer
    head = f"{'async ' if is_async and not iterates else ''}def {name}({', '.join(parameters)}) -> {kind}:"
    doc = f'"""{sentence}"""' if not is_async else f'"""As ``{method.name}``."""'
    ask = f"self._{a}ask{own}"
    arguments = [f'"{call}"', given]
    if iterates or method.first:
        ask = f"self._{a}{'first' if method.first else 'pages'}"
        arguments += [] if method.first else ["limit"]
    value = f"{awaits}{ask}({', '.join(arguments)})"
    if method.own and method.rows:
        value = f"({value}).{method.rows}"
    if method.returns and not iterates:
        value = f"self._as_{method.returns.lower()}({value})"
    elif method.returns:
        value = f"self._{a}each_{method.returns.lower()}({value})"
    return "\n".join(f"    {line}" if line else "" for line in (head, f"    {doc}", f"    return {value}", ""))


def _sentence(method: Method) -> str:
    text = method.says or _CODES.sub("", inspect.cleandoc(method.request.__doc__ or "")).strip()
    if method.limits:
        text += "\n\n        ``limit`` is the most to yield; None: all. Pages are requested as they are read."
    paragraphs = [textwrap.fill(one, WIDTH) for one in text.split("\n\n")]
    return "\n\n".join(paragraphs) if len(paragraphs) == 1 and "\n" not in paragraphs[0] else _block(paragraphs)


def _block(paragraphs: list[str]) -> str:
    indented = "\n\n".join(textwrap.indent(one, " " * 8) for one in paragraphs)
    return indented.lstrip() + "\n" + " " * 8


def _typed(one: msgspec.structs.FieldInfo, imports: set[str]) -> str:
    info = _bare(types.type_info(one.type))
    parts = info.types if isinstance(info, types.UnionType) else (info,)
    names = [_TYPES[one.name]] if one.name in _TYPES else [_text(part, imports) for part in parts if not _is_none(part)]
    if one.default is UNSET:
        names.append("UnsetType")
    if any(_is_none(part) for part in parts):
        names.append("None")
    return f"{one.name}: {' | '.join(dict.fromkeys(names))}"


def _parameter(one: msgspec.structs.FieldInfo, imports: set[str]) -> str:
    if one.required:
        return _typed(one, imports)
    default = "UNSET" if one.default is UNSET else repr(() if one.default is NODEFAULT else one.default)
    return f"{_typed(one, imports)} = {default}"


def _bare(info: types.Type) -> types.Type:
    """Return a type without its limits and its description."""
    return _bare(info.type) if isinstance(info, types.Metadata) else info


def _is_none(info: types.Type) -> bool:
    return isinstance(info, types.NoneType)


def _text(info: types.Type, imports: set[str]) -> str:
    match info := _bare(info):
        case types.LiteralType():
            return f"Literal[{', '.join(repr(one) for one in info.values)}]"
        case types.ListType() | types.VarTupleType():
            return f"Sequence[{_text(info.item_type, imports)}]"
        case types.DictType():
            return f"Mapping[str, {_text(info.value_type, imports)}]"
        case types.RawType() | types.AnyType():
            return "Any"
        case types.StructType():
            return _STRUCTS[info.cls.__name__]
        case _:
            return _PLAIN[type(info)]


def _answer(method: Method, imports: set[str]) -> str:
    if method.returns:
        name = f"{method.returns}[bytes]" if method.returns in {"Job", "Run"} else method.returns
        return f"{name} | None" if method.first else name
    kind = answer_type(method.request)
    if method.is_list:
        kind = get_args(kind)[0]
    elif method.rows:
        kind = get_args(next(one.type for one in msgspec.structs.fields(kind) if one.name == method.rows))[0]
    module = kind.__module__
    name = "Fired" if kind is schedules.FireInfo else kind.__name__
    imports.add(f"from {module} import {kind.__name__}" + ("" if name == kind.__name__ else f" as {name}"))
    return f"Sequence[{name}]" if method.own and method.rows else name


def formatted(text: str) -> str:
    """Return the text of a module as ruff formats it, without imports that it does not need."""
    for arguments in (
        ("check", "--fix", "--unsafe-fixes", "--quiet", "--exit-zero", "--select", "F401,I,TC002"),
        ("format",),
    ):
        done = subprocess.run(  # noqa: S603 - our own arguments
            [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(CLIENT / "operating.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def written() -> dict[Path, str]:
    """Return the modules with their texts of today."""
    return {CLIENT / file.name: formatted(text_of(file)) for file in FILES}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, "utf-8")

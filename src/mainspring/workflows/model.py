"""The values of the workflows slice besides histories: definitions, runs and their keys.

Times are microseconds of wall time since 1970 UTC (``…_us``); 0 means none. Durations are seconds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from mainspring import namespaces
from mainspring.byte_names import name_bytes, name_text
from mainspring.errors import UsageError
from mainspring.sizes import CANNOT_READ

YEAR: Final = 366 * 86_400.0
"""Seconds; the longest execution timeout, and the default."""

SEMANTICS: Final = 2
"""The newest behaviour of workflow code: how it is cancelled, ends and receives.

A decision records the behaviour with which it was made, and each replay repeats it with the same one. So a version of Mainspring
can change what the same code does, and go on with the runs that an earlier one has begun.

| number | difference from the one before |
|---|---|
| 0 | that of decisions that record none |
| 1 | A cancellation never takes the place of the outcome of a job with ``cancel="wait"``, and is not forgotten after it. |
|   | A run is cancelled once, and its close waits for the tasks that it leaves. |
|   | Errors inside of exception groups, and those of refused calls, park it. Failures of side effects are recorded. |
|   | ``map`` lets ContinueAsNew pass. The next run gets signals with which tasks have only begun. |
| 2 | A result that does not have the declared type fails the run. Values that JSON would change are refused. |
"""


CHILD_TAG: Final = "mainspring:child"
"""The tag of the children that native code starts."""
PART_TAG: Final = "mainspring:map-part"
"""The tag of a child that runs a part of a map in place of its workflow's function. Only the code of a worker sets it."""


PART: Final = b"\0map\0"
"""The first bytes of the input of a part of a map."""


class Status(IntEnum):
    """The status of a run. The numbers are stored."""

    OPEN = 0
    COMPLETED = 1
    FAILED = 2
    CANCELED = 3
    TERMINATED = 4
    CONTINUED_AS_NEW = 5
    TIMED_OUT = 6

    @property
    def open(self) -> bool:
        """Whether the run goes on."""
        return self is Status.OPEN


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """A version of a workflow, as its workers register it."""

    name: str
    version: str = "1"
    namespace: str = "default"
    timeout: float = YEAR
    """Seconds that a run may last."""
    app: str = ""
    first_seen_us: int = 0
    last_seen_us: int = 0

    @property
    def function(self) -> bytes:
        """Return the key of the function whose jobs start its runs."""
        return namespaces.key(self.namespace, self.name.encode())


class Limits(msgspec.Struct, frozen=True):
    """Limits of a run, which the node's settings give."""

    timeout: float = YEAR
    """Seconds that a run may last; also the time-out of a run without one."""
    events: int = 25_000
    reserved: int = 1_000
    """The last events, which take no signals."""
    warn_events: int = 10_000
    warn_bytes: int = 10 * 2**20
    open_activities: int = 1_000
    open_timers: int = 1_000
    open_children: int = 1_000
    largest: int = 900_000_000
    """Bytes of a payload or result; the engine's limit."""


class Key(NamedTuple):
    """The name of a run: one of ``job``, ``run`` and ``workflow_id``."""

    job: int = 0
    """A root job: it names the open run, or the last run, of its chain."""
    run: int = 0
    """One run of a chain."""
    workflow_id: str = ""
    namespace: str = "default"
    """The namespace of the run; ``namespaces.ANY`` in requests that the node itself makes about a ``job``."""


UNKNOWN_BUILD: Final = "?"
"""Stands in a run's list of failed builds for those of lost deciders: any connected one may be the one that crashes."""


class Parked(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Why a run is parked."""

    kind: str
    """``mismatch``, ``missing``, ``defect``, ``permission`` or ``losses``."""
    message: str
    """One sentence for people."""
    recorded: tuple[str, ...] = ()
    """Of a mismatch: the recorded commands around the first difference, one line each."""
    code: tuple[str, ...] = ()
    """Of a mismatch: the commands of the code at the same places."""
    at: int = 0
    """The index of the first difference in both."""


class RunProgress(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How much of its work a run's code has reported as done."""

    done: int
    total: int
    text: str = ""


class About(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The things that a run's code waits for besides its activities and timers, for people: ``Completion.about``."""

    channels: tuple[str, ...] = ()
    """The names of the signals that it waits to receive, in order."""
    unread: dict[str, int] = {}
    """The number of unread signals, by name."""
    steps: tuple[str, ...] = ()
    """The functions of local steps that run."""
    conditions: int = 0
    """The number of conditions that it waits for."""
    progress: RunProgress | None = None


encode_about: Final = msgspec.msgpack.Encoder().encode
_decode_about: Final = msgspec.msgpack.Decoder(About).decode


def decode_about(about: bytes) -> About:
    """Return a decider's report; an empty one for no bytes, or for bytes of an unknown form."""
    try:
        return _decode_about(about) if about else About()
    except CANNOT_READ:
        return About()


def decision_function(namespace: str, name: str, version: str) -> bytes:
    """Return the function of the decision tasks of a workflow's version."""
    return f"{DECISION_PREFIX}{namespace}\x1f{name}@{version}".encode()


def decisions_of(function: bytes) -> tuple[str, str, str] | None:
    """Return namespace, name and version whose decision tasks a function has; None for the functions of other jobs."""
    if not function.startswith(_PREFIX):
        return None
    namespace, _, listed = function[len(_PREFIX) :].decode("utf-8", "backslashreplace").partition("\x1f")
    name, _, version = listed.rpartition("@")
    return namespace, name, version


def function_text(function: bytes) -> str:
    r"""Return a function's name as text, without its namespace; see `byte_names`.

    ``order@2 (decisions)`` stands for decision tasks, and ``order@2\ (decisions)`` for a function of users with that name.
    """
    decisions = decisions_of(function)
    if decisions is None:
        text = name_text(namespaces.name_of(function))
        return text.removesuffix(DECISIONS) + _NO_DECISIONS if text.endswith(DECISIONS) else text
    _, name, version = decisions
    return f"{name}@{version}{DECISIONS}"


def is_of_decisions(text: str) -> bool:
    """Return whether the text of a function stands for the decisions of a workflow."""
    return text.endswith(DECISIONS) and not text.endswith(_NO_DECISIONS)


def function_named(text: str, namespace: str) -> bytes:
    """Return the function of a namespace that `function_text` shows as this text. Raises UsageError for the text of none."""
    if text.endswith(_NO_DECISIONS):
        text = text.removesuffix(_NO_DECISIONS) + DECISIONS
    elif text.endswith(DECISIONS):
        name, at, version = text.removesuffix(DECISIONS).rpartition("@")
        if not at:
            raise UsageError(
                f"{text!r} names no decisions: these have the name and the version of a workflow, as {_EXAMPLE!r}"
            )
        return decision_function(namespace, name, version)
    return namespaces.key(namespace, name_bytes(text))


DECISIONS: Final = " (decisions)"
"""The end of the text for the function of decision tasks."""
_NO_DECISIONS: Final = "\\" + DECISIONS
_EXAMPLE: Final = f"order@2{DECISIONS}"
DECISION_PREFIX: Final = "\x1fd\x1f"
_PREFIX: Final = DECISION_PREFIX.encode()

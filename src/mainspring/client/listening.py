"""The listeners in an App's code: checked at their definition, encoded for the wire when a worker declares them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from mainspring.client.event import Event
from mainspring.client.options import check_flag, check_text, refusal
from mainspring.errors import UsageError
from mainspring.event_log.types import TYPES, Subject, types_of
from mainspring.jobs.user_data import check_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.client.options import Options


class HasName(Protocol):
    """A task or a workflow."""

    @property
    def name(self) -> str:
        """Its name."""


Functions: TypeAlias = "str | HasName | Sequence[str | HasName]"
"""Functions, each as a task, a workflow, a name, or a pattern such as ``pay*``."""


class EventFilter(NamedTuple):
    """The events that a listener gets, checked."""

    types: tuple[str, ...]
    """Names or patterns."""
    functions: tuple[str, ...]
    tags: tuple[str, ...]
    everywhere: bool


def build_filter(
    types: tuple[str, ...], function: Functions, tag: str | Sequence[str], everywhere: bool
) -> EventFilter:
    """Check the arguments of ``App.on`` that choose events. Raises UsageError."""
    check_flag(everywhere, "everywhere")
    for one in types:
        check_text(one, "a type of events", "its name, such as 'job.failed'")
    if not types:
        raise UsageError("on needs the types of events, such as @app.on('job.failed')")
    found = types_of(types)
    outside = sorted(name for name in found if TYPES[name].subject is Subject.NODE)
    if len(outside) == len(found) and not everywhere:
        raise UsageError(f"{', '.join(outside)}: events about nodes belong to no namespace, so add everywhere=True")
    functions = tuple(_name_of(one) for one in _listed(function, "function", "a task, a name or a pattern, or several"))
    tags = check_tags(_listed(tag, "tag", "a text, or several"), "tag")
    return EventFilter(tuple(dict.fromkeys(types)), functions, tags, everywhere)


def _listed(given: Any, what: str, accepted: str) -> tuple[Any, ...]:
    if isinstance(given, str) or hasattr(given, "name"):
        return (given,)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise refusal(what, accepted, given)
    return tuple(given)


def _name_of(function: object) -> str:
    name = check_text(getattr(function, "name", function), "function", "a task, a name or a pattern, or several")
    if not name:
        raise refusal("function", "a task, a name or a pattern, or several", function)
    return name


def check_listener(call: Callable[..., Any], name: str, parameters: Sequence[inspect.Parameter]) -> None:
    """Raise UsageError unless a function takes an event as its only argument."""
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if not positional or len(required) > 1 or (required and required[0] is not positional[0]):
        raise UsageError(f"{name} is a listener, which takes one argument: def {name}(event: Event)")
    first = positional[0]
    try:
        hint = typing.get_type_hints(inspect.unwrap(call)).get(first.name)
    except Exception:  # noqa: BLE001 - a name that is not defined yet; the worker looks at its start
        return
    if hint is not Event:
        raise UsageError(
            f"{name}: the parameter {first.name!r} of a listener is a mainspring.Event: write {first.name}: Event"
        )


class Listeners:
    """The listeners in an App's code, by name."""

    def __init__(self) -> None:
        self._declared: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._declared)

    def declare(self, name: str, chosen: EventFilter, options: Options) -> None:
        """Add a listener, whose function has its name. Raises UsageError if it would get events about that function."""
        if name in chosen.functions:
            raise UsageError(
                f"{name}: a listener cannot get events about its own function, because each delivery would cause the next one: "
                "name other functions, or none; it gets no events about itself then"
            )
        declared: dict[str, Any] = {"name": name, "types": list(chosen.types)}
        values = {
            "functions": chosen.functions,
            "tags": chosen.tags,
            "everywhere": chosen.everywhere,
            "priority": options.priority,
            "timeout": options.timeout,
            "heartbeat": options.heartbeat,
            "retry": None if options.retry is None else options.retry.wire(),
            "job_tags": options.tags,
        }
        self._declared[name] = declared | {key: value for key, value in values.items() if value}

    def params(self, app: str) -> dict[str, Any]:
        """Return the parameters of the call that declares them."""
        return {"app": app, "listeners": list(self._declared.values())}

"""The functions that a worker runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mainspring.client.validation import check_name
from mainspring.errors import UsageError
from mainspring.resources.limit_specs import limits_to_wire
from mainspring.resources.model import UNLIMITED, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mainspring.client.options import Retry
    from mainspring.client.payload import Signature

Executor = Literal["thread", "process", "coroutine"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, its executor, and the defaults of its jobs (durations in seconds)."""

    name: str
    call: Callable[..., Any]
    signature: Signature
    executor: Executor
    retry: Retry | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    limits: Limits = UNLIMITED

    def registration(self) -> bytes:
        """Return the function's options for the protocol's REGISTER; empty if there are none."""
        options: dict[str, Any] = {}
        if self.timeout is not None:
            options["timeout"] = self.timeout
        if self.heartbeat is not None:
            options["heartbeat"] = self.heartbeat
        if self.retry is not None:
            options["retry"] = self.retry.wire()
        if self.limits != UNLIMITED:
            options["limits"] = limits_to_wire(self.limits)
        return msgspec.json.encode(options) if options else b""


@dataclass(slots=True)
class Registry:
    """Functions by name."""

    _functions: dict[str, Function] = field(default_factory=dict)

    def add(self, function: Function) -> None:
        """Add a function.  Raises UsageError if its name is in use or invalid."""
        name = function.name
        check_name(name)
        present = self._functions.get(name)
        if present is not None:
            raise UsageError(
                f"two tasks are named {name!r} ({_full_name(present.call)} and {_full_name(function.call)}): "
                "give one of them another name with @app.task(name=…)"
            )
        self._functions[name] = function

    def get(self, name: str) -> Function | None:
        """Return the function of a name; None if there is none."""
        return self._functions.get(name)

    def subset(self, names: Iterable[str]) -> Registry:
        """Return a registry of some of the functions.  Raises KeyError for a name that it does not have."""
        return Registry({name: self._functions[name] for name in names})

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)


def _full_name(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', '?')}"

"""The results that the code of a rerun gets without executing anything: see `mainspring.workflows.carrying`.

What a call gets depends on the events before the first decision, and on the calls before it. So replays give the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.carrying import ANY_ARGUMENTS, arguments_digest, side_digest
from mainspring.workflows.history import MarkerName
from mainspring.workflows.history_json import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.workflows.history import MarkerRecorded

SINCE: Final = 3
"""The behaviour of workflow code that carries results: see ``workflows.model.SEMANTICS``."""


class CarriedResults:
    """The results that no call of the run has got."""

    __slots__ = ("_calls", "_given", "_results")

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], dict[int, MarkerRecorded]] = {}
        """By kind and function, in the order of the earlier calls."""
        self._given: dict[str, list[MarkerRecorded]] = {}
        """Results that a person gives, by function."""
        self._calls: dict[str, int] = {}
        """How many calls of a function with given results the code has made."""

    def __bool__(self) -> bool:
        return bool(self._results or self._given)

    def add(self, event: MarkerRecorded) -> None:
        """Add a result."""
        if event.name == MarkerName.GIVEN_RESULT:
            self._given.setdefault(event.function, []).append(event)
        else:
            self._results.setdefault((event.name, event.function), {})[event.id] = event

    def step(self, function: str, payload: bytes, give: Callable[[bytes], bool]) -> bool:
        """Give a call of a local step its result. Return False if it has to execute.

        ``give`` returns whether the code can read a result.
        """
        name = function.encode()

        def is_of_call(event: MarkerRecorded) -> bool:
            return event.digest == digest_of(name, payload, b"", event.details)

        return self._take(MarkerName.CARRIED_STEP, function, is_of_call, give)

    def activity(self, function: bytes, payload: bytes, give: Callable[[bytes], bool]) -> bool:
        """Give a call of an activity its result; otherwise as `step`."""
        digest = arguments_digest(function, payload)
        name = function.decode("utf-8", "surrogateescape")
        return self._take(MarkerName.CARRIED_ACTIVITY, name, lambda event: event.digest == digest, give)

    def child(self, type_name: str, payload: bytes, give: Callable[[bytes], bool]) -> bool:
        """Give a call of a child its result; otherwise as `step`."""
        digest = arguments_digest(type_name.encode(), payload)
        return self._take(MarkerName.CARRIED_CHILD, type_name, lambda event: event.digest == digest, give)

    def side_effect(self, function: str, give: Callable[[bytes], bool]) -> bool:
        """Give a call of a side effect its result; otherwise as `step`."""
        digest = side_digest(function)
        return self._take(MarkerName.CARRIED_SIDE, function, lambda event: event.digest == digest, give)

    def _take(
        self, kind: str, function: str, is_of_call: Callable[[MarkerRecorded], bool], give: Callable[[bytes], bool]
    ) -> bool:
        given = self._given.get(function)
        if given is not None:
            number = self._calls[function] = self._calls.get(function, 0) + 1
            for event in given:
                if event.batch in (0, number):
                    return give(event.details)
        results = self._results.get((kind, function))
        if results is None:
            return False
        for event in results.values():
            if event.digest == ANY_ARGUMENTS or is_of_call(event):
                del results[event.id]
                if not results:
                    del self._results[kind, function]
                return give(event.details)
        return False

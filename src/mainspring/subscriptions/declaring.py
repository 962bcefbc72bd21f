"""Listeners in the code of Apps: which ones are added, changed and removed when the code runs.

The rules are those of schedules (`schedules.reconcile`): among the versions of an App's code that run at the same time, the
newest one counts, and code changes only the listeners of its own App. A listener that another App has is taken over once that
App runs no more. Changes by hand, such as a pause, stay.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mainspring.subscriptions.model import Subscription

_NUMBERED: Final = re.compile(r" \((\d{1,4})\)")


class Kind(StrEnum):
    """The kind of a change to one listener."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    ADOPTED = "adopted"
    """It was of an App that runs no more."""
    LEFT = "left alone"
    """It must not be changed; the text gives the reason."""


class Change(NamedTuple):
    """One difference between the stored listener ``before`` and the declared one ``after``; ``text`` is a line for people."""

    kind: Kind
    name: str
    before: Subscription | None
    after: Subscription | None
    text: str
    warning: bool = False


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def digest(declared: Iterable[msgspec.Struct]) -> bytes:
    """Return the identifier of a set of declarations, as code writes them: 16 bytes, the same for the same ones in any order."""
    return blake2b(b"".join(sorted(map(_encode, declared))), digest_size=16).digest()


def _decided(one: Subscription) -> tuple[object, ...]:
    """Return what code decides about a listener."""
    interest = one.interest
    filters = sorted(interest.types), interest.namespace, interest.functions, interest.tags
    return one.function, filters, one.options, one.priority


def name_of(app: str, functions: Collection[str], stored: Iterable[Subscription]) -> str:
    """Return the name of an App that has the name of its file: a numbered one if other code has stored listeners under ``app``.

    That is so if the code, which defines these functions, has none of theirs.
    """
    of: dict[str, set[str]] = {}
    for one in stored:
        of.setdefault(one.app, set()).add(one.function)

    def is_other(name: str) -> bool:
        return name in of and of[name].isdisjoint(functions)

    if not is_other(app):
        return app
    numbers = [int(match[1]) for name in of if name.startswith(app) and (match := _NUMBERED.fullmatch(name, len(app)))]
    for number in sorted(numbers):
        if not is_other(f"{app} ({number})"):
            return f"{app} ({number})"
    return f"{app} ({next(number for number in range(2, len(numbers) + 3) if number not in numbers)})"


def compare(
    app: str,
    declared: Collection[Subscription],
    stored: Mapping[str, Subscription],
    left_out: Collection[str] = (),
    live_apps: Collection[str] = (),
) -> Iterator[Change]:
    """Yield the changes by an App's governing code to the stored listeners of its namespace, which are given by name.

    ``left_out`` are functions that this worker does not run: their listeners stay as they are. ``live_apps`` are other Apps whose
    code runs.
    """
    for one in declared:
        before = stored.get(one.name)
        if one.function in left_out:
            continue
        if before is None:
            yield Change(Kind.ADDED, one.name, None, replace(one, app=app), f"added {one.name}")
            continue
        after = replace(
            one,
            app=app,
            paused=before.paused,
            missed=before.missed,
            created_us=before.created_us,
        )
        if before.app != app:
            owner = f"the App {before.app!r}"
            if before.app in live_apps:
                text = f"left {one.name} alone: {owner} has a listener of this name, and also runs. Give one of them another name"
                yield Change(Kind.LEFT, one.name, before, None, text, warning=True)
            else:
                text = f"took over {one.name} from {owner}, which does not run any more"
                yield Change(Kind.ADOPTED, one.name, before, after, text, warning=True)
        elif _decided(before) != _decided(one):
            yield Change(Kind.CHANGED, one.name, before, after, f"changed {one.name}")
    names = {one.name for one in declared}
    for name, one in sorted(stored.items()):
        if one.app == app and name not in names and one.function not in left_out:
            yield Change(Kind.REMOVED, name, one, None, f"removed {name}")

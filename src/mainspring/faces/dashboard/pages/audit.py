"""The audit: who did what, to what, and why."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.access.roles import Permission
from mainspring.api.audit import ActInfo
from mainspring.faces.dashboard.actions import Action, Field
from mainspring.faces.dashboard.calls import Items, N
from mainspring.faces.dashboard.registry import Page
from mainspring.faces.dashboard.visit import NAMESPACE
from mainspring.faces.dashboard.words import duration, number

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 50
HANDLE: Final = "H:"
"""Handles of jobs begin so."""
ACTS: Final = 20
"""Newest acts on the page of an object."""
_LONGEST: Final = 300
"""Characters of a value."""
MOST_VALUES: Final = 3
"""Values of a new or a removed object that are not folded."""
_SECONDS: Final = frozenset(
    {
        "every",
        "jitter",
        "timeout",
        "expires",
        "misfire_after",
        "initial",
        "maximum",
        "heartbeat",
        "keep_unique",
        "delay",
        "per",
    }
)
"""Numbers of seconds, by their names."""

_PAGES: Final = {
    ("jobs", ""): "/jobs/{name}",
    ("operations", ""): "/operations/{name}",
    ("nodes", ""): "/nodes",
    ("tokens", ""): "/settings/tokens",
    ("functions", ""): "/functions/{name}",
    ("schedules", ""): "/schedules/{name}",
    ("schedules", "declare"): "",
    ("workers", ""): "/workers/{name}",
    ("workflows", ""): "/workflows/{name}",
    ("workflows", "start"): "",
    ("workflows", "signal"): "",
    ("workflows", "remove"): "",
}
"""The pages of objects, by the two parts of an act's name; an empty second part stands for all others.

The object of ``schedules.declare`` is the name of an App, that of ``workflows.remove`` a version of a type, and those of refused
starts and signals the type and the name of the signal.
"""

MARK: Final = Action(
    operation="marks_add",
    label="Add a mark",
    done="The mark is a line in all drawings over time.",
    path=f"{N}/marks",
    needs="access",
    permission=Permission.OPERATE,
    fields=(Field(name="label", label="Label", required=True, longest=200, hint="such as: web 4.2"),),
    command="marks add {label}",
)
ACTIONS: Final = (MARK,)


class Change(NamedTuple):
    """A value that an act has changed, in words; empty: there was none, or is none."""

    name: str
    """Empty: the act has one value."""
    before: str
    after: str


class Changes(NamedTuple):
    """The values that an act has changed."""

    kind: str
    """``edited``; ``made`` or ``removed``, so that all values are of one side."""
    values: list[Change]


def changes_of(act: ActInfo) -> Changes:
    """Return the values that an act has changed, given to a new object, or removed with an old one."""
    kind = "edited" if act.before and act.after else "removed" if act.before else "made"
    if not isinstance(act.before or {}, dict) or not isinstance(act.after or {}, dict):
        return Changes(kind, [Change("", in_words("", act.before), in_words("", act.after))])
    before, after = act.before or {}, act.after or {}
    repeated = {"reason": act.reason, "namespace": act.namespace, "name": act.object}  # other columns have them
    found = [
        Change(_title(name), *texts)
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
        and (before.get(name) or after.get(name)) != repeated.get(name, ...)
        and any(texts := (in_words(name, before.get(name)), in_words(name, after.get(name))))
    ]
    return Changes(kind, found)


def in_words(name: str, value: Any) -> str:
    """Return a value with a name as short text for people; empty for none."""
    text = _words(name, value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _words(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration(value) if name in _SECONDS else number(int(value) if value == int(value) else value)
    if isinstance(value, list):
        return "; ".join(filter(None, (_words(name, one) for one in value)))
    if isinstance(value, dict):
        # The jitter of a schedule is a time, that of a retry a part.
        pairs = ((_title(key), _words("" if key == "jitter" else key, one)) for key, one in value.items())
        return ", ".join(f"{key} {words}" for key, words in pairs if words)
    return str(value)


def _title(name: str) -> str:
    return name.replace("_", " ")


def address_of(visit: Visit, act: ActInfo) -> str:
    """Return the address of the page of an act's object; empty if there is none."""
    kind, _, verb = act.what.partition(".")
    query = {NAMESPACE: act.namespace}
    path = _PAGES.get((kind, verb), _PAGES.get((kind, ""), ""))
    if kind == "jobs" and not act.object.startswith(HANDLE):  # the function of a refused job
        path = "/functions/{name}"
    return visit.url(path, query, name=act.object) if path and act.object else ""


async def acts_on(visit: Visit, *names: str) -> Items[ActInfo] | None:
    """Return the newest acts on an object for the macro ``acts``; None without the right to see them, or without an answer.

    ``names`` are those by which callers name the object.
    """
    if not (visit.may(Permission.ADMIN) and visit.has("access")):
        return None

    async def read(name: str) -> Items[ActInfo]:
        return await visit.calls.get(Items[ActInfo], f"{N}/audit", query={"object": name, "limit": ACTS})

    lists = await asyncio.gather(*(visit.optional(read(name), "acts") for name in names))
    found = [one for one in lists if isinstance(one, Items)]
    if len(found) < len(lists):
        return None
    acts = sorted((act for one in found for act in one.items), key=lambda act: -act.number)
    following = next((one.next for one in found if one.next), None) or ("more" if len(acts) > ACTS else None)
    return Items(acts[:ACTS], following)


async def audit(visit: Visit) -> Response:
    """Show acts, newest first."""
    query: dict[str, Any] = {name: visit.field(name) for name in ("who", "what", "object", "cursor")}
    is_everywhere = visit.field("everywhere") == "true"
    query["everywhere"] = is_everywhere
    listed = await visit.calls.get(Items[ActInfo], f"{N}/audit", query={**query, "limit": ROWS})
    return visit.render(
        "audit.html",
        listed=listed,
        rows=ROWS,
        changes_of=changes_of,
        most_values=MOST_VALUES,
        address_of=partial(address_of, visit),
        is_everywhere=is_everywhere,
        may_everywhere=visit.may_everywhere(Permission.ADMIN),
        filters=[query["who"], query["what"], query["object"]],
        actions=[MARK] if visit.offers(MARK) else [],
    )


PAGES: Final = (Page(path="/audit", handler=audit, menu="Audit", permission=Permission.ADMIN, needs="access"),)

"""The first page: whether all is well, and where it is not."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.caller import Permission
from mainspring.api.access import MarkInfo
from mainspring.api.jobs import JobInfo
from mainspring.api.namespaces import NamespaceNode, NamespaceStatus, StoreState
from mainspring.api.schedules import ScheduleInfo
from mainspring.api.versions import (
    NEW,
    NEWEST_FAILURES,
    PARKED,
    just_failed,
    next_fires,
    overview_version,
    stuck_functions,
    waits_long,
)
from mainspring.api.workflows import RunInfo
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.drawings.functions import rate, spark
from mainspring.faces.dashboard.pages.access import MARK
from mainspring.faces.dashboard.pages.fleet import different_versions
from mainspring.faces.dashboard.pages.functions import ACKNOWLEDGE
from mainspring.faces.dashboard.visit import NAMESPACE, Page
from mainspring.faces.dashboard.words import duration, number
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.namespaces import TroubledSubscription
    from mainspring.faces.dashboard.visit import Response, Visit

NEWEST_MARKS: Final = 3
COUNTED_IN: Final = 15.0
"""Seconds after which a failed attempt is among the failing functions. Runs of workflows never are: they have no attempts."""
PLACES: Final = {"memory": "in memory", "sqlite": "on SQLite", "postgres": "on PostgreSQL", "zookeeper": "on ZooKeeper"}
MOST_STUCK: Final = 3
"""Functions without workers that have sentences of their own."""
MOST_NAMED: Final = 3
"""Names in one sentence."""


def troubles(
    status: NamespaceStatus,
    nodes: list[NamespaceNode],
    *,
    workers: int,
    dead: Items[JobInfo] | None = None,
    parked: Items[RunInfo] | None = None,
    now: float = 0.0,
) -> list[str]:
    """Return what is wrong, in sentences. ``dead`` and ``parked``: the newest dead letters and parked runs."""
    found = [f"The node {node.name} is {node.state}." for node in nodes if node.state != "live"]
    if status.store is not None and not status.store.answers:
        found.insert(0, f"The store {place(status.store)} takes no writes from the node that answers.")
    settled = {one.function for one in status.acknowledged}
    if dead is not None and (letters := _dead_letters(status, dead, settled)):
        found.append(letters)
    if failing := [name for name in just_failed(status, now) if name not in settled]:
        found.append(f"Attempts of {some_of(failing, 'functions')} have failed in the last {duration(NEW)}.")
    if parked is not None and parked.items:
        is_one = len(parked.items) == 1 and parked.next is None
        runs, verb, code = ("run", "is", "its") if is_one else ("runs", "are", "their")
        names = some_of([run.id for run in parked.items], "runs", is_whole=parked.next is None)
        found.append(f"The {runs} {names} {verb} parked: {code} code could not make the next decision.")
    stuck = stuck_functions(status)
    if status.jobs.waiting and not workers:
        found.append(f"{jobs(status.jobs.waiting)}, and no worker is connected.")
    elif (oldest := status.oldest_waiting) is not None and waits_long(status) and oldest.function not in stuck:
        found.append(f"A job of {oldest.function} has waited for {duration(oldest.seconds)}.")
    if workers:
        found += [
            f"{jobs(waiting, function)}, and no worker has registered it."
            for function, waiting in list(stuck.items())[:MOST_STUCK]
        ]
    if versions := different_versions(nodes):
        found.append(versions)
    return found


class Trouble(NamedTuple):
    """A sentence about something wrong, and the page to look at."""

    text: str
    path: str
    """That of the page, with its name in braces."""
    name: str
    """That of the object; empty: the page is that of several ones."""
    link: str


def delivery_troubles(subscriptions: Sequence[TroubledSubscription]) -> list[Trouble]:
    """Return which webhooks and listeners are paused, and to which ones messages or events were given up."""
    found = []
    for kind in ("webhook", "listener"):
        those = [one for one in subscriptions if one.kind == kind]
        paused = [one for one in those if one.paused]
        failing = [one for one in those if one.failures and not one.paused]
        if len(paused) == 1:
            text = f"The {kind} {paused[0].name} is paused: {(paused[0].paused or '').removesuffix('.')}."
            found.append(_trouble(text, kind, paused))
        elif paused:
            names = some_of([one.name for one in paused], f"{kind}s")
            found.append(_trouble(f"The {kind}s {names} are paused.", kind, paused))
        if failing:
            names = some_of([one.name for one in failing], f"{kind}s")
            number_of_them = sum(one.failures for one in failing)
            what = "delivery" if number_of_them == 1 else "deliveries"
            text = f"{number(number_of_them)} {what} to the {kind if len(failing) == 1 else f'{kind}s'} {names} failed for good."
            found.append(_trouble(text, kind, failing))
    return found


def _trouble(text: str, kind: str, those: Sequence[TroubledSubscription]) -> Trouble:
    name = those[0].name if len(those) == 1 else ""
    return Trouble(
        text, f"/{kind}s/{{name}}" if name else f"/{kind}s", name, f"Show {'it' if name else f'all {kind}s'}"
    )


def _dead_letters(status: NamespaceStatus, dead: Items[JobInfo], settled: set[str]) -> str:
    """Return the number of the dead letters that nobody has acknowledged, in a sentence; empty for none."""
    newest = [job.function for job in dead.items if job.function not in settled]
    is_rest = bool(dead.next or dead.searched_to)
    more, total = "More than " if is_rest and newest else "", len(newest)
    if is_rest and status.dead_letters is not None:
        counted = status.dead_letters - sum(one.dead_letters for one in status.acknowledged)
        if counted >= total:
            more, total = "", counted
    if not total:
        return ""
    letters = "1 dead letter" if total == 1 else f"{number(total)} dead letters"
    return f"{more}{letters}{f', the newest of {newest[0]}' if newest else ''}."


def acknowledgeable(status: NamespaceStatus, dead: Items[JobInfo] | None, now: float) -> list[str]:
    """Return the functions whose failures are trouble, at most `MOST_NAMED`."""
    settled = {one.function for one in status.acknowledged}
    letters = [] if dead is None else [job.function for job in dead.items]
    counted = [one.function for one in status.troubled if one.dead_letters]
    found = dict.fromkeys([*letters, *just_failed(status, now), *counted])
    return [name for name in found if name not in settled][:MOST_NAMED]


def place(store: StoreState) -> str:
    """Return in which kind of place a store is."""
    return PLACES.get(store.engine, f"on {store.engine}")


def uncounted(status: NamespaceStatus, dead: list[JobInfo], now: float) -> list[str]:
    """Return the functions of new dead letters that are not among the failing ones yet: the series are written later."""
    if status.failing is None:
        return []
    counted = {one.function for one in status.failing.functions}
    new = [
        one.function
        for one in dead
        if one.ended_at and now - dt.datetime.fromisoformat(one.ended_at).timestamp() < COUNTED_IN
    ]
    return [function for function in dict.fromkeys(new) if function not in counted]


def some_of(names: list[str], kind: str, *, is_whole: bool = True) -> str:
    """Return the first names of some objects, and how many more there are; ``is_whole``: there are no others."""
    named, rest = names[:MOST_NAMED], len(names) - MOST_NAMED
    if not is_whole:
        return f"{', '.join(named)} and more {kind}"
    if rest > 0:
        return f"{', '.join(named)} and {rest} more {kind[:-1] if rest == 1 else kind}"
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def jobs(waiting: int, function: str = "") -> str:
    """Return a number of jobs with its verb."""
    of = f" of {function}" if function else ""
    return f"1 job{of} waits" if waiting == 1 else f"{number(waiting)} jobs{of} wait"


async def parked_runs(visit: Visit) -> Items[RunInfo] | None:
    """Return the newest runs whose code needs somebody; None if that is unknown."""
    if not visit.has("workflows"):
        return None
    query = {"parked": True, "limit": PARKED}
    found = await visit.optional(visit.calls.get(Items[RunInfo], f"{N}/workflows", query=query), "parked")
    return None if isinstance(found, Problem) else found


async def overview(visit: Visit) -> Response:
    """Show the state of a namespace; to those without rights in the default one, that of their first one."""
    if not visit.field(NAMESPACE) and not visit.may(Permission.READ) and visit.identity.grants:
        return visit.redirect(visit.first_page_of(visit.identity.grants[0].namespace))
    calls = visit.calls
    status, nodes, schedules, failed, parked, marks = await asyncio.gather(
        calls.get(NamespaceStatus, f"{N}/status"),
        calls.get_all(Items[NamespaceNode], f"{N}/nodes"),
        visit.optional(calls.get_all(Items[ScheduleInfo], f"{N}/schedules"), "schedules"),
        visit.optional(
            calls.get(Items[JobInfo], f"{N}/jobs", query={"state": "failed", "limit": NEWEST_FAILURES}), "failed"
        ),
        parked_runs(visit),
        visit.optional(calls.get(Items[MarkInfo], f"{N}/marks", query={"limit": 20}), "marks"),
    )
    workers = sum(node.workers for node in nodes.items)
    deliveries = delivery_troubles(status.subscriptions) if visit.has("events") else []
    dead = None if isinstance(failed, Problem) else failed
    letters = [] if dead is None else dead.items
    known_marks = [] if isinstance(marks, Problem) else marks.items
    known_schedules = None if isinstance(schedules, Problem) else schedules.items
    return visit.render(
        "overview.html",
        status=status,
        acknowledge=[
            (name, replace(ACKNOWLEDGE, label=f"Acknowledge {name}"))
            for name in acknowledgeable(status, dead, visit.now)
            if visit.offers(ACKNOWLEDGE, name)
        ],
        place="" if status.store is None else place(status.store),
        live=sum(node.state == "live" for node in nodes.items),
        workers=workers,
        has_parked=parked is not None and bool(parked.items),
        troubles=troubles(status, nodes.items, workers=workers, dead=dead, parked=parked, now=visit.now),
        deliveries=deliveries,
        uncounted=uncounted(status, letters, visit.now),
        sparks=[spark(one, known_marks, visit.now) for one in status.troubled],
        rate=rate,
        next_fires=next_fires(known_schedules or []),
        version=overview_version(
            status,
            nodes.items,
            known_schedules,
            None if dead is None else dead.items,
            None if parked is None else parked.items,
            visit.now,
        ),
        failed=letters,
        marks=known_marks[:NEWEST_MARKS],
        mark=MARK if visit.offers(MARK) and not isinstance(marks, Problem) else None,
    )


PAGES: Final = (Page(path="/", handler=overview, menu="Overview"),)

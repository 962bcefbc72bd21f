"""Instances of managed resources, and the rules by which they are made, checked and released: pure, over rows.

``TRANSITIONS`` has the states. The class does *steps* for an instance: create, check, release. A step is a job with
an id of its own, and its end is reported by this id: the report of another job changes nothing. A creation is repeated with the
same key until it succeeds or nobody needs it.

All times are absolute, and rules never count looks. An instance is idle since ``last_use_us``: the last moment at which somebody
had slots of it, or it became ready. Time that no node has watched is no idle time: a look that comes `UNWATCHED_US` or more after
the one before, because nodes were down or stalled or a clock was set ahead, begins the idle time anew.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.clock import to_us
from mainspring.resources.holds import Item, Resource, missing_slots
from mainspring.resources.managed import MAX_META_BYTES
from mainspring.sizes import is_too_deep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.resources.holds import Hold, Request
    from mainspring.resources.managed import Managed


class InstanceState(IntEnum):
    """A stored state. One that is READY is shown as ``busy`` while somebody has slots of it, and as ``idle`` after that."""

    STARTING = 1
    """It is being created."""
    READY = 2
    """Its slots are granted."""
    DRAINING = 3
    """It gets no new holders, and is released after the last one."""
    RELEASING = 4
    """It is being released. Nobody holds or gets slots of it."""
    BROKEN = 5
    """A check has failed: it gets no new holders, and is released after the last one."""
    GONE = 6
    """It does not exist any more. The row is kept for a time, to be shown."""


_S = InstanceState
TRANSITIONS: Final[Mapping[tuple[InstanceState, InstanceState], str]] = {
    (_S.STARTING, _S.READY): "its creation has succeeded",
    (_S.STARTING, _S.RELEASING): "its creation has failed, and nobody needs it any more",
    (_S.READY, _S.DRAINING): "an operator drains it, it is too old, or its definition has changed",
    (_S.READY, _S.RELEASING): "it was idle for its idle time, or there are more than the most",
    (_S.READY, _S.BROKEN): "a check says so, or checks have failed",
    (_S.READY, _S.GONE): "a check says so",
    (_S.DRAINING, _S.READY): "an operator has taken the drain back, or the definition",
    (_S.DRAINING, _S.RELEASING): "nobody holds it",
    (_S.DRAINING, _S.BROKEN): "a check says so, or checks have failed",
    (_S.DRAINING, _S.GONE): "a check says so",
    (_S.BROKEN, _S.RELEASING): "nobody holds it",
    (_S.RELEASING, _S.GONE): "its release has succeeded",
}
"""The transitions, with their causes."""

UNWATCHED_US: Final = 30_000_000
WATCH_US: Final = 10_000_000
"""Microseconds after which a look at idle instances is recorded."""
MOST_CHECKS_FAILED: Final = 3
"""Failed checks in a row after which an instance counts as broken."""
STOPPED_US: Final = 10_000_000
"""Microseconds from when the jobs that have a broken instance lose their slots to its release: they are stopped in this time."""
FORGET_US: Final = 3_600_000_000
"""Microseconds for which an instance that is gone is shown."""
MOST_GONE: Final = 20
"""Of a resource."""
_MAX_TEXT: Final = 1000

CREATE: Final = "create"
CHECK: Final = "check"
RELEASE: Final = "release"


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instance, as stored. Times are microseconds of the store's wall time."""

    resource: str
    """The key of its resource."""
    name: str
    """Unique in its resource, for ever."""
    key: str
    """Unique everywhere: ``create`` gets it in all attempts."""
    fields: str
    """The JSON of the fields of the class with which it is created, checked and released."""
    state: int = InstanceState.STARTING
    meta: bytes = b""
    """The value that its creation has returned, as JSON; empty before."""
    created_us: int = 0
    """When the row was made."""
    since_us: int = 0
    """When the state began."""
    last_use_us: int = 0
    watched_us: int = 0
    """When a look has recorded that it was idle."""
    checked_us: int = 0
    step: str = ""
    """The step under way, if there is one."""
    job: int = 0
    """The id of its job."""
    submitted_us: int = 0
    """When the job got its id."""
    term: int = 0
    """Of the node that submits the job."""
    tries: int = 0
    """Jobs of the step so far, until one has succeeded."""
    failures: int = 0
    """Those of them that have failed."""
    due_us: int = 0
    """The time of the next job."""
    text: str = ""
    """Why it is in its state, or why the last step has failed."""
    is_useless: bool = False
    """Whether a check has found it broken or gone: jobs that have it lose their slots. A failed check has found nothing."""

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier job may have done the step already."""
        return self.tries > 1


class Pool(NamedTuple):
    """A resource with its instances, and those who hold and await them."""

    name: str
    managed: Managed | None
    """None: the resource is none that Mainspring manages, any more."""
    draining: Collection[str]
    """The instances that an operator drains; the empty name is for all, and for new ones."""
    instances: Sequence[Instance]
    holds: Collection[Hold]
    """Valid ones."""
    requests: Collection[Request]
    """Valid ones that the resources can serve."""


# ---- items ----


def item_of(instance: Instance, managed: Managed) -> Item:
    """Return an instance as an item."""
    return Item(instance.name, managed.slots, managed.labels, draining=instance.state != InstanceState.READY)


def with_instances(resource: Resource, draining: Collection[str], instances: Iterable[Instance]) -> Resource:
    """Return a managed resource with its instances as items: those that are ready, draining or broken."""
    managed = resource.managed
    assert managed is not None
    shown = (InstanceState.READY, InstanceState.DRAINING, InstanceState.BROKEN)
    items = [item_of(one, managed) for one in instances if one.state in shown]
    if draining:
        items = [replace(one, draining=one.draining or not {"", one.name}.isdisjoint(draining)) for one in items]
    if "" in draining:
        managed = replace(managed, most=0, least=0)
    return Resource(tuple(sorted(items, key=lambda item: item.name)), managed=managed)


def shown_state(instance: Instance, held: int) -> str:
    """Return the state of an instance for people. ``ready``: nobody has used it yet."""
    if instance.state != InstanceState.READY:
        return InstanceState(instance.state).name.lower()
    return "busy" if held else "idle" if instance.last_use_us > instance.since_us else "ready"


# ---- changes ----


def moved(instance: Instance, state: InstanceState, now_us: int, text: str = "") -> Instance:
    """Return an instance in another state, without a step. Raises ValueError for a transition that is none."""
    if (instance.state, state) not in TRANSITIONS:
        raise ValueError(f"an instance in the state {InstanceState(instance.state).name} cannot become {state.name}")
    return _without_step(replace(instance, state=state, since_us=now_us, text=text[:_MAX_TEXT]), succeeded=True)


def used(instance: Instance, now_us: int) -> Instance:
    """Return an instance that somebody uses, or has used until now. The time of the last use never goes back.

    One that lies ahead was written while a clock was ahead.
    """
    last_use_us = instance.last_use_us
    return replace(
        instance,
        last_use_us=now_us if last_use_us > now_us + UNWATCHED_US else max(last_use_us, now_us),
        watched_us=now_us,
    )


def _without_step(instance: Instance, *, succeeded: bool = False) -> Instance:
    gone = replace(instance, step="", job=0, submitted_us=0, term=0)
    return replace(gone, tries=0, failures=0, due_us=0) if succeeded else gone


# ---- reports of steps ----


class Done(NamedTuple):
    """A step's job has succeeded."""

    result: bytes


class Failed(NamedTuple):
    """It has failed for good, was cancelled or deleted, or was never stored."""

    text: str
    is_lost: bool = False
    """Whether the job is not in the store: the step is repeated at once."""


class Report(NamedTuple):
    """The end of a step's job."""

    instance: str
    job: int
    outcome: Done | Failed


class Checked(msgspec.Struct):
    """The result of a check."""

    state: str
    text: str = ""


_decode_checked: Final = msgspec.json.Decoder(Checked).decode
_FOUND: Final = {"broken": InstanceState.BROKEN, "gone": InstanceState.GONE}


def reported(instance: Instance, report: Report, managed: Managed | None, now_us: int) -> Instance:
    """Return an instance after the end of a job. That of a job other than its step's changes nothing."""
    if not instance.step or instance.job != report.job:
        return instance
    outcome = report.outcome
    if isinstance(outcome, Done):
        if instance.step == RELEASE:
            return moved(instance, InstanceState.GONE, now_us, instance.text)
        if instance.step == CREATE and (problem := _problem_of_meta(outcome.result)):
            outcome = Failed(problem)
        elif instance.step == CREATE:
            ready = moved(replace(instance, meta=outcome.result or b"null"), InstanceState.READY, now_us)
            return used(replace(ready, checked_us=now_us, last_use_us=0), now_us)
        else:
            return _checked(instance, outcome.result, now_us)
    after = _failed(instance, outcome.text, managed, now_us)
    return replace(after, due_us=now_us) if outcome.is_lost and after.state == instance.state else after


def _problem_of_meta(result: bytes) -> str:
    if len(result) > MAX_META_BYTES:
        return f"create has returned {len(result):,} bytes of JSON, more than {MAX_META_BYTES:,}"
    if is_too_deep(result):
        return "create has returned JSON with too many levels"
    try:
        msgspec.json.decode(result or b"null")
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return "create has returned no JSON"
    return ""


def _checked(instance: Instance, result: bytes, now_us: int) -> Instance:
    try:
        checked = _decode_checked(result)
    except (ValueError, RecursionError):
        checked = Checked("unknown", "check has returned no status")
    state = _FOUND.get(checked.state)
    if state is not None:
        lost = replace(instance, is_useless=True)
        return moved(lost, state, now_us, checked.text or f"check says that it is {checked.state}")
    if checked.state != "healthy":
        return _failed(instance, checked.text, None, now_us)
    text = instance.text if instance.state == InstanceState.DRAINING else ""
    return replace(_without_step(instance, succeeded=True), checked_us=now_us, text=text)


def _failed(instance: Instance, text: str, managed: Managed | None, now_us: int) -> Instance:
    failures = instance.failures + 1
    if instance.step == CHECK:
        if failures >= MOST_CHECKS_FAILED:
            return moved(instance, InstanceState.BROKEN, now_us, f"{failures} checks have failed; the last one: {text}")
        return replace(_without_step(instance), checked_us=now_us, failures=failures, text=text[:_MAX_TEXT])
    pause_us = 60_000_000 if managed is None else to_us(managed.backoff.maximum)
    return replace(_without_step(instance), failures=failures, due_us=now_us + pause_us, text=text[:_MAX_TEXT])


# ---- what is next ----


class Planned(NamedTuple):
    """The next moves of a resource."""

    changed: dict[str, Instance]
    """Those that change, by name. A new step has no job yet."""
    created: int
    """New instances."""
    forgotten: list[str]


def plan(pool: Pool, now_us: int) -> Planned:
    """Return what is next for the instances of a resource."""
    return _Plan(pool, now_us).planned()


class _Plan:
    """One look at a resource."""

    def __init__(self, pool: Pool, now_us: int) -> None:
        self._pool = pool
        self._managed = pool.managed
        self._now_us = now_us
        self._held = {hold.item for hold in pool.holds}
        self._most = 0 if pool.managed is None or "" in pool.draining else pool.managed.most
        self._least = 0 if pool.managed is None else min(pool.managed.least, self._most)
        self._live = sum(one.state != InstanceState.GONE for one in pool.instances)
        ready = [one for one in pool.instances if one.state == InstanceState.READY and not self._reason_to_leave(one)]
        self._to_spare = len(ready) - self._least
        needed = max(self._lacking(ready), self._least - len(ready), 0)
        starting = [one for one in pool.instances if one.state == InstanceState.STARTING]
        self._needed = {one.name for one in starting if not self._reason_to_leave(one)}
        if len(self._needed) > needed:
            order = sorted(starting, key=lambda one: (one.failures, one.created_us, one.name))
            self._needed = {*[one.name for one in order if one.name in self._needed][:needed]}
        self._created = max(min(needed - len(self._needed), self._most - self._live), 0)

    def planned(self) -> Planned:
        changed = {}
        for one in sorted(self._pool.instances, key=lambda one: (-one.created_us, one.name)):
            after = self._with_step(self._moved(one))
            if after != one:
                changed[one.name] = after
        return Planned(changed, self._created, self._forgotten())

    def _lacking(self, ready: Sequence[Instance]) -> int:
        """Return how many instances the requests need, beside those that are ready."""
        managed, name = self._managed, self._pool.name
        if managed is None or not self._pool.requests:
            return 0
        resource = Resource(tuple(item_of(one, managed) for one in ready))
        return -(-missing_slots(resource, self._pool.holds, self._pool.requests, name) // managed.slots)

    def _reason_to_leave(self, one: Instance) -> str:
        managed = self._managed
        if managed is None:
            return "the resource is no longer one that Mainspring manages"
        if not {"", one.name}.isdisjoint(self._pool.draining):
            return "an operator drains it"
        if one.fields != managed.fields:
            return f"the definition has changed: instances have {managed.fields} now"
        if managed.age_us and self._now_us - one.created_us >= managed.age_us:
            return "it is as old as max_age"
        return ""

    def _moved(self, one: Instance) -> Instance:
        now_us, is_held = self._now_us, one.name in self._held
        if one.state == InstanceState.STARTING:
            if one.failures and not one.step and one.name not in self._needed:
                return moved(one, InstanceState.RELEASING, now_us, f"nobody needs it any more; {one.text}")
            return one
        if one.state in {InstanceState.READY, InstanceState.DRAINING}:
            why = self._reason_to_leave(one)
            if why and one.state == InstanceState.READY:
                one = moved(one, InstanceState.DRAINING, now_us, why)
            elif not why and one.state == InstanceState.DRAINING:
                one = moved(one, InstanceState.READY, now_us)
        if one.state in {InstanceState.DRAINING, InstanceState.BROKEN}:
            is_stopping = one.is_useless and now_us - one.last_use_us < STOPPED_US
            return one if is_held or is_stopping else moved(one, InstanceState.RELEASING, now_us, one.text)
        if one.state != InstanceState.READY or is_held:
            return one
        if self._live > self._most:
            self._live -= 1
            return moved(one, InstanceState.RELEASING, now_us, f"there are more than {self._most}")
        return self._idle(one)

    def _idle(self, one: Instance) -> Instance:
        """Return one that nobody holds, released if its idle time is over."""
        now_us = self._now_us
        if now_us - one.watched_us >= UNWATCHED_US or one.last_use_us > now_us + UNWATCHED_US:
            return used(one, now_us)
        idle_us = 0 if self._managed is None else self._managed.idle_us
        if idle_us and now_us - one.last_use_us >= idle_us and not self._pool.requests and self._to_spare > 0:
            self._to_spare -= 1
            return moved(one, InstanceState.RELEASING, now_us, "it was idle")
        return replace(one, watched_us=now_us) if now_us - one.watched_us >= WATCH_US else one

    def _with_step(self, one: Instance) -> Instance:
        """Return one with its next step, if that is due."""
        if one.step or self._now_us < one.due_us:
            return one
        step = ""
        if one.state == InstanceState.STARTING:
            step = CREATE
        elif one.state == InstanceState.RELEASING:
            step = RELEASE
        elif one.state in {InstanceState.READY, InstanceState.DRAINING} and self._managed is not None:
            is_due = 0 < self._managed.check_us <= self._now_us - one.checked_us
            step = CHECK if is_due else ""
        return replace(one, step=step, tries=one.tries + 1) if step else one

    def _forgotten(self) -> list[str]:
        gone = [one for one in self._pool.instances if one.state == InstanceState.GONE and one.name not in self._held]
        gone.sort(key=lambda one: (-one.since_us, one.name))
        return [
            one.name for place, one in enumerate(gone) if place >= MOST_GONE or self._now_us - one.since_us >= FORGET_US
        ]

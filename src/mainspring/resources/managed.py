"""Definitions of managed resources: Mainspring makes their items, *instances*, when they are needed, and releases them.

A class of the program makes and releases an instance. Its fields, such as a size, are values of JSON, and instances have them as
labels: ``size=4``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from mainspring.clock import from_us, to_us
from mainspring.errors import UsageError
from mainspring.sizes import Seconds, Text, Whole, about, is_too_deep

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_INSTANCES: Final = 100
MAX_FIELDS: Final = 20
MAX_FIELDS_BYTES: Final = 4096
MAX_META_BYTES: Final = 16_384
LONGEST: Final = 366 * 86_400.0
"""Seconds."""
SHORTEST_IDLE: Final = 1.0
SHORTEST_CHECK: Final = 1.0
_MAX_LABEL: Final = 128


class Backoff(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The attempts of a step, such as the creation of an instance. Durations are seconds."""

    attempts: int = 5
    """After so many, the step's job has failed. The next job follows after ``maximum``."""
    initial: float = 5.0
    factor: float = 2.0
    maximum: float = 300.0


class Managed(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When instances are made and released. Times are microseconds; 0: never."""

    most: int
    """Instances at a time, in all states but ``gone``."""
    least: int = 0
    slots: int = 1
    """Of each instance."""
    labels: tuple[str, ...] = ()
    """Sorted; those of fields are among them."""
    fields: str = "{}"
    """JSON, with sorted keys. Instances with others are drained."""
    idle_us: int = 0
    age_us: int = 0
    check_us: int = 0
    timeout_us: int = 0
    """Of an attempt of a step."""
    backoff: Backoff = Backoff()


class BackoffSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempts of a step, as programs write them."""

    max_attempts: Whole = 5
    initial: Seconds = 5.0
    factor: Seconds = 2.0
    maximum: Seconds = 300.0


class ManagedSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A managed resource, as programs write it: durations in seconds, None for never."""

    max: Annotated[Whole, about("The most instances at a time.")]
    min: Annotated[Whole, about("The fewest instances.")] = 0
    slots: Annotated[Whole, about("The slots of each instance.")] = 1
    labels: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_FIELDS)] = ()
    fields: Annotated[dict[Text, Any], msgspec.Meta(max_length=MAX_FIELDS)] = {}
    idle: Seconds | None = None
    max_age: Seconds | None = None
    check: Seconds | None = None
    timeout: Seconds | None = None
    retry: BackoffSpec = BackoffSpec()


def managed_of(spec: ManagedSpec) -> Managed:
    """Return the internal form of a definition. Raises UsageError if it is invalid."""
    check_bounds(spec.max, spec.min)
    if spec.slots < 1:
        raise UsageError("an instance has at least one slot")
    for name, seconds, least in (
        ("idle", spec.idle, SHORTEST_IDLE),
        ("max_age", spec.max_age, SHORTEST_IDLE),
        ("check", spec.check, SHORTEST_CHECK),
        ("timeout", spec.timeout, SHORTEST_CHECK),
        ("retry.maximum", spec.retry.maximum, 0.0),
        ("retry.initial", spec.retry.initial, 0.0),
    ):
        if seconds is not None and not least <= seconds <= LONGEST:
            raise UsageError(f"{name} of a resource is from {least:g} seconds to a year, or None; it is {seconds}")
    if not (1 <= spec.retry.max_attempts <= 1000 and 1 <= spec.retry.factor <= 1000):
        raise UsageError("the retry policy of a resource has 1 to 1,000 attempts, and a factor from 1 to 1,000")
    fields = msgspec.json.encode(spec.fields, order="sorted").decode()
    if len(spec.fields) > MAX_FIELDS or len(fields) > MAX_FIELDS_BYTES or is_too_deep(fields.encode()):
        raise UsageError(
            f"the class of a resource has at most {MAX_FIELDS} fields, of {MAX_FIELDS_BYTES:,} bytes of JSON"
        )
    labels = {*spec.labels, *(label for name, value in spec.fields.items() if (label := field_label(name, value)))}
    return Managed(
        spec.max,
        spec.min,
        spec.slots,
        tuple(sorted(labels)),
        fields,
        to_us(spec.idle or 0),
        to_us(spec.max_age or 0),
        to_us(spec.check or 0),
        to_us(spec.timeout or 0),
        Backoff(spec.retry.max_attempts, spec.retry.initial, spec.retry.factor, spec.retry.maximum),
    )


def spec_of_managed(managed: Managed) -> ManagedSpec:
    """Return the external form of a definition; the labels of its fields are among the others."""

    def span(us: int) -> float | None:
        return from_us(us) if us else None

    backoff = managed.backoff
    return ManagedSpec(
        max=managed.most,
        min=managed.least,
        slots=managed.slots,
        labels=managed.labels,
        fields=msgspec.json.decode(managed.fields),
        idle=span(managed.idle_us),
        max_age=span(managed.age_us),
        check=span(managed.check_us),
        timeout=span(managed.timeout_us),
        retry=BackoffSpec(backoff.attempts, backoff.initial, backoff.factor, backoff.maximum),
    )


def check_bounds(most: int, least: int) -> None:
    """Raise UsageError for numbers of instances that are impossible."""
    if not 0 <= least <= most <= MAX_INSTANCES:
        raise UsageError(
            f"a resource has from min to max instances, 0 <= min <= max <= {MAX_INSTANCES}; these are {least} and {most}"
        )


def field_label(name: str, value: object) -> str:
    """Return the label of a field; empty if it has none, because its value is long or has parts."""
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return ""
    label = f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
    return label if len(label) <= _MAX_LABEL and label.isprintable() else ""


def field_labels(fields: Mapping[str, object]) -> list[str]:
    """Return the labels of the items whose fields have these values. Raises UsageError for a value that has none."""
    labels = []
    for name, value in fields.items():
        label = field_label(name, value)
        if not label:
            raise UsageError(
                f"no field {name!r} can be looked for by {value!r}: use a short text, a number or a truth value"
            )
        labels.append(label)
    return labels

"""Classes that make and release the instances of a managed resource, as programs write them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_type_hints

import msgspec

from mainspring.client.json_types import ERRORS, encode_json, read_hook, reader_of
from mainspring.client.options import Duration, Retry, check_whole, seconds
from mainspring.errors import PayloadError, UsageError
from mainspring.resources.managed import BackoffSpec, ManagedSpec, managed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STEPS: Final = ("create", "check", "release")


class Resource(msgspec.Struct):
    """The base of classes that make and release instances of a resource. Their fields are values of JSON, such as a size.

    A class has these methods, ``async`` all of them. ``meta`` is what describes an instance, as JSON: the annotation of what
    ``create`` returns says its type.

    - ``create(self, key)`` makes an instance, and returns its meta. Each attempt for one instance has the same ``key``.
    - ``release(self, meta)`` releases it. To release what is gone is no error.
    - ``check(self, meta)`` returns a `Status`; without it, nothing is checked.
    - ``find(self, key)`` returns the meta of what an earlier attempt has made under a key, or None; it may be left out.
    """


class Status(NamedTuple):
    """The finding of a check, with a text for people: ``Status.healthy()``, ``Status.broken("no disk")``, ``Status.gone()``."""

    state: Literal["healthy", "broken", "gone"]
    text: str = ""

    @classmethod
    def healthy(cls) -> Status:
        """It works."""
        return cls("healthy")

    @classmethod
    def broken(cls, text: str = "") -> Status:
        """It does not work, and is to be released."""
        return cls("broken", text)

    @classmethod
    def gone(cls, text: str = "") -> Status:
        """It does not exist any more: there is nothing to release."""
        return cls("gone", text)


class Kind:
    """A class of a managed resource: it creates, checks and releases instances with any values of the class' fields."""

    def __init__(self, given: Resource) -> None:
        self.type = type(given)
        name = self.type.__name__
        for method in ("create", "release", "check", "find"):
            call = getattr(self.type, method, None)
            if call is None and method in {"check", "find"}:
                continue
            if not inspect.iscoroutinefunction(call):
                raise UsageError(f"{name} needs a method `async def {method}`, as the class of a managed resource")
            try:
                inspect.signature(call).bind(given, None)
            except TypeError:
                what = "the key" if method in _BY_KEY else "the meta"
                raise UsageError(f"{name}.{method} takes one argument, {what}") from None
        self.checks = hasattr(self.type, "check")
        self.finds = hasattr(self.type, "find")

    @property
    def steps(self) -> list[str]:
        """The steps that the class has."""
        return [step for step in STEPS if step != "check" or self.checks]

    def instance(self, fields: Mapping[str, Any]) -> Any:
        """Return an object with values of its fields. Raises PayloadError for values that do not fit: the class has changed."""
        try:
            return msgspec.convert(fields, self.type, dec_hook=read_hook)
        except ERRORS as error:
            raise PayloadError(f"{self.type.__name__} cannot have the fields {dict(fields)}: {error}") from error

    def meta(self, given: Any) -> Any:
        """Return a meta as the type that ``create`` returns. Raises PayloadError for one that does not fit."""
        method: Any = self.type
        reader = reader_of(get_type_hints(method.create).get("return", Any))
        try:
            found = msgspec.convert(given, reader.kind, dec_hook=read_hook) if reader.finish is None else None
            return found if reader.finish is None else reader.finish(msgspec.json.encode(given))
        except (*ERRORS, ValueError) as error:
            raise PayloadError(f"the meta of an instance of {self.type.__name__} cannot be read: {error}") from error


_BY_KEY: Final = {"create", "find"}


def build_managed(
    given: Resource,
    most: object,
    least: object,
    slots: object,
    labels: Iterable[str],
    idle: Duration | None,
    max_age: Duration | None,
    check: Duration | None,
    timeout: Duration | None,
    retry: Retry | None,
) -> tuple[Kind, ManagedSpec]:
    """Return a class and the definition of its resource. Raises UsageError if it is invalid."""
    kind = Kind(given)
    check_whole(most, "max", 0)
    check_whole(least, "min", 0)
    check_whole(slots, "slots", 1)
    try:
        fields = msgspec.json.decode(encode_json(given, f"a field of {kind.type.__name__}"))
    except PayloadError as error:
        raise UsageError(str(error)) from None
    backoff = BackoffSpec()
    if retry is not None:
        backoff = BackoffSpec(
            retry.max_attempts, seconds(retry.initial, "retry"), retry.factor, seconds(retry.maximum, "retry")
        )
    spec = ManagedSpec(
        max=most,  # type: ignore[arg-type] # checked above
        min=least,  # type: ignore[arg-type]
        slots=slots,  # type: ignore[arg-type]
        labels=tuple(sorted({*labels})),
        fields=fields,
        idle=None if idle is None else seconds(idle, "idle"),
        max_age=None if max_age is None else seconds(max_age, "max_age"),
        check=None if check is None or not kind.checks else seconds(check, "check"),
        timeout=None if timeout is None else seconds(timeout, "timeout"),
        retry=backoff,
    )
    managed_of(spec)
    return kind, spec

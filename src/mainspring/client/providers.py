"""Values that workers provide to functions: ``Provide``, and the parameters that it marks.

A provided parameter is no argument of the job. It has its mark as its default, or in an annotation with ``Annotated``; type
checkers understand only the default as "may be left out". The marks are read when a function is defined, by its submitters too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    cast,
    get_origin,
    get_type_hints,
    overload,
)

from mainspring.client.options import refusal
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

T = TypeVar("T")

Per: TypeAlias = Literal["job", "worker"]
Provider: TypeAlias = "Callable[..., Any]"

_Kind = inspect.Parameter
_POSITIONAL: Final = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD, _Kind.VAR_POSITIONAL)


class Provided:
    """The mark of a parameter: its provider, and whether each job gets a value of its own or all jobs of a process share one."""

    __slots__ = ("per", "provider")

    def __init__(self, provider: Provider, per: Per) -> None:
        self.provider = provider
        self.per = per

    def __repr__(self) -> str:
        return f"Provide({name_of(self.provider)}, per={self.per!r})"

    @property
    def key(self) -> tuple[Provider, Per]:
        """The same for all marks with the same value."""
        return self.provider, self.per


if TYPE_CHECKING:

    @overload
    def Provide(provider: Callable[..., AsyncGenerator[T, None]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., AsyncIterator[T]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., Generator[T, Any, Any]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., Iterator[T]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., AbstractContextManager[T]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., AbstractAsyncContextManager[T]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., Awaitable[T]], /, *, per: Per = "job") -> T: ...
    @overload
    def Provide(provider: Callable[..., T], /, *, per: Per = "job") -> T: ...


def Provide(provider: Any, /, *, per: Per = "job") -> Any:  # noqa: N802
    """Mark a parameter whose value workers make. It is the parameter's default, or stands in an ``Annotated`` type.

    ``provider`` is a function that returns the value, or a generator that yields it and closes it afterwards, or either of
    them as a coroutine; a class that is a context manager, or a function that ``contextlib.contextmanager`` or
    ``asynccontextmanager`` has made. Its own parameters are provided ones, or have defaults.

    ``per="job"``: each attempt gets a value of its own, which is closed when the attempt ends. ``per="worker"``: all jobs of a
    process share one, which is made for the first of them and closed when the process ends; threads use it at the same time.

    Raises UsageError if the value cannot be a provider.
    """
    if per not in ("job", "worker"):
        raise refusal("per", "'job' or 'worker'", per)
    return Provided(check_provider(provider), per)


def check_provider(given: object) -> Provider:
    """Return a provider. Raises UsageError if the value cannot be one."""
    is_function = isinstance(given, (type, functools.partial)) or inspect.isroutine(given)
    if callable(given) and (is_function or hasattr(given, "__wrapped__")):
        return cast("Provider", given)
    raise UsageError(
        f"a provider is a function, a generator or a class that is a context manager, and not {given!r}: give a function that "
        "returns it, such as `lambda: value`"
    )


def name_of(call: object) -> str:
    """Return the name of a function for messages."""
    while isinstance(call, functools.partial):
        call = call.func
    return str(getattr(call, "__qualname__", call))


def provided_of(function: Callable[..., Any]) -> dict[str, Provided]:
    """Return the provided parameters of a function, each with its mark.

    Raises as ``inspect.signature`` does.
    """
    found: dict[str, Provided] = {}
    for one in inspect.signature(function).parameters.values():
        if isinstance(one.default, Provided):
            found[one.name] = one.default
        elif one.annotation is not one.empty and (mark := _in_annotation(one.annotation, function)) is not None:
            found[one.name] = mark
    return found


def is_marked(function: Callable[..., Any], parameter: str) -> bool:
    """Return whether the default of a parameter is a mark."""
    return isinstance(inspect.signature(function).parameters[parameter].default, Provided)


def check_given(
    name: str, function: Callable[..., Any], marked: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise TypeError for a plain call that lacks a provided parameter: the function would get its mark."""
    given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    if missing := [one for one in marked if one not in given]:
        raise TypeError(
            f"{name}: {missing[0]!r} is provided by workers, and a plain call runs without one: give it, {name}(…, "
            f"{missing[0]}=…)"
        )


def _in_annotation(annotation: Any, function: Callable[..., Any]) -> Provided | None:
    if isinstance(annotation, str):
        try:
            annotation = hints_of(function, {"it": annotation})["it"]
        except Exception:  # noqa: BLE001 - a name that is defined later, or any error of users' code
            return None  # a worker refuses functions whose annotations it cannot resolve
    if get_origin(annotation) is not Annotated:
        return None
    return next((one for one in annotation.__metadata__ if isinstance(one, Provided)), None)


def hints_of(function: Callable[..., Any], annotations: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the resolved annotations of a function, or others as if they were its own. Raises what code in them raises."""
    while isinstance(function, functools.partial):
        function = function.func  # a partial has no annotations of its own
    if annotations is None:
        return get_type_hints(function, include_extras=True)

    def stand_in() -> None: ...

    stand_in.__annotations__ = dict(annotations)
    place = inspect.unwrap(function)
    names = getattr(place, "__globals__", None) or vars(sys.modules.get(getattr(place, "__module__", ""), object))
    return get_type_hints(stand_in, globalns=dict(names), include_extras=True)


def check_places(name: str, parameters: Iterable[inspect.Parameter], provided: Mapping[str, Provided]) -> None:
    """Raise UsageError unless arguments by position are the same for the function and for its submitters."""
    earlier = ""
    for one in parameters:
        if one.name in provided:
            if one.kind not in (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY):
                raise UsageError(
                    f"{name}: {one.name!r} is provided, so it needs a name: it cannot be *, ** or before a /"
                )
            earlier = earlier or one.name
        elif earlier and one.kind in _POSITIONAL:
            raise UsageError(
                f"{name}: the provided parameter {earlier!r} stands before {one.name!r}, which callers may give by position: "
                "put provided parameters last, or after a *"
            )


def check_needs(
    name: str, provided: Mapping[str, Provided], replaced: Mapping[Provider, Provider], path: Sequence[Provider] = ()
) -> None:
    """Check the providers of a function, and those that they need in turn.

    ``replaced`` has providers that are used in place of others. Raises UsageError for a parameter that nothing provides, for
    a value per worker that needs one per job, and for a circle.
    """
    for mark in provided.values():
        provider = replaced.get(mark.provider, mark.provider)
        title = name_of(provider)
        if provider in path:
            circle = " → ".join(map(name_of, (*path, provider)))
            raise UsageError(f"{name}: its providers need each other: {circle}")
        needs = needs_of(provider, title)
        for parameter, inner in needs.items():
            if mark.per == "worker" and inner.per == "job":
                raise UsageError(
                    f"{name}: {title} is provided per worker, and its parameter {parameter!r} per job: a value that jobs share "
                    "cannot use that of one job; provide both per worker, or both per job"
                )
        check_needs(name, needs, replaced, (*path, provider))


def needs_of(provider: Provider, title: str) -> dict[str, Provided]:
    """Return the provided parameters of a provider. Raises UsageError for others without a default."""
    try:
        parameters = inspect.signature(provider).parameters.values()
        needs = provided_of(provider)
    except (TypeError, ValueError):  # a class that is not written in Python: it is called without arguments
        return {}
    for one in parameters:
        is_rest = one.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD)
        if one.name not in needs and one.default is one.empty and not is_rest:
            raise UsageError(
                f"the provider {title} has a parameter {one.name!r} that nothing provides: mark it with Provide, or give it a "
                "default"
            )
    return needs

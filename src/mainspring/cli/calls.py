"""Requests of commands to a server: the API's requests, sent as ``CALL`` packets of the protocol.

A search for jobs or runs takes several requests: each answer has those found in 60 ms and the cursor with which to continue.

Options of commands are fields of requests: their names, help and values come from the request's declaration.
``@takes(SnoozeJob, "delay")`` gives a command the options of these fields. The command gets the given ones in its argument
``given``, as values for the request: ``SnoozeJob(handle, **given)``. A request that declares a ``command`` gets the whole command
from here (`add_made`).
"""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_type_hints

from cyclopts import App, Parameter
from msgspec.structs import replace

from mainspring.api.declaration import FieldKind, fields_of
from mainspring.api.functions import IsRegistered, ListFunctions, ShowFunction
from mainspring.api.request import PAGE_LIMIT, Request, params_of, requests_of
from mainspring.cli.display import EXIT_DONE, did_you_mean, exit_code, explain, print_error, print_json
from mainspring.cli.options import LOCAL, Json, ServerOptions, args_of, reading
from mainspring.errors import MainspringError, NotFoundError, SettingsError, UsageError
from mainspring.namespaces import name_text
from mainspring.quantities import parse_duration, parse_rate, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    import msgspec
    from cyclopts import Group

    from mainspring.api.declaration import Field
    from mainspring.client.blocking import Client


_LONE = re.compile("[\udc80-\udcff]")


def arguments_of(request: Request[Any]) -> dict[str, Any]:
    """Return a request's params, as `params_of` does, with names as commands read them."""
    return {field: _param(value) for field, value in params_of(request).items()}


def _param(value: Any) -> Any:
    if isinstance(value, str):
        return name_argument(value)
    if isinstance(value, dict):  # such as the filter of an operation
        return {field: _param(one) for field, one in value.items()}
    return [_param(one) for one in value] if isinstance(value, list) else value


def name_argument(text: str) -> str:
    """Return the text of a name that is an argument of a command. Python reads bytes that are not UTF-8 as lone surrogates."""
    return text if text.isascii() or _LONE.search(text) is None else name_text(text.encode("utf-8", "surrogateescape"))


def call(client: Client, request: Request[Any], timeout: float | None = None) -> dict[str, Any]:
    """Send a request and return the answer; raises as `Client.call`.

    The answer is a dict, because a server of another version may send other keys.
    """
    answer: dict[str, Any] = client.call(request.call, arguments_of(request), timeout)
    return answer


def items(client: Client, request: Request[Any], most: int | None = None) -> Iterator[Any]:
    """Yield the rows of a list, or the first ``most``, in as many requests as needed. Raises as `call`."""
    page: Any = request  # a list has the fields `cursor` and `limit`
    number = 0
    while True:
        page = replace(page, limit=PAGE_LIMIT if most is None else min(PAGE_LIMIT, most - number))
        answer = call(client, page)
        yield from answer["items"]
        number += len(answer["items"])
        if answer["next"] is None or (most is not None and number >= most):
            return
        page = replace(page, cursor=answer["next"])


def print_answer(
    client: Client,
    request: Request[Any],
    write: Callable[[dict[str, Any]], object],
    *,
    json: bool,
    timeout: float | None = None,
) -> int:
    """Print the answer, as JSON or with ``write``, and return the exit code. Raises as `call`."""
    answer = call(client, request, timeout)
    if json:
        print_json(answer)
    else:
        write(answer)
    return EXIT_DONE


class ListSearch:
    """A search for the rows of a list, up to the limit of its request: those found so far, and the place of the search."""

    def __init__(self, client: Client, request: Request[Any]) -> None:
        self._client = client
        self._request: Any = request  # a list has the fields `cursor` and `limit`
        self.found: list[dict[str, Any]] = []
        self.next: str | None = None
        """The cursor with which the search continues; None: it has ended."""
        self.searched_to: str | None = None
        """The time of the last row that was examined."""

    def run(self) -> None:
        """Search until the limit is reached or no row is left. An exception keeps the rows that were found before it."""
        request, limit = self._request, self._request.limit
        while True:
            answer = call(self._client, replace(request, limit=limit - len(self.found)))
            self.found += answer["items"]
            self.next, self.searched_to = answer["next"], answer["searched_to"]
            if self.next is None or len(self.found) >= limit:
                return
            request = replace(request, cursor=self.next)

    def print_next(self) -> None:
        """Say how the list goes on, if it does. Standard output has only rows."""
        if self.next is not None:
            print_error(f"there may be more: continue with --cursor {self.next}")


MAX_SUGGESTIONS = 3
"""Similar names in a message, at most."""
HINT_TIMEOUT = 2.0
"""Seconds to wait for the answer. It is only a hint, so the command does not wait longer."""


def no_worker(client: Client, function: str, consequence: str = "the job waits") -> str | None:
    """Return a sentence if no worker of any node has registered a function; None if one has, or if the server cannot know."""
    try:
        answer = call(client, IsRegistered(function), HINT_TIMEOUT)
    except (MainspringError, TimeoutError, ValueError):
        return None  # an older server, one that is gone, or a name that is not text
    if answer["registered"] is not False:
        return None
    age = ", as of the nodes' last heartbeats" if answer["shared"] else ""
    near = did_you_mean(function, answer["functions"], most=MAX_SUGGESTIONS)
    return f"no worker has registered {function}{age}; {consequence}{near}"


def check_exists(client: Client, function: str) -> None:
    """Raise NotFoundError if a function has no jobs, no workers and no limits: its name may be misspelt."""
    try:
        call(client, ShowFunction(function))
    except NotFoundError:
        listed: list[dict[str, Any]] = call(client, ListFunctions(limit=PAGE_LIMIT))["items"]
        near = did_you_mean(function, [one["function"] for one in listed], most=MAX_SUGGESTIONS)
        raise NotFoundError(
            f"the function {function} has no jobs, workers or limits; add --create if the name is right{near}"
        ) from None


Given: TypeAlias = "dict[str, Any]"
"""The fields of a request for which options are given."""
NOTHING: Final[Given] = {}
"""No options."""
ARGUMENTS: Final = "args"
"""The field with the arguments of a job; their text is sent as it is, in the field ``payload``."""
NONE: Final = "none"
"""The word for null."""

F = TypeVar("F", bound="Callable[..., int]")


def takes(
    kind: type[msgspec.Struct],
    *names: str,
    into: str = "given",
    group: Group | Mapping[str, Group] | None = None,
) -> Callable[[F], F]:
    """Replace a command's parameter ``into`` by the options of the fields of a request: those named, or all with a description.

    ``group`` is that of the help, or the one of each field.
    """
    declared = fields_of(kind)
    chosen = [declared[name] for name in names] if names else [one for one in declared.values() if one.is_option]
    options = {f"{into}_{one.name}": one for one in chosen}  # a command may have a parameter of the same name

    def decorate(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(function).parameters.values():
            if own.name == into:
                parameters += [_option(name, one, _group_of(group, one)) for name, one in options.items()]
            else:
                parameters.append(own.replace(annotation=hints.get(own.name, own.annotation)))

        @wraps(function)
        def command(*args: Any, **kwargs: Any) -> int:
            given = {options[name].name: kwargs.pop(name) for name in [*kwargs] if name in options}
            return function(*args, **kwargs, **{into: _values(given)})

        command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
        del command.__wrapped__  # readers of signatures would follow it
        return command  # type: ignore[return-value]

    return decorate


def option_of(one: Field, group: Group | None) -> Parameter:
    """Return the option of a declared field."""
    return Parameter(
        name=one.names if len(one.names) > 1 else one.names[0],
        help=one.help,
        show_default=False,
        **{
            **_READ[one.kind](one),
            **({} if group is None else {"group": group}),
            **({"metavar": one.metavar} if one.metavar else {}),
        },
    )


def _option(name: str, one: Field, group: Group | None) -> inspect.Parameter:
    kind: Any = _TYPES.get(one.kind, str)
    if one.kind is FieldKind.CHOICE:
        kind = str | int if one.takes_number else Literal.__getitem__(one.choices)
    elif one.kind is FieldKind.LIST:
        kind = list.__class_getitem__(Literal.__getitem__(one.choices) if one.choices else str)
    elif one.kind is FieldKind.NUMBER:
        kind = one.number
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.required else None,
        annotation=Annotated[kind if one.required else kind | None, option_of(one, group)],
    )


def _group_of(group: Group | Mapping[str, Group] | None, one: Field) -> Group | None:
    return group.get(one.name) if hasattr(group, "get") else group  # type: ignore[union-attr]


def _values(given: Given) -> Given:
    """Return the values of a request; arguments become its payload."""
    if ARGUMENTS in given:
        given["payload"] = args_of(None, given.pop(ARGUMENTS)) or b""
    return given


_TYPES: Final[Mapping[FieldKind, Any]] = {
    FieldKind.DURATION: float,
    FieldKind.TIME: datetime,
    FieldKind.RATE: object,
    FieldKind.FLAG: bool,
}
"""The types of values; text for all others."""


def moment(text: str) -> datetime:
    """Return the time that a text such as 2030-01-31T12:00:00Z names. Raises SettingsError."""
    return datetime.fromtimestamp(parse_time(text), UTC)


def _reading(one: Field, parse: Callable[[str], Any], metavar: str) -> dict[str, Any]:
    def read(text: str) -> Any:
        return None if one.may_be_none and text == NONE else parse(text)

    return {"converter": reading(read), "metavar": metavar, "n_tokens": 1}


def _number(one: Field) -> dict[str, Any]:
    def read(text: str) -> int | float:
        try:
            value = one.number(text)
        except ValueError:
            value = None
        if value is None or (one.least is not None and value < one.least):
            least = "" if one.least is None else f" from {one.least:g} on"
            raise SettingsError(f"{text!r} is not a number{least}{', or none' if one.may_be_none else ''}")
        return value

    return _reading(one, read, "NUMBER")


def _choice(one: Field) -> dict[str, Any]:
    def read(text: str) -> Any:
        if text in one.choices:
            return text
        if text.isdecimal():
            return int(text)
        raise UsageError(f"{text!r} is not possible: use {', '.join(one.choices)} or a number")

    return _reading(one, read, "CHOICE") if one.takes_number else {}


_READ: Final[Mapping[FieldKind, Callable[[Field], dict[str, Any]]]] = {
    FieldKind.TEXT: lambda _: {},
    FieldKind.NUMBER: _number,
    FieldKind.DURATION: lambda one: _reading(one, parse_duration, "DURATION"),
    FieldKind.TIME: lambda one: _reading(one, moment, "TIME"),
    FieldKind.RATE: lambda one: _reading(one, parse_rate, "JOBS/DURATION"),
    FieldKind.CHOICE: _choice,
    FieldKind.FLAG: lambda one: {} if one.default is not False else {"negative": ""},
    FieldKind.LIST: lambda _: {"negative": ""},
    FieldKind.JSON: lambda _: {"metavar": "ARGS", "allow_leading_hyphen": True},
    FieldKind.BYTES: lambda _: {},
    FieldKind.OBJECT: lambda _: {},
}
"""How commands read values, by kind."""


def add_made(app: App, subject: ModuleType) -> None:
    """Add the commands that the requests of a subject declare."""
    for kind in requests_of(subject):
        if kind.command:
            app.command(_command_of(kind), name=kind.call.split(".")[1].replace("_", "-"))


def _command_of(kind: type[Request[Any]]) -> Callable[..., int]:
    """Return a command that makes a request for each of the objects that it names."""
    assert kind.http is not None, kind
    field = kind.http.parameters[-1]
    named = Parameter(name=field.upper(), help=f"The {field}s, each of one object.", negative="")

    def command(
        objects: tuple[str, ...],
        /,
        *,
        given: Given = NOTHING,
        json: Json = False,
        server: ServerOptions = LOCAL,
    ) -> int:
        return send_each([kind(**{field: one}, **given) for one in objects], field, server, json=json)

    command.__annotations__["objects"] = Annotated[tuple[str, ...], named]
    command.__doc__ = f"{inspect.cleandoc(kind.__doc__ or '')}\n\n{kind.command}"
    return takes(kind)(command)


def send_each(requests: Sequence[Request[Any]], field: str, server: ServerOptions, *, json: bool) -> int:
    """Send requests about one object each, print each answer or error, and return the exit code of the first error.

    ``field`` is the field of the requests and of the answers that names the object.
    """
    client = server.client()
    code = EXIT_DONE
    for request in requests:
        try:
            answer = call(client, request)
        except MainspringError as error:
            text, name = explain(error), str(getattr(request, field))
            print_error(text if text.startswith(name) else f"{name}: {text}")
            code = code or exit_code(error)
            continue
        if json:
            print_json(answer)
        else:
            print(f"{answer[field]}\t{answer['state']}", flush=True)
    return code

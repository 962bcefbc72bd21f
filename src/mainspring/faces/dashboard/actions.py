"""The actions of pages: one declaration for each, from which the form, the call, the command and the ``curl`` line come.

A form is sent to ``/actions/{operation}``. Its fields ``path.…`` are the parameters of the call's path, and its other fields are
those of the call's body. So everything works without a script, and nothing is possible here that the API does not permit.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import Field as DeclaredField
from mainspring.api.declaration import FieldKind, field_of, fields_of
from mainspring.api.request import requests_of
from mainspring.errors import MainspringError, SettingsError
from mainspring.faces.dashboard.calls import names_in
from mainspring.faces.dashboard.rendering import command_line, curl
from mainspring.faces.web.exchange import ROOT, N
from mainspring.quantities import parse_duration, parse_rate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from mainspring.api.declaration import Button
    from mainspring.api.request import Request
    from mainspring.faces.dashboard.visit import Visit

Kind = Literal[
    "text",
    "long_text",
    "number",
    "seconds",
    "duration",
    "json",
    "time",
    "rate",
    "choice",
    "flag",
    "names",
    "lines",
    "headers",
]
PATH: Final = "/actions/"
OF_PATH: Final = "path."
PRESENT: Final = "present."
"""The fields of a form with the values that the object has now begin so: what is still the same is not sent again."""
VERSION: Final = "version"
"""The field of a form for ``If-Match``."""
NEXT: Final = "next"
"""The field of a form for the path of the page that is shown afterwards."""

LONGEST: Final = 4096
"""Characters of a text that has no smaller limit."""
LARGEST: Final = 1 << 63
"""JSON of the API has no larger numbers."""
EXAMPLES: Final = {
    "number": "10",
    "seconds": "60",
    "duration": "1m",
    "json": "[1]",
    "time": "2030-01-31T12:00:00Z",
    "rate": "100/1m",
    "headers": "X-Team: shop",
}
"""Values of required fields in shown commands, by kind."""


class FormError(MainspringError):
    """A field of a form that cannot be read. ``field`` is its name; empty: the fault is that of the whole form."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Field:
    """An input of a form."""

    name: str
    """That of the call's body."""
    label: str
    kind: Kind = "text"
    option: str = ""
    """The option of the command, such as ``--reason``; empty: the command has none."""
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    """Values with their words; of a text, those that the browser suggests."""
    hint: str = ""
    longest: int = LONGEST
    """Characters."""
    permission: Permission | None = None
    """A further permission that a call with this field needs: forms of others lack it."""
    everywhere: bool = False
    """Whether a call with this field needs the action's permission in all namespaces: forms of others lack it."""
    cleared: Any = None
    """The value that is sent if a present one was removed; None: none is sent, and the present one stays."""


class Further(NamedTuple):
    """Additions to a shown command and to a shown call."""

    options: list[str]
    """Of the command."""
    keys: list[str]
    """Of the body."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that users can do."""

    operation: str
    """The ``operationId`` of the API's route."""
    label: str
    """The words on the button."""
    done: str
    """A sentence for afterwards."""
    path: str
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """Other sentences for afterwards, by a value in the answer."""
    outcome_key: str = "state"
    """The key of this value."""
    correctable: frozenset[int] = frozenset({400, 403, 422})
    """Statuses of calls that other values in the form may correct."""
    permission: Permission = Permission.OPERATE
    needs: str = ""
    """As of `registry.Page`."""
    of_all_functions: bool = False
    """Whether a grant for some functions is not enough."""
    fields: tuple[Field, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Further values of the body."""
    command: str = ""
    """The arguments of ``mainspring``, with parameters of the path and fields in braces; empty: there is no command."""
    empty_option: str = ""
    """The option of the command for a form without any value."""
    warning: str = ""
    """A sentence for actions that cannot be undone: their form opens first."""
    if_match: bool = False
    """Whether the form carries the version of the object."""
    current: Callable[[Visit, Mapping[str, str]], Awaitable[str]] | None = None
    """Returns the object as it is now in a few words, for a form that came after another change."""
    then: Callable[[Visit, Mapping[str, str], Any], str] | None = None
    """Returns the path to show afterwards, for the parameters of the path and the answer; by default the page of the form."""
    name: str = ""
    """Its name in addresses, if several actions are of one operation."""

    @property
    def key(self) -> str:
        """Its name in addresses."""
        return self.name or self.operation

    def parameters(self, form: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters of the path; the namespace is that of the page. Raises FormError."""
        names = [name for name in names_in(self.path) if name != "namespace"]
        given = {name: form.get(OF_PATH + name, "") for name in names}
        if not all(given.values()):
            raise FormError("The form is incomplete: open its page again.")
        return given

    def body(self, form: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the body of the call; None for none. Raises FormError."""
        if self.method == "DELETE":
            return None
        values = dict(self.fixed)
        for one in self.fields:
            text = form.get(one.name, "")
            present = form.get(PRESENT + one.name, "")
            value = None if present and text == present else read_field(one, text)
            if value is None and present and not text.strip():
                value = one.cleared
            if value is not None:
                values[one.name] = value
        return values

    def suggesting(self, name: str, values: Iterable[str], hint: str = "") -> Action:
        """Return the action with other suggestions for a text."""
        choices = tuple((value, "") for value in values)
        fields = (
            replace(one, choices=choices, hint=hint or one.hint) if one.name == name else one for one in self.fields
        )
        return replace(self, fields=tuple(fields))

    def outcome(self, answer: bytes) -> str:
        """Return the outcome in an answer, if that has a sentence of its own; else an empty text."""
        value = str(msgspec.json.decode(answer)[self.outcome_key]) if self.outcomes else ""
        return value if value in self.outcomes else ""

    def notice(self, outcome: str) -> str:
        """Return the sentence for afterwards."""
        return self.outcomes.get(outcome, self.done)

    def command_line(self, namespace: str, parameters: Mapping[str, str], values: Mapping[str, str]) -> str:
        """Return the command that does the same; empty if there is none."""
        if not self.command:
            return ""
        texts = {
            one.name: _word(one, value) if (value := values.get(one.name, "")) or one.required else ""
            for one in self.fields
        }
        parts = self.command.split()
        verbs = [part for part in parts if "{" not in part and not part.startswith("--")]
        names = [part.format(**{**texts, **parameters}) for part in parts if "{" in part]
        options: list[tuple[str, str | None]] = [(part, None) for part in parts if part.startswith("--")]
        for one in self.fields:
            value = values.get(one.name, "")
            if one.option and (value or one.required):
                options += [(one.option, word) for word in _option_words(one, value)]
        if self.empty_option and not any(values.get(one.name) for one in self.fields):
            options.append((self.empty_option, None))
        return command_line(verbs, [name for name in names if name], options, namespace)

    def permitted(
        self,
        may: Callable[[Permission], bool],
        typed: Mapping[str, str],
        may_everywhere: Callable[[Permission], bool] = lambda _: False,
    ) -> Action:
        """Return the action without the fields that need a permission which the viewer lacks, except for typed ones."""
        fields = [
            one
            for one in self.fields
            if typed.get(one.name)
            or (
                (one.permission is None or may(one.permission))
                and (not one.everywhere or may_everywhere(self.permission))
            )
        ]
        return self if len(fields) == len(self.fields) else replace(self, fields=tuple(fields))

    def further(self, values: Mapping[str, str]) -> Further:
        """Return the additions for empty fields."""
        empty = [one for one in self.fields if not one.required and not values.get(one.name)]
        words = [
            one.option or (one.name.upper() if f"{{{one.name}}}" in self.command else "")
            for one in empty
            if self.command
        ]
        return Further([one for one in words if one], [one.name for one in empty if self.method != "DELETE"])

    def curl_line(self, address: str, values: Mapping[str, str], version: str = "") -> str:
        """Return the ``curl`` command of the call at an address. Raises FormError."""
        examples = {one.name: EXAMPLES.get(one.kind, one.name.upper()) for one in self.fields if one.required}
        body = self.body({**examples, **{name: value for name, value in values.items() if value}})
        tag = (f'"{version}"' if version else "*") if self.if_match else ""
        # PUT without values removes them all.
        return curl(self.method, address, body if body or self.method == "PUT" else None, tag)


class RefusedForm(NamedTuple):
    """The form of an action that was refused."""

    action: Action
    parameters: Mapping[str, str]
    version: str
    values: Mapping[str, str]
    """Those that were typed."""
    faults: Mapping[str, str]
    """The fields that are wrong, with the reasons."""


def _word(one: Field, value: str) -> str:
    """Return the value of an option in a command; for an empty field, an example."""
    text = value or EXAMPLES.get(one.kind, one.name.upper())
    if one.kind == "time":
        with contextlib.suppress(FormError):
            return _time(one, text)  # browsers send times without a zone
    return f"{text}s" if one.kind == "seconds" else text


def _option_words(one: Field, value: str) -> Sequence[str | None]:
    """Return the word for each time that a command has the option of a field; None: the option has no value."""
    if one.kind == "flag":
        return [None]
    word = _word(one, value)
    if one.kind == "names":
        return word.replace(",", " ").split()
    return [line.strip() for line in word.split("\n") if line.strip()] if one.kind in {"lines", "headers"} else [word]


def read_field(one: Field, text: str) -> Any:
    """Return the JSON value of a field's text; None if it is empty. Raises FormError."""
    try:
        return _value_of(one, text)
    except FormError as error:
        raise FormError(str(error), one.name) from None


def _value_of(one: Field, text: str) -> Any:
    # Browsers send the ends of lines as two characters.
    text = text.replace("\r\n", "\n") if one.kind == "long_text" else text.strip()
    if not text:
        if one.required:
            raise FormError(f"{one.label} is missing: fill it in")
        return None
    if one.kind in {"number", "seconds"}:
        return _number(one, text)
    if one.kind == "json":
        return json_of(one.label, text)
    if one.kind == "time":
        return _time(one, text)
    if one.kind in {"rate", "duration"}:
        try:
            if one.kind == "rate":
                return parse_rate(text)
            return parse_duration(f"{text}s" if text.isdecimal() else text)
        except SettingsError as error:
            raise FormError(f"{one.label}: {error}") from None
    if one.kind == "flag":
        return True
    if one.kind == "names":
        return text.replace(",", " ").split()
    if one.kind in {"lines", "headers"}:
        lines = [line for part in text.split("\n") if (line := part.strip())]
        return lines if one.kind == "lines" else _headers(lines)
    return text


def _headers(lines: Iterable[str]) -> dict[str, str]:
    """Return headers by name. The errors do not repeat values: they may be secrets."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            raise FormError("A header is written as NAME: VALUE, each on a line of its own")
        if name in found:
            raise FormError(f"The header {name[:64]} is there twice")
        found[name] = value
    return found


def json_of(label: str, text: str) -> Any:
    """Return the value of a field with JSON. Raises FormError."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise FormError(f"{label}: this is not valid JSON: {error}") from None
    except RecursionError:
        raise FormError(f"{label} has too many levels of lists and objects") from None


def _number(one: Field, text: str) -> int | float:
    try:
        number = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise FormError(f"{one.label} is no number: {text[:80]}") from None
    if not abs(number) < LARGEST:  # also NaN, which JSON does not have
        raise FormError(f"{one.label} is too large: {text[:80]}")
    return number


def _time(one: Field, text: str) -> str:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise FormError(f"{one.label} is no time such as 2030-01-31T12:00Z: {text[:80]}") from None
    if time.tzinfo is None:  # as browsers send it; the label says that it is UTC
        time = time.replace(tzinfo=dt.UTC)
    return time.isoformat()


_KINDS: Final[Mapping[FieldKind, Kind]] = {
    FieldKind.TEXT: "text",
    FieldKind.NUMBER: "number",
    FieldKind.DURATION: "duration",
    FieldKind.TIME: "time",
    FieldKind.RATE: "rate",
    FieldKind.CHOICE: "choice",
    FieldKind.FLAG: "flag",
    FieldKind.LIST: "lines",
    FieldKind.JSON: "json",
}
"""The inputs of forms for the values of requests."""


def declared(request: type[msgspec.Struct], name: str, /, **more: Any) -> Field:
    """Return the input for a field of a request, as that declares it; ``more`` are differences of this form.

    An empty choice leaves the field out.
    """
    one = field_of(request, name)
    given: dict[str, Any] = {
        "name": one.key,
        "label": one.label,
        "kind": _KINDS[one.kind],
        "option": one.names[0],
        "required": one.required,
        "choices": _choices_of(one),
        "hint": one.help.removesuffix("."),
        "longest": one.longest or LONGEST,
    }
    return Field(**{**given, **more})


def _choices_of(one: DeclaredField) -> tuple[tuple[str, str], ...]:
    """Return the values of a choice with their words. The first one leaves the field out, if that is possible."""
    if one.kind is not FieldKind.CHOICE or one.required:
        return tuple((value, value) for value in one.choices)
    default = one.default if one.default in one.choices else ""
    return (("", default or "as it is"), *((value, value) for value in one.choices if value != default))


def act(kind: type[Request[Any]], *, fields: Iterable[Field | str] = (), **more: Any) -> Action:
    """Return the action that makes a request; ``more`` are its words, and its differences from the declaration.

    ``fields`` are the names of those in the form, or inputs that differ.
    """
    http = kind.http
    assert http is not None, kind
    path = ROOT + http.path if http.path.startswith("/") else f"{N}/{http.path}"
    objects = [name for name in names_in(path) if name != "namespace"]
    given: dict[str, Any] = {
        "operation": http.name or kind.call.replace(".", "_"),
        "path": path,
        "method": http.method,
        "permission": kind.permission,
        "needs": kind.requires or "",
        "if_match": http.method in {"PUT", "PATCH", "DELETE"} and "revision" in kind.__struct_fields__,
        "fields": tuple(declared(kind, one) if isinstance(one, str) else one for one in fields),
        "command": " ".join([*kind.call.split("."), *(f"{{{name}}}" for name in objects)]),
    }
    return Action(**{**given, **more})


class MadeAction(NamedTuple):
    """An action that is made of a request's declaration, and the states of the object in which its page has it."""

    action: Action
    states: tuple[str, ...]

    def fits(self, state: str) -> bool:
        """Return whether the page of an object in this state has it."""
        return not self.states or state in self.states


def made_actions(subject: ModuleType) -> tuple[MadeAction, ...]:
    """Return the actions that the requests of a subject declare."""
    return tuple(_made_action(kind, kind.button) for kind in requests_of(subject) if kind.button is not None)


def _made_action(kind: type[Request[Any]], button: Button) -> MadeAction:
    fields = [one.name for one in fields_of(kind).values() if one.is_option]
    action = act(kind, fields=fields, label=button.label, done=button.done, warning=button.warning)
    return MadeAction(action, button.states)


PRIORITIES: Final = (("", "normal"), ("high", "high"), ("low", "low"))
ARGUMENTS: Final = "JSON: a list has positional arguments, an object keyword arguments"
REASON: Final = Field(name="reason", label="Reason", option="--reason", hint="kept in the audit")
JOB: Final = f"{N}/jobs/{{handle}}"

"""Payloads: encodes the arguments and results of Python functions as bytes, and decodes them.

======================  ==============================================================
payload                 arguments
======================  ==============================================================
empty                   none
a JSON array            positional arguments
a JSON object           keyword arguments
another JSON value      one positional argument, like ``[value]``
any bytes               the argument of a function whose only parameter is ``bytes``
======================  ==============================================================

A result is JSON; ``bytes`` stay as they are, and ``None`` is empty. Values are decoded by their annotations, which may be all
types that msgspec can decode (dataclasses, Structs, datetimes, UUIDs, Decimals, Enums, collections of them, …). Decoding
is strict: a string is not accepted as a number. `json_types` has other types: those of `register_type`, and models of Pydantic.
"""

from __future__ import annotations

import inspect
import re
import types
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from mainspring.client.json_types import (
    ERRORS,
    Reader,
    check,
    encode_json,
    json_refusal,
    problem_of,
    read_hook,
    reader_of,
    sorted_arguments,
    write,
)
from mainspring.client.providers import check_needs, check_places, hints_of, provided_of
from mainspring.client.pydantic_models import ModelError, is_model, is_named_in
from mainspring.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from mainspring.client.providers import Provided

_Kind = inspect.Parameter
_WHITESPACE = b" \t\r\n"
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that it cannot decode. It has no own errors for invalid UTF-8 and too deep nesting."""

_ERROR_PATH = re.compile(r" - at `\$(?:\[(\d+)\]|\.([^`.\[]+))?(.*)`$")


def encode_result(value: Any) -> bytes:
    """Encode a function's result.  Raises PayloadError if JSON cannot represent it, such as NaN and Infinity."""
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return encode_json(value, _RESULT)


_RESULT: Final = "the result"


class Signature:
    """The encoder and decoder for a function's arguments and result.

    Annotations are resolved on first use, so that they may name types that are defined after the function.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._function = function
        self._bindable = inspect.signature(function)
        self.provided: dict[str, Provided] = provided_of(function)
        """The parameters that are no arguments, because workers provide their values."""
        if self.provided:
            check_places(name, self._bindable.parameters.values(), self.provided)
            check_needs(name, self.provided, {})
            arguments = [one for one in self._bindable.parameters.values() if one.name not in self.provided]
            self._bindable = self._bindable.replace(parameters=arguments)
        self._parameters = list(self._bindable.parameters.values())
        self._positional = [
            p for p in self._parameters if p.kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
        ]
        self._variadic = any(p.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD) for p in self._parameters)
        self._rest = next((p.name for p in self._parameters if p.kind is _Kind.VAR_POSITIONAL), "")
        required = [p for p in self._parameters if p.default is p.empty]
        self._needed = sum(p.kind is not _Kind.KEYWORD_ONLY for p in required)
        self._positional_suffices = not self._variadic and all(p.kind is not _Kind.KEYWORD_ONLY for p in required)
        self._only_by_position = any(p.kind is _Kind.POSITIONAL_ONLY for p in required)
        one = self._parameters[0] if len(self._parameters) == 1 and not self._variadic else None
        # Compares the unresolved annotation: it must not be resolved while its module still loads.
        self.raw = one is not None and (one.annotation is bytes or one.annotation == "bytes")
        """Whether the payload's bytes are the only argument."""
        # A call with so many positional arguments fits, and they are a JSON array.
        self._fewest = max(self._needed, 1)
        self._most = len(self._positional) if self._positional_suffices and not self.raw else -1
        # Keyword arguments with these names fit.
        by_name = [p for p in self._parameters if p.kind in (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)]
        self._names = frozenset(p.name for p in by_name)
        self._required = frozenset(p.name for p in required if p.kind not in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD))
        self._what = f"an argument of {name}"
        self._hints: dict[str, Any] | None = None
        self._array: Callable[[bytes], tuple[Any, ...]] | None = None
        self._object: Callable[[bytes], tuple[Any, ...]] | None = None
        self._result: Callable[[bytes], Any] | None = None
        self._sure: frozenset[type[Any]] = frozenset()
        """Classes whose instances have the declared type of results."""
        self._scalars: frozenset[type[Any]] = frozenset()
        """Those of them that are JSON without further checks."""
        self._checks_results: bool | None = None
        """Whether other results are checked; None: not looked up."""
        self._has_models: bool | None = None
        """Whether a parameter's annotation names a model of Pydantic; None: not looked up."""

    def without_function(self) -> Self:
        """Forget the function, which has no annotations, so that nothing keeps it in memory."""
        self._hints = {}
        self._function = _forgotten
        return self

    @property
    def first(self) -> str:
        """The name of the first parameter; empty if there is none."""
        return self._parameters[0].name if self._parameters else ""

    # The submitter's side: encode arguments, decode the result.

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the arguments of a call.

        Raises TypeError like the call itself if they do not fit the parameters, and PayloadError if JSON cannot represent one
        of them, or if a dict does not fit the model of its parameter.
        """
        if kwargs or not self._fewest <= len(args) <= self._most:
            payload = self._encode(args, kwargs)
        else:  # `_encode_json`, because this is called for each job
            try:
                payload = write(args)
            except ERRORS as error:
                raise json_refusal(args, self._what, self, error) from error
            if b":" not in payload and b"null" not in payload:
                return payload
            check(payload, args, self._what, self)
        if self._has_models is not False and payload.find(b"{", 1) > 0 and not self.raw:
            for one in (*args, *kwargs.values()):
                kind = type(one)
                if kind is dict or (kind is list and one and type(one[0]) is dict):  # it may stand for models
                    self._check_models(payload)
                    break
        return payload

    def encode_recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the arguments of a call for a history, the same in every process: members of sets and keys of dicts are sorted.

        Raises as ``encode``, but does not compare dicts with models: a replay must not depend on their newest version.
        """
        payload = self._encode(args, kwargs)  # refuses values before they become others that JSON has
        if self.raw or (not kwargs and _UNSORTED.issuperset(map(type, args))) or _has_bytes(args):
            return payload
        return self._encode(*sorted_arguments(args, kwargs))

    def encode_alike(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the arguments of a call, the same for all ways to write it: in any order of keywords, by position or by name.

        Raises as ``encode``.
        """
        self._check_call(args, kwargs)
        bound = self._bindable.bind(*args, **kwargs)
        payload = self.encode(bound.args, bound.kwargs)
        if self.raw or _has_bytes((*bound.args, *bound.kwargs.values())):
            return payload
        return self._encode(*sorted_arguments(bound.args, bound.kwargs))

    def _check_models(self, payload: bytes) -> None:
        """Raise PayloadError for a payload that does not fit the models which annotations name."""
        if self._has_models is None:
            try:
                hints = self._resolved()
            except PayloadError:
                return  # its module may still load; a worker does not start with such a function
            self._has_models = any(is_named_in(hints.get(one.name, Any)) for one in self._parameters)
        if self._has_models:
            self.decode(payload)

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        fits = (
            not args and self._required <= kwargs.keys() <= self._names
            if kwargs
            else self._positional_suffices and self._needed <= len(args) <= len(self._positional)
        )
        if not fits:
            self._check_call(args, kwargs)
        if self.raw:
            default = self._parameters[0].default
            return self._encode_raw(next(iter((*args, *kwargs.values())), b"" if default is _Kind.empty else default))
        if not kwargs:
            return self._encode_json(args) if args else b""
        if not args:
            return self._encode_json(kwargs)
        return self._encode_mixed(args, kwargs)

    def _check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.provided and (given := self.provided.keys() & kwargs.keys()):
            raise TypeError(
                f"{self.name}: workers provide {min(given)!r}, which is no argument of the job: leave it out"
            )
        try:
            self._bindable.bind(*args, **kwargs)
        except TypeError as error:
            # From here, and not from the innards of inspect: the last line of users in the traceback is the one at fault.
            raise TypeError(f"{self.name}: {error}") from None

    def bound(self, args: Iterable[Any], kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call by the names of their parameters. Raises TypeError if they do not fit."""
        return dict(self._bindable.bind(*args, **(kwargs if isinstance(kwargs, dict) else {})).arguments)

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of parameters by their names."""
        return {p.name: p.default for p in self._parameters if p.default is not p.empty}

    def _encode_raw(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise PayloadError(f"{self.name} takes bytes, not {type(value).__name__}")
        return bytes(value)

    def _encode_mixed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode the positional arguments by name; if one has no name, encode all arguments by position."""
        bound = self._bindable.bind(*args, **kwargs)
        if len(args) <= len(self._positional) and all(
            p.kind is _Kind.POSITIONAL_OR_KEYWORD for p in self._positional[: len(args)]
        ):
            named = {p.name: value for p, value in zip(self._positional, args, strict=False)}
            return self._encode_json(named | kwargs)
        if bound.kwargs:
            raise PayloadError(
                f"{self.name}: a payload holds positional or keyword arguments, not both; some of these arguments are "
                f"positional-only, and {', '.join(bound.kwargs)} keyword-only"
            )
        return self._encode_json(bound.args)

    def _encode_json(self, arguments: tuple[Any, ...] | dict[str, Any]) -> bytes:
        return encode_json(arguments, self._what, self)

    def name_of(self, place: int | str) -> str:
        """Return the name for errors of the argument at an index or under a keyword."""
        if isinstance(place, int):
            named = place < len(self._positional)
            place = self._positional[place].name if named else f"{self._rest}[{place - len(self._positional)}]"
        return f"{self.name}: parameter {place!r}"

    def decode_result(self, data: bytes) -> Any:
        """Decode a result by the return annotation.  Raises PayloadError."""
        if self._result is None:
            hints = self._resolved()
            self._result = result_decoder(hints.get("return", Any), f"{self.name}: its result")
        return self._result(data)

    # The worker's side: decode arguments, encode results.

    def encode_result(self, value: Any) -> bytes:
        """Encode a result.

        Raises PayloadError if JSON cannot represent it, or if it cannot be read as the declared type: a caller could not use it.
        """
        if type(value) in self._scalars:
            return encode_json(value, _RESULT)
        data = encode_result(value)
        checks = self._prepare_results() if self._checks_results is None else self._checks_results
        if checks and type(value) not in self._sure:
            self._check_result(value, data)
        return data

    def _prepare_results(self) -> bool:
        """Find out once how results are checked. Where nothing is declared, or None, they are not. Return whether they are."""
        try:
            kind = self._resolved().get("return", Any)
            self.decode_result(b"")  # builds the decoder
        except PayloadError:  # a worker does not start with such a function, unless it ignores results
            self._checks_results = False
            return False
        kinds = _alternatives(kind)
        sure = {one for one in kinds if one in _SURE or is_model(one)}
        if float in sure:
            sure.add(int)
        if is_raw(kind) and kind is not bytes:
            sure.discard(bytes)  # may be empty
        self._sure = frozenset(sure)
        self._scalars = self._sure & {int, str, bool, float}
        self._checks_results = kind not in _NOTHING and not any(one is Any or one is object for one in kinds)
        return self._checks_results

    def _check_result(self, value: Any, data: bytes) -> None:
        """Raise PayloadError for a result that does not have the declared type."""
        kind = self._resolved()["return"]
        remedy = "return a value of the declared type, or correct the annotation"
        is_bytes = isinstance(value, (bytes, bytearray, memoryview))
        if value is None or (is_raw(kind) and not is_bytes):
            if value is None and _takes_null(kind):
                return
            shown = "None" if value is None else f"of the type {type(value).__name__}"
            raise PayloadError(f"{self.name}: its result is {shown}, and not {type_name(kind)}: {remedy}")
        try:
            decoded = self.decode_result(data)
        except PayloadError as error:
            raise PayloadError(f"{error}: {remedy}") from error.__cause__
        if decoded is None and is_bytes:
            raise PayloadError(f"{self.name}: its result is empty bytes, {EMPTY}")

    def problem(self, *, results: bool = True, is_loading: bool = False) -> str:
        """Return why some of its arguments or results can never be read from JSON; empty if all can.

        Parameters with defaults may have any annotation. ``results``: whether somebody reads them. ``is_loading``: the function's
        module still loads, so that names which cannot be resolved are no problem yet.
        """
        try:
            return self._problem(results=results, is_loading=is_loading)
        except PayloadError as error:
            is_final = not is_loading or isinstance(error.__cause__, (TypeError, SyntaxError))
            return str(error) if is_final else ""
        finally:
            if is_loading and self._function is not _forgotten:
                self._hints = None  # a name may get another value

    def _problem(self, *, results: bool, is_loading: bool) -> str:
        hints = self._resolved()
        for one in self._parameters:
            optional = one.default is not one.empty or one.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD)
            if optional or self.raw:
                continue
            if problem := problem_of(hints.get(one.name, Any), is_loading=is_loading):
                return f"{self.name}: parameter {one.name!r}: {problem}"
        if not self.raw and not self._variadic:
            self._decoder(self._positional, array=True)
        kind = hints.get("return", Any)
        if results and kind not in _NOTHING and not is_raw(kind):
            problem = problem_of(kind, is_loading=is_loading)
            return f"{self.name}: its result: {problem}" if problem else ""
        return ""

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode a payload to positional and keyword arguments.

        Raises PayloadError, which names the parameter, if the payload does not fit the function.
        """
        if self.raw:
            parameter = self._parameters[0]
            return ((), {parameter.name: payload}) if parameter.kind is _Kind.KEYWORD_ONLY else ((payload,), {})
        if not payload and not self._needed and self._positional_suffices:
            return (), {}
        start = payload[:1] if payload[:1] not in _WHITESPACE else payload.lstrip(_WHITESPACE)[:1]
        if not start:
            start, payload = b"[", b"[]"
        if start not in (b"[", b"{"):
            try:
                msgspec.json.decode(payload)  # refuses 1,2, which the brackets would turn into [1,2]
            except _DECODE_ERRORS:
                raise PayloadError(
                    f"{self.name}: a payload is a JSON array (positional arguments), a JSON object (keyword arguments), another "
                    f"JSON value (a single argument) or empty (no arguments); this one begins with {payload[:20]!r}"
                ) from None
            start, payload = b"[", b"[%b]" % payload
        if self._variadic:
            given = self._read(payload, list if start == b"[" else dict)
            return self._convert(given, {}) if start == b"[" else self._convert([], given)
        return (self._decode_array(payload), {}) if start == b"[" else ((), self._decode_object(payload))

    def _decode_array(self, payload: bytes) -> tuple[Any, ...]:
        if self._array is None:
            self._array = self._decoder(self._positional, array=True)
        try:
            values = self._array(payload)
        except ModelError as error:
            raise self._model_misfit(error) from error.__cause__
        except _DECODE_ERRORS as error:
            self._bind((None,) * len(self._read(payload, list)), {})  # raises for a wrong length
            raise self._misfit(error) from None
        if values and values[-1] is UNSET:
            values = values[: values.index(UNSET)]
        if not self._positional_suffices:
            self._bind(values, {})
        return values

    def _decode_object(self, payload: bytes) -> dict[str, Any]:
        if self._object is None:
            named = [p for p in self._parameters if p.kind is not _Kind.POSITIONAL_ONLY]
            self._object = self._decoder(named, array=False)
        try:
            decoded = self._object(payload)
        except ModelError as error:
            raise self._model_misfit(error) from error.__cause__
        except _DECODE_ERRORS as error:
            self._bind((), self._read(payload, dict))
            raise self._misfit(error) from None
        values = {
            p.name: value
            for p, value in zip(
                (p for p in self._parameters if p.kind is not _Kind.POSITIONAL_ONLY),
                decoded,
                strict=True,
            )
            if value is not UNSET
        }
        if self._only_by_position:
            self._bind((), values)
        return values

    def _decoder(self, parameters: list[inspect.Parameter], *, array: bool) -> Callable[[bytes], tuple[Any, ...]]:
        """Build a decoder of a struct with a field for each parameter; omitted arguments are UNSET.

        It raises the errors of msgspec, and ModelError.
        """
        hints = self._resolved()
        fields: list[Any] = []
        finish: list[tuple[int, str, Callable[[bytes], Any]]] = []
        for number, parameter in enumerate(parameters):
            reader = reader_of(hints.get(parameter.name, Any))
            kind = reader.kind
            if reader.finish is not None:
                finish.append((number, parameter.name, reader.finish))
            field = f"p{number}"  # msgspec does not accept every parameter's name
            optional = parameter.default is not parameter.empty
            fields.append(
                (field, kind | msgspec.UnsetType if _can_be_unset(kind) else kind, UNSET) if optional else (field, kind)
            )
        try:
            struct = msgspec.defstruct(
                "Arguments",
                fields,
                array_like=array,
                forbid_unknown_fields=True,
                kw_only=not array,
                rename={f"p{number}": p.name for number, p in enumerate(parameters)},
            )
            decode = msgspec.json.Decoder(struct, dec_hook=read_hook).decode
            if array and not finish and all(parameter.default is parameter.empty for parameter in parameters):
                # A tuple is read faster than a struct.
                kinds = tuple(hints.get(parameter.name, Any) for parameter in parameters)
                return msgspec.json.Decoder(tuple[kinds], dec_hook=read_hook).decode  # type: ignore[valid-type]
            return _Arguments(decode, finish).read
        except Exception as error:  # a TypeError, or that of a name in a class that cannot be resolved
            raise PayloadError(f"{self.name}: a parameter's type cannot be read from JSON: {error}") from error

    def _convert(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert arguments one by one, for functions with ``*args`` or ``**kwargs``."""
        bound = self._bind(tuple(args), kwargs)
        hints = self._resolved()
        for parameter in self._parameters:
            if parameter.name not in bound.arguments:
                continue
            value, kind = bound.arguments[parameter.name], hints.get(parameter.name, Any)
            if parameter.kind is _Kind.VAR_POSITIONAL:
                kind = tuple[kind, ...]  # type: ignore[valid-type] # a type at run time
            elif parameter.kind is _Kind.VAR_KEYWORD:
                kind = dict[str, kind]  # type: ignore[valid-type]
            try:
                reader = reader_of(kind)
                if reader.finish is not None:
                    converted = reader.finish(msgspec.json.encode(value))
                else:
                    converted = msgspec.convert(value, kind, dec_hook=read_hook)
                bound.arguments[parameter.name] = converted
            except ModelError as error:
                error.parameter = parameter.name
                raise self._model_misfit(error) from error.__cause__
            except msgspec.ValidationError as error:
                raise PayloadError(f"{self.name}: parameter {parameter.name!r}: {error}") from None
        return bound.args, bound.kwargs

    def _read(self, payload: bytes, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(payload, type=kind)
        except _DECODE_ERRORS as error:
            raise PayloadError(f"{self.name}: the payload cannot be read as JSON: {error}") from None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self._bindable.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadError(f"{self.name}: {error}") from None

    def _misfit(self, error: Exception) -> PayloadError:
        """Return the error for an error of msgspec, with the parameter's name."""
        text = str(error)
        if (found := _ERROR_PATH.search(text)) is None or found.group(1) is found.group(2) is None:
            return PayloadError(f"{self.name}: {text}")
        index, key, inner = found.groups()
        parameter = self._positional[int(index)].name if index is not None else key
        where = f" at {inner}" if inner else ""
        return PayloadError(f"{self.name}: parameter {parameter!r}{where}: {text[: found.start()]}")

    def _model_misfit(self, error: ModelError) -> PayloadError:
        where = f" at {error.where}" if error.where else ""
        return PayloadError(f"{self.name}: parameter {error.parameter!r}{where}: {error.text}")

    def _resolved(self) -> dict[str, Any]:
        if self._hints is None:
            try:
                self._hints = hints_of(self._function, self._annotations())
            except Exception as error:
                raise PayloadError(
                    f"{self.name}: an annotation cannot be resolved ({error}); name types that the function's module "
                    "has when it is imported, and import them outside of `if TYPE_CHECKING:`"
                ) from error
        return self._hints

    def _annotations(self) -> dict[str, Any] | None:
        """Return the annotations that matter to jobs, as they are written: nothing reads those of provided parameters."""
        if not self.provided:
            return None  # all of them
        annotations = {one.name: one.annotation for one in self._parameters if one.annotation is not one.empty}
        result = self._bindable.return_annotation
        return annotations if result is inspect.Signature.empty else {**annotations, "return": result}


def _forgotten() -> None:
    """Stand for a function that a signature does not need."""


class _Arguments:
    """A decoder of arguments. ``finish`` has readers for those that msgspec leaves raw: index, parameter and function."""

    __slots__ = ("_decode", "_finish")

    def __init__(
        self, decode: Callable[[bytes], Any], finish: Sequence[tuple[int, str, Callable[[bytes], Any]]]
    ) -> None:
        self._decode = decode
        self._finish = finish

    def read(self, payload: bytes) -> tuple[Any, ...]:
        """Return the arguments, with UNSET for omitted ones.  Raises the errors of msgspec, and ModelError."""
        values: tuple[Any, ...] = msgspec.structs.astuple(self._decode(payload))
        if not self._finish:
            return values
        finished = list(values)
        for index, parameter, read in self._finish:
            if (raw := finished[index]) is not UNSET:
                try:
                    finished[index] = read(bytes(raw))
                except ModelError as error:
                    error.parameter = parameter
                    raise
        return tuple(finished)


_UNSORTED: Final = frozenset({int, str, bool, float, type(None)})
"""Types of values that sorting does not change."""


def _has_bytes(arguments: Iterable[Any]) -> bool:
    return any(isinstance(one, (bytes, bytearray, memoryview)) for one in arguments)


_NOTHING = (type(None), NoReturn, Never)
"""Declared types of results that nobody reads. Values in spite of it are kept."""
_SURE = frozenset({int, str, bool, float, bytes, list, dict, type(None)})
EMPTY: Final = "which callers could not tell from None: return None, or declare bytes alone"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def is_raw(kind: Any) -> bool:
    """Return whether results of a type are bytes, which are no JSON."""
    kinds = _alternatives(kind)
    return bytes in kinds and all(one in (bytes, type(None)) for one in kinds)


def type_name(kind: Any) -> str:
    """Return an annotation as code has it."""
    return str(kind).replace("typing.", "") if get_args(kind) else str(getattr(kind, "__name__", kind))


def _takes_null(kind: Any) -> bool:
    try:
        result_decoder(kind, "")(b"null")
    except PayloadError:
        return False
    return True


def _can_be_unset(kind: Any) -> bool:
    """Return whether msgspec accepts a union of this type and UNSET. Any includes UNSET already; Raw excludes all others."""
    return kind is not Any and kind is not msgspec.Raw


def result_decoder(kind: Any, what: str) -> Callable[[bytes], Any]:
    """Return a decoder of values: raw for bytes, None for empty, JSON otherwise.  It raises PayloadError; ``what`` names them."""
    if is_raw(kind):
        return (lambda data: data or None) if kind is not bytes else (lambda data: data)
    reader = Reader(Any) if kind in _NOTHING else reader_of(kind)
    try:
        decode = reader.finish or msgspec.json.Decoder(reader.kind, dec_hook=read_hook).decode
    except Exception as error:  # as in `Signature._decoder`
        raise PayloadError(f"{what} cannot be read from JSON: {error}") from error

    title = type_name(kind)

    def read(data: bytes) -> Any:
        if not data:
            return None
        try:
            return decode(data)
        except ModelError as error:
            raise PayloadError(f"{what} cannot be read as {title}: {error}") from error.__cause__
        except _DECODE_ERRORS as error:
            raise PayloadError(f"{what} cannot be read as {title}: {error}; it begins with {data[:20]!r}") from None

    return read

"""The work of a class in another system, as the worker uses it: its types, and its object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from mainspring.client.external import Done, Failed
from mainspring.client.json_types import encode_json
from mainspring.client.payload import Signature, result_decoder
from mainspring.client.providers import hints_of
from mainspring.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_META: Final = 65_536
"""Bytes of what ``submit`` returns, as JSON; the server has the same limit."""


class WorkSignature(Signature):
    """The signature of the work: the argument of ``submit``, and the result in ``Done`` of ``status``."""

    def __init__(self, kind: type, function: Callable[..., Any], name: str) -> None:
        super().__init__(function, name)
        self._kind = kind

    def _resolved(self) -> dict[str, Any]:
        if self._hints is None:
            submit, status = _hints(self._kind, "submit", self.name), _hints(self._kind, "status", self.name)
            hints = {self.first: submit.get(self.first, Any)}
            if "return" in status:
                hints["return"] = _result_of(status["return"])
            self._hints = hints
        return self._hints


def _hints(kind: type, method: str, name: str) -> dict[str, Any]:
    try:
        return hints_of(getattr(kind, method))
    except Exception as error:
        raise PayloadError(
            f"{name}: an annotation of {method} cannot be resolved ({error}); name types that the class's module has when it "
            "is imported"
        ) from error


def _without_failed(annotation: Any) -> Any:
    """Return the type of answers by the return annotation of ``submit``."""
    kinds = get_args(annotation)
    if Failed not in kinds:
        return annotation
    first, *others = (one for one in kinds if one is not Failed)
    for one in others:
        first = first | one
    return first


def _result_of(annotation: Any) -> Any:
    """Return the type of results by the return annotation of ``status``."""
    kinds = get_args(annotation) or (annotation,)
    if get_origin(annotation) is Done:
        kinds = (annotation,)
    results = [get_args(one)[0] for one in kinds if get_origin(one) is Done]
    if not results:
        return Any
    found = results[0]
    for one in results[1:]:
        found = found | one
    return found


class Elsewhere:
    """The class whose methods do the work of a function elsewhere.

    ``given`` is that class, and each process makes one object of it; or it is the object itself.
    """

    def __init__(self, given: Any, name: str, every: float, *, leaves: bool) -> None:
        self._given = given
        self._work: Any = None if isinstance(given, type) else given
        self.kind: type = given if isinstance(given, type) else type(given)
        self.name = name
        self.every = every
        """Seconds between two looks."""
        self.leaves = leaves
        """Whether the work goes on after a timeout."""
        self._decode: Callable[[bytes], Any] | None = None

    @property
    def work(self) -> Any:
        """The object whose methods are called. Raises what the class raises."""
        if self._work is None:
            self._work = self._given()
        return self._work

    def encode_meta(self, meta: Any) -> str:
        """Return what ``submit`` has returned as JSON. Raises PayloadError."""
        encoded = encode_json(meta, f"what {self.name}.submit returns")
        if len(encoded) > MAX_META:
            raise PayloadError(
                f"what {self.name}.submit returns has {len(encoded)} bytes; at most {MAX_META} are recorded: return an id"
            )
        return encoded.decode()

    def decode_meta(self, meta: bytes) -> Any:
        """Return what ``submit`` has returned, read from JSON. Raises PayloadError."""
        if self._decode is None:
            kind = _without_failed(_hints(self.kind, "submit", self.name).get("return", Any))
            self._decode = result_decoder(kind, f"what {self.name}.submit returns")
        return self._decode(meta)

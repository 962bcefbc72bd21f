"""Data of users in jobs: their tags, arguments and results, and what of them is kept and shown.

Rules for arguments give the size that is kept after a success, and the keys whose values nobody may see. Keys are redacted
wherever arguments leave the node, and before they are stored for a job that has succeeded. Any other job keeps its whole payload,
with which it runs or can be retried.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.codecs import described
from mainspring.errors import UsageError
from mainspring.namespaces import name_text, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.model import Job

MOST_TAGS: Final = 10
"""Tags of one job."""
TAG_LIMIT: Final = 100
"""Bytes of a tag."""


def check_tags(tags: Iterable[object], what: str = "tags") -> tuple[str, ...]:
    """Return tags sorted, each once. Raises UsageError for one that is invalid, and for too many."""
    found: set[str] = set()
    for tag in tags:
        if not isinstance(tag, str) or not tag.isprintable() or not 0 < len(tag.encode()) <= TAG_LIMIT:
            raise UsageError(f"{what}: {tag!r} is not a tag: give 1 to {TAG_LIMIT} bytes of printable text")
        found.add(tag)
    if len(found) > MOST_TAGS:
        raise UsageError(f"{what}: a job has at most {MOST_TAGS} tags, and {len(found)} were given")
    return tuple(sorted(found))


def indexed_tags(job: Job) -> tuple[str, ...]:
    """Return the tags by which lists find a job. A job whose row is deleted at its end has none."""
    options = job.options
    return () if options is None or options.forget else options.tags


KEPT_ARGUMENTS: Final = 1024
"""The default of the largest payload in bytes that is kept after a success."""
MAX_KEPT_ARGUMENTS: Final = 2**20
"""The largest such size. Each success is written together with what is kept of its arguments."""
REDACTED: Final = "[redacted]"
_REDACTED: Final = msgspec.json.encode(REDACTED)
MAX_RULED_FUNCTIONS: Final = 10_000
"""Functions whose rules are cached: clients can name any number."""


class Redacted(NamedTuple):
    """A payload without the values of redacted keys."""

    payload: bytes | None
    """None: it is no JSON, in which keys could be found."""
    changed: bool
    """Whether a value was replaced."""


class FunctionRules:
    """The rules for the arguments of one function. ``keys`` matches the names of redacted keys."""

    def __init__(self, kept: int, keys: re.Pattern[str] | None) -> None:
        self.limit = kept
        """Bytes of the largest payload that is kept after a success."""
        self.kept_whole = -1 if keys is not None else kept
        """Bytes of the largest payload that is kept without a look at its keys."""
        self._keys = keys

    def kept(self, payload: bytes) -> bytes | None:
        """Return what is kept of the payload of a job that has succeeded: None for all of it, nothing for nothing."""
        if len(payload) > self.limit:
            return b""
        if self._keys is None or not payload:
            return None
        redacted = self.redact(payload)
        return (redacted.payload or b"") if redacted.changed or redacted.payload is None else None

    def hides(self, key: str) -> bool:
        """Return whether nobody may see the values of a key."""
        return self._keys is not None and self._keys.fullmatch(key) is not None

    def redact(self, payload: bytes) -> Redacted:
        """Return a payload as others may see it."""
        keys = self._keys
        if keys is None or not payload:
            return Redacted(payload, changed=False)
        try:
            value = msgspec.json.decode(payload)
        except (ValueError, RecursionError):  # a MsgspecError, text that is not UTF-8, or too many levels
            return Redacted(None, changed=True)
        if not isinstance(value, (dict, list)):  # the only argument of a task
            return Redacted(_REDACTED, changed=True) if keys.fullmatch("0") else Redacted(payload, changed=False)
        changed = _redact(value, keys)
        return Redacted(msgspec.json.encode(value) if changed else payload, changed)


def _redact(value: Any, keys: re.Pattern[str]) -> bool:
    """Replace the values of matching keys, and of matching positions in an array at the top; return whether there were any."""
    changed = False
    stack = [value]
    while stack:
        part = stack.pop()
        at_top = part is value
        entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, inner in list(entries):
            if (isinstance(key, str) or at_top) and keys.fullmatch(str(key)):
                part[key] = REDACTED
                changed = True
            elif isinstance(inner, (dict, list)):
                stack.append(inner)
    return changed


def is_redacted(stored: bytes) -> bool:
    """Return whether values were replaced in the stored arguments of a job that has succeeded."""
    return _REDACTED in stored


class ArgumentRule(NamedTuple):
    """A rule for the functions that a pattern matches, in which ``*`` stands for any text."""

    functions: str
    value: int | str
    """Of a size: bytes. Of a redaction: a pattern of keys."""


class ArgumentRules(dict[bytes, FunctionRules]):
    """The rules of all functions, by function: made when they are looked up first.

    Of ``sizes``, the last that matches a function applies; without any, `KEPT`. Its workers may declare another size: at most
    that one, if there is any. Of ``redactions``, all that match it.
    """

    def __init__(self, sizes: Sequence[ArgumentRule] = (), redactions: Sequence[ArgumentRule] = ()) -> None:
        super().__init__()
        self._sizes = sizes
        self._redactions = redactions
        self._declared: dict[bytes, int] = {}
        self._notes_all = False
        self.kept_whole = self._kept_whole()
        """Bytes of the largest payload that is kept of any function without a look at its keys. Declarations change it."""

    def __missing__(self, function: bytes) -> FunctionRules:
        """Make the rules of a function."""
        if len(self) >= MAX_RULED_FUNCTIONS:
            self.clear()
        rules = self[function] = self._build(function)
        return rules

    def of(self, function: bytes) -> FunctionRules:
        """Return the rules of a function."""
        return self[function]

    def declare(self, function: bytes, kept: int | None) -> None:
        """Set the size that the workers of a function declare; None: they declare none."""
        if self._declared.get(function) == kept:
            return
        if kept is None:
            del self._declared[function]
        elif len(self._declared) < MAX_RULED_FUNCTIONS:
            self._declared[function] = kept
        self.pop(function, None)
        self.kept_whole = self._kept_whole()

    def notes_all(self, notes: bool) -> None:
        """Set whether each success is to be looked at, whatever its payload; see `ResultRetention`."""
        self._notes_all = notes
        self.kept_whole = self._kept_whole()

    def _kept_whole(self) -> int:
        if self._redactions or self._notes_all:
            return -1
        return min([KEPT_ARGUMENTS, *(int(rule.value) for rule in self._sizes), *self._declared.values()])

    def _build(self, function: bytes) -> FunctionRules:
        name = split(function)[1]
        # The last version showed the byte ff and the characters \xff alike: a rule from that time still matches both.
        texts = {name_text(name), name.decode("utf-8", "backslashreplace")}
        sizes = [int(rule.value) for rule in self._sizes if _matches(rule, texts)]
        declared = self._declared.get(function, sizes[-1] if sizes else KEPT_ARGUMENTS)
        kept = min(declared, sizes[-1]) if sizes else declared
        keys = [str(rule.value) for rule in self._redactions if _matches(rule, texts)]
        joined = "|".join(_pattern(key).pattern for key in keys)
        return FunctionRules(kept, re.compile(joined, re.DOTALL | re.IGNORECASE) if keys else None)


def _matches(rule: ArgumentRule, texts: Iterable[str]) -> bool:
    pattern = _pattern(rule.functions)
    return any(pattern.fullmatch(text) for text in texts)


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern with ``*`` as a regular expression."""
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def decoded_result(data: bytes) -> tuple[str, msgspec.Raw | str | None]:
    """Return a result's encoding, and the result in it: ``json`` (null where it is empty), ``text`` or ``base64``.

    Of a payload that a codec has encoded, ``encoded`` and a description: `mainspring.codecs`.
    """
    if not data:
        return "json", None
    if encoded := described(data):
        return "encoded", encoded
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    try:
        # Not decoded and encoded: that would round numbers.
        return "json", msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.DecodeError, RecursionError):  # RecursionError: nested too deeply, for readers as well
        return "text", whole

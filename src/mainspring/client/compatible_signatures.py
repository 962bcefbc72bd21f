"""Whether a function can take all calls of another one: the new version of a workflow, and an old one.

A client encodes the arguments of a call before the server chooses the version that gets them.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def misfit(old: Callable[..., Any], new: Callable[..., Any]) -> str:
    """Return why ``new`` cannot take all calls of ``old``; empty if it can. Types are not compared."""
    before = list(signature(old).parameters.values())
    after = list(signature(new).parameters.values())
    old_positional = [one for one in before if one.kind in _BY_POSITION]
    new_positional = [one for one in after if one.kind in _BY_POSITION]
    takes_rest = any(one.kind is Parameter.VAR_POSITIONAL for one in after)
    takes_names = any(one.kind is Parameter.VAR_KEYWORD for one in after)
    by_name = {one.name for one in after if one.kind in _BY_NAME}
    for place, one in enumerate(old_positional):
        if place >= len(new_positional) and not takes_rest:
            return f"it lacks the parameter {one.name!r}"
        if place < len(new_positional) and one.kind is Parameter.POSITIONAL_OR_KEYWORD:
            named = new_positional[place].name
            if named != one.name:
                return f"its parameter {place + 1} is named {named!r}, not {one.name!r}"
    for one in before:
        if one.kind in _BY_NAME and one.name not in by_name and not takes_names:
            return f"it lacks the parameter {one.name!r}, or takes it by position only"
        if one.kind is Parameter.VAR_POSITIONAL and not takes_rest:
            return f"it lacks *{one.name}"
        if one.kind is Parameter.VAR_KEYWORD and not takes_names:
            return f"it lacks **{one.name}"
    required = {one.name for one in before if _is_required(one)}
    for place, one in enumerate(after):
        is_old = one.name in required
        if one.kind is Parameter.POSITIONAL_ONLY:  # the old name may differ
            is_old = place < len(old_positional) and _is_required(old_positional[place])
        if _is_required(one) and not is_old:
            return f"its parameter {one.name!r} needs a default, because other versions can be called without it"
    return ""


def _is_required(one: Parameter) -> bool:
    return one.default is Parameter.empty and one.kind in {*_BY_POSITION, *_BY_NAME}

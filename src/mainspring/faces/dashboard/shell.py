"""The lines that pages show for a shell: they do the same as a button, whatever the names in them are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring import namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def command_line(
    verbs: Sequence[str], names: Sequence[str], options: Iterable[tuple[str, str | None]], namespace: str
) -> str:
    """Return a line for the program ``mainspring``, which takes no name and no value for an option.

    ``options`` have their values, or None for those without one.
    """
    words = []
    for option, value in [*options, *([("--namespace", namespace)] if namespace != namespaces.DEFAULT else [])]:
        if value is not None and value.startswith("-"):
            words.append(f"{option}={value}")
        else:
            words += [option] if value is None else [option, value]
    is_mistakable = any(name.startswith("-") for name in names)
    ordered = [*words, "--", *names] if is_mistakable else [*names, *words]
    return shlex.join(["mainspring", *verbs, *ordered])


def at_server(command: str, server: str) -> str:
    """Return a line with the option for a server, unless it names one; empty: the default one."""
    words = shlex.split(command)
    end = words.index("--") if "--" in words else len(words)
    if not server or "--server" in words[:end]:
        return command
    return shlex.join([*words[:end], "--server", server, *words[end:]])


def curl(method: str, address: str, body: Mapping[str, Any] | None = None, if_match: str = "") -> str:
    """Return the ``curl`` line of a call at an address."""
    words = ["curl", "-X", method, "-H", '"Authorization: Bearer $MAINSPRING_TOKEN"']
    if if_match:
        words += ["-H", shlex.quote(f"If-Match: {if_match}")]
    if body is not None:
        encoded = msgspec.json.encode(body).decode()
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(encoded)]
    return " ".join([*words, shlex.quote(address)])

"""``--help`` as a manual page: text in paragraphs, options with their meaning indented below them."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

PAGE_WIDTH = 79
_BEFORE_OPTION = re.compile(" (?=--[a-z])")
_ITEM_HEAD = re.compile(r" +(?:\S+(?: \S+)* {2,}|\d )?")
"""The indentation of an item's text: after a column of names, or after the number of an exit code."""
NAME_WIDTH = 22
"""The columns for a command's name, before its text."""


class ManualPage:
    """Formats help: a formatter of cyclopts."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:  # noqa: ARG002 - cyclopts sets the parameters
        """Print a group of options or commands."""
        if not panel.entries:
            return
        title = panel.title if isinstance(panel.title, str) else _plain(panel.title)
        _print(console, f"{title.upper()}\n")
        for entry in panel.entries:
            if panel.format == "parameter":
                _print(console, _option(entry))
            else:
                names = ", ".join((*entry.positive_names, *entry.positive_shorts))
                _print(console, _beside(names, _plain(entry.description)))
        _print(console, "\n")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ARG002
        """Print the usage line."""
        text = _plain(usage)
        if text:
            _print(console, f"{text if text.startswith('Usage:') else f'Usage: {text}'}\n\n")

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:  # noqa: ARG002
        """Print the text of the page."""
        text = _plain(description)
        if text:
            _print(console, f"{_flow(text)}\n\n")


def _print(console: Console, text: str) -> None:
    console.out(text, end="", highlight=False)


def _plain(renderable: Any) -> str:
    """Return the text of a renderable of cyclopts, unwrapped."""
    if renderable is None:
        return ""
    if hasattr(renderable, "plain"):
        return str(renderable.plain).strip()
    if isinstance(renderable, str):
        return renderable.strip()
    from rich.console import Console  # noqa: PLC0415 - for help only

    console = Console(width=1000, no_color=True, highlight=False, markup=False, emoji=False, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable, end="")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip()


def _flow(text: str) -> str:
    """Rewrap paragraphs, and break indented lines that are too long."""
    lines: list[str] = []
    paragraph: list[str] = []
    heading = ""
    for line in (*text.splitlines(), ""):
        if line and not line.startswith(" ") and not (paragraph == [] and line.isupper()):
            paragraph.append(line)
            continue
        if paragraph:
            lines += textwrap.wrap(" ".join(paragraph), PAGE_WIDTH)
            paragraph = []
        if line.startswith(" "):
            lines += _command(line) if heading == "EXAMPLES" else _item(line)
        else:
            heading = line
            lines.append(line)
    return "\n".join(lines).rstrip()


def _command(line: str) -> list[str]:
    """Break a command before its options, with backslashes, so that a shell can read it."""
    if len(line) <= PAGE_WIDTH:
        return [line]
    lines: list[str] = []
    for part in _BEFORE_OPTION.split(line):
        if lines and len(lines[-1]) + len(part) + len("  \\") <= PAGE_WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"      {part}" if lines else part)
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _item(line: str) -> list[str]:
    """Break an item of a list; its continuation lines align with its text."""
    match = _ITEM_HEAD.match(line)
    assert match is not None
    return textwrap.wrap(line, PAGE_WIDTH, subsequent_indent=" " * match.end())


def _option(entry: HelpEntry) -> str:
    """Format an option: its spelling, and below it its meaning."""
    head = ", ".join(entry.display_labels_with_metavar)
    facts = []
    if entry.choices:
        facts.append(" | ".join(entry.choices))
    if entry.default is not None:
        facts.append(f"default: {_plain(entry.default)}")
    if entry.env_var:
        facts.append(f"environment: {', '.join(entry.env_var)}")
    if entry.required:
        facts.append("required")
    meaning = _plain(entry.description) + (f" ({'; '.join(facts)})" if facts else "")
    body = textwrap.fill(meaning.strip(), PAGE_WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"  {head}\n{body}\n"


def _beside(head: str, text: str) -> str:
    lines = textwrap.wrap(text, PAGE_WIDTH - NAME_WIDTH) or [""]
    return "".join(f"{f'  {head}' if not i else '':<{NAME_WIDTH}}{line}\n" for i, line in enumerate(lines))

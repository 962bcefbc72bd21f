"""The help texts in docs/reference/cli.md: ``python -m tests.docs.cli_help`` writes them as the program prints them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from unittest import mock

from mainspring.cli.main import main as mainspring

from .pages import DOCS

PAGE = DOCS / "reference" / "cli.md"
BLOCK = re.compile(
    r'(?P<head>^```text help="(?P<command>[^"]*)"\n)(?P<text>.*?)(?P<tail>^```$)', re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"^  (?P<name>[a-z]+) {2,}", re.MULTILINE)


def help_text(command: str) -> str:
    """Return what ``mainspring COMMAND --help`` prints; said in this process, for starting one for each takes long."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, _environment(), clear=True), contextlib.redirect_stdout(printed):
        assert mainspring([*command.split(), "--help"]) == 0
    return _trimmed(printed.getvalue())


def help_text_of_a_process(command: str) -> str:
    """Return the same, said by a process of its own."""
    order = [sys.executable, "-m", "mainspring", *command.split(), "--help"]
    done = subprocess.run(order, capture_output=True, text=True, env=_environment(), check=True)
    return _trimmed(done.stdout)


def _environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return clean | {"COLUMNS": "80"}


def _trimmed(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE).strip("\n") + "\n"


def commands() -> list[str]:
    """Return all commands of the program, those of commands included; the program itself is the empty one."""
    found = [""]
    for command in found:
        section = help_text(command).partition("\nCOMMANDS\n")[2]
        found += [f"{command} {match['name']}".strip() for match in COMMAND.finditer(section)]
    return found


def written() -> dict[str, str]:
    """Return the help texts in the page by command."""
    return {match["command"]: match["text"] for match in BLOCK.finditer(PAGE.read_text("utf-8"))}


def main() -> None:
    """Write the texts anew."""
    text = BLOCK.sub(lambda m: m["head"] + help_text(m["command"]) + m["tail"], PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

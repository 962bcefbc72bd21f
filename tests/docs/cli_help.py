"""The help texts in docs/reference/cli.md: ``python -m tests.docs.cli_help`` writes them as the program prints them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from .pages import DOCS

PAGE = DOCS / "reference" / "cli.md"
BLOCK = re.compile(
    r'(?P<head>^```text help="(?P<command>[^"]*)"\n)(?P<text>.*?)(?P<tail>^```$)', re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"^  (?P<name>[a-z]+) {2,}", re.MULTILINE)


def help_text(command: str) -> str:
    """Return what ``mainspring COMMAND --help`` prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", *command.split(), "--help"],
        capture_output=True,
        text=True,
        env=clean | {"COLUMNS": "80"},
        check=True,
    )
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE).strip("\n") + "\n"


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

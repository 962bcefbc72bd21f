"""The help texts in docs/reference/cli.md: ``python -m tests.docs.cli_help`` writes them as the program prints them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys

from mainspring.cli.main import main as mainspring

from .pages import DOCS, ROOT

PAGE = DOCS / "reference" / "cli.md"
BLOCK = re.compile(
    r'(?P<head>^```text help="(?P<command>[^"]*)"\n)(?P<text>.*?)(?P<tail>^```$)', re.MULTILINE | re.DOTALL
)
COMMANDS = re.compile(r"^(?:COMMANDS|SERVERS AND WORKERS)\n", re.MULTILINE)
"""The heading above the first command."""
COMMAND = re.compile(r"^  (?P<name>[a-z]+) {2,}", re.MULTILINE)


def help_texts() -> dict[str, str]:
    """Return what ``mainspring COMMAND --help`` prints by command, those of commands included; the program is the empty one.

    One process prints them all: to start one for each takes long.
    """
    texts: dict[str, str] = json.loads(_printed("tests.docs.cli_help", "all"))
    return texts


def help_text(command: str) -> str:
    """Return one of them, printed by a process of its own."""
    return _trimmed(_printed("mainspring", *command.split(), "--help"))


def _printed(module: str, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean | {"COLUMNS": "80"},
        check=True,
    ).stdout


def _trimmed(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE).strip("\n") + "\n"


def _gathered() -> dict[str, str]:
    """Return the texts, each of them printed here; in a new process, and once: the commands remember what was asked of them."""
    texts: dict[str, str] = {}
    for command in (names := [""]):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert mainspring([*command.split(), "--help"]) == 0
        texts[command] = _trimmed(printed.getvalue())
        if heading := COMMANDS.search(texts[command]):
            found = COMMAND.finditer(texts[command], heading.end())
            names += [f"{command} {match['name']}".strip() for match in found]
    return texts


def written() -> dict[str, str]:
    """Return the help texts in the page by command."""
    return {match["command"]: match["text"] for match in BLOCK.finditer(PAGE.read_text("utf-8"))}


def main() -> None:
    """Write the texts anew."""
    texts = help_texts()
    text = BLOCK.sub(lambda m: m["head"] + texts[m["command"]] + m["tail"], PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["all"]:
        sys.stdout.write(json.dumps(_gathered()))
    else:
        main()

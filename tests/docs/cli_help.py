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
HELP_BLOCK = re.compile(
    r'(?P<head>^```text help="(?P<command>[^"]*)"\n)(?P<text>.*?)(?P<tail>^```$)', re.MULTILINE | re.DOTALL
)
COMMAND_HEADING = re.compile(r"^(?:COMMANDS|SERVERS AND WORKERS)\n", re.MULTILINE)
"""The heading above the first command."""
COMMAND_LINE = re.compile(r"^  (?P<name>[a-z][a-z-]*) {2,}", re.MULTILINE)


def help_texts() -> dict[str, str]:
    """Return the output of ``mainspring COMMAND --help`` for each command and subcommand; the key "" is the program itself.

    One process prints all of them, because a start per command would take long.
    """
    texts: dict[str, str] = json.loads(_run_python("tests.docs.cli_help", "all"))
    return texts


def help_text(command: str) -> str:
    """Return the help text of one command, printed by a separate process."""
    return _trim(_run_python("mainspring", *command.split(), "--help"))


def _run_python(module: str, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean | {"COLUMNS": "80"},
        check=True,
    ).stdout


def _trim(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE).strip("\n") + "\n"


def _print_all() -> dict[str, str]:
    """Return all texts, printed here. Call it once, in a new process: the commands keep state of their arguments."""
    texts: dict[str, str] = {}
    for command in (names := [""]):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert mainspring([*command.split(), "--help"]) == 0
        texts[command] = _trim(printed.getvalue())
        if heading := COMMAND_HEADING.search(texts[command]):
            found = COMMAND_LINE.finditer(texts[command], heading.end())
            names += [f"{command} {match['name']}".strip() for match in found]
    return texts


def documented() -> dict[str, str]:
    """Return the help texts in the page by command."""
    return {match["command"]: match["text"] for match in HELP_BLOCK.finditer(PAGE.read_text("utf-8"))}


def main() -> None:
    """Write the current texts to the page."""
    texts = help_texts()
    text = HELP_BLOCK.sub(lambda m: m["head"] + texts[m["command"]] + m["tail"], PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["all"]:
        sys.stdout.write(json.dumps(_print_all()))
    else:
        main()

"""The ``mainspring`` command: options in, exit code out."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from cyclopts import App, Group
from cyclopts.exceptions import CycloptsError

from mainspring.cli.defaults import Defaults, load_defaults
from mainspring.cli.failures import (
    DONE,
    EXPECTED,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    USAGE,
    complain,
    exit_code,
    explain,
)
from mainspring.cli.gearmand_options import BY_NAME, GearmandUsageError
from mainspring.cli.manual import ManualPage
from mainspring.errors import UsageError
from mainspring.version import version

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """Keeps the work of a fleet: durable background jobs behind the Gearman protocol.

Options of run, serve and worker, and everywhere those that name a server, a store or files for TLS, can also be given in
the environment, as MAINSPRING_ and their names; all options in mainspring.toml in the working directory. The command line
counts most, then the environment, then the file. Durations are written 250ms, 30s, 5m, 1h30m or 3d; sizes 512K, 64M or 1G.

EXIT CODES
  0 done               3 no server
  1 the job failed     4 not found
  2 wrong usage        5 timed out"""


RUNNING = Group("Servers and workers", sort_key=1)
JOBS = Group("Jobs", sort_key=2)
UPKEEP = Group("Nodes and stores", sort_key=3)
REST = Group("Options", sort_key=4)

COMMANDS = {
    "run": ("run:run", RUNNING, "Run a node and workers of the tasks in a file, in one command."),
    "serve": ("serve:serve", RUNNING, "Run a server."),
    "worker": ("worker:worker", RUNNING, "Run workers of the tasks in a file."),
    "submit": ("submit:submit", JOBS, "Submit a job and wait for its result."),
    "jobs": ("jobs:jobs", JOBS, "Look at jobs, cancel them, try them again."),
    "schedules": ("schedules:schedules", JOBS, "Look at schedules, make, change and run them."),
    "functions": ("functions:functions", JOBS, "Look at functions, limit them, pause them."),
    "status": ("status:status", UPKEEP, "Show what a server is and does."),
    "nodes": ("nodes:nodes", UPKEEP, "Look at the nodes that share a store, drain them, remove dead ones."),
    "migrate": ("migrate:migrate", UPKEEP, "Bring a store's schema up to date."),
    "backup": ("backup:backup", UPKEEP, "Copy a SQLite store, also while a node uses it."),
    "import": ("gearmand_queue:import_queue", UPKEEP, "Take over the jobs of a gearmand SQLite queue."),
}
"""Where each command is, so that only the one that runs is loaded, where the help lists it, and what it is for."""

USAGES = {
    "run": "mainspring run FILE.py[:NAME] [OPTIONS]",
    "worker": "mainspring worker FILE.py[:NAME] [OPTIONS]",
    "submit": "mainspring submit FUNCTION [PAYLOAD | -] [OPTIONS]",
}

OPTION = re.compile("--[A-Za-z]")

PARTS = {
    "jobs": ("list", "show", "cancel", "retry", "watch", "result"),
    "schedules": ("list", "show", "add", "edit", "pause", "resume", "trigger", "remove", "next", "history"),
    "nodes": ("list", "show", "drain", "remove"),
    "functions": ("list", "show", "limit", "pause", "resume"),
}
"""The commands of commands."""


def build_app(defaults: Defaults | None = None, *, listing: bool = False) -> App:
    """Return the parser of all commands; ``listing``: to show what there is, without loading the commands."""
    app = App(
        name="mainspring",
        help=DESCRIPTION,
        help_format="plaintext",
        help_formatter=ManualPage(),
        version=version,
        config=[] if defaults is None else [defaults],
    )
    for order, (name, (target, group, purpose)) in enumerate(COMMANDS.items()):
        # A purpose given here would hide the command's own, longer text on its own page.
        more = {"help": purpose} if listing else {"usage": USAGES[name]} if name in USAGES else {}
        app.command(f"mainspring.cli.{target}", name=name, group=group, sort_key=order, **more)
    # Its options are not of our kind: it is taken out of the arguments before they come here.
    app.command(
        App(
            name="gearmand",
            help="Run a server with gearmand's options, in its place.",
            group=RUNNING,
            sort_key=len(COMMANDS),
        )
    )
    for flag in ("--help", "--version"):
        app[flag].group = REST
    return app


def option_names(app: App) -> dict[str, frozenset[str]]:
    """Return the long options of each command, without dashes; those of the commands of one command together."""
    names: dict[str, frozenset[str]] = {"gearmand": frozenset(BY_NAME)}
    for command in COMMANDS:
        parts = [app[command][part] for part in PARTS[command]] if command in PARTS else [app[command]]
        arguments = (argument for part in parts for argument in part.assemble_argument_collection())
        long = {name[2:] for argument in arguments for name in argument.names if name.startswith("--")}
        names[command] = frozenset(long)
    return names


def run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code.  Raises what `mainspring.cli.failures` explains."""
    for name in [name for name, value in os.environ.items() if name.startswith("MAINSPRING_") and not value]:
        del os.environ[name]  # set but empty, as unit files have it, means not set
    defaults = load_defaults()
    app = build_app(defaults, listing=not arguments or arguments[0] not in COMMANDS)
    if defaults.found:
        defaults.check(option_names(app))
    if arguments[:1] == ["gearmand"]:
        from mainspring.cli.gearmand import gearmand  # noqa: PLC0415 - loads asyncio, which most commands do without

        return gearmand(arguments[1:], defaults.of_gearmand())
    if arguments[:1] == ["help"]:
        return run([*arguments[1:], "--help"])
    if arguments[:1] == ["submit"]:
        _check_options(app["submit"], arguments[1:])
    code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    return code if isinstance(code, int) else DONE


def _check_options(command: App, arguments: Sequence[str]) -> None:
    """Raise UsageError for a misspelt option where any text may be a payload: the job would run at once, with that text."""
    known = {"--help", "--version"}
    known.update(name for argument in command.assemble_argument_collection() for name in argument.names)
    for word in arguments:
        if word == "--":
            return  # what comes behind is meant
        name = word.partition("=")[0]
        if OPTION.match(name) and name not in known:
            raise UsageError(
                f"there is no option {name} (mainspring submit --help lists them); a payload that begins so comes behind --,"
                " or on standard input, with - in its place"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and explain what went wrong in one line; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return run(arguments)
    except CycloptsError as error:
        text = _one_line(error)
        complain(f"{text}{'' if text.endswith('?') else ';'} see: mainspring {_command(arguments)}--help")
        return USAGE
    except GearmandUsageError as error:
        complain(f"gearmand: {_one_line(error)}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; nothing must be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except EXPECTED as error:
        complain(explain(error))
        return exit_code(error)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith("...") else text.removesuffix(".")


def _command(arguments: Sequence[str]) -> str:
    """Return the command that was meant, to be followed by an option."""
    known = [word for word in arguments[:1] if word in COMMANDS]
    if known:
        known += [word for word in arguments[1:2] if word in PARTS.get(known[0], ())]
    return "".join(f"{word} " for word in known)


if __name__ == "__main__":
    sys.exit(main())

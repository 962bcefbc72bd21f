"""The ``mainspring`` command: parses the arguments, runs a command and returns its exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cyclopts import App, Group
from cyclopts.exceptions import CycloptsError

from mainspring.cli.defaults import Defaults, load_defaults
from mainspring.cli.failures import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    EXIT_USAGE,
    EXPECTED_ERRORS,
    exit_code,
    explain,
    print_error,
)
from mainspring.cli.gearmand_options import BY_NAME, GearmandUsageError
from mainspring.cli.inherited import correct_inheritance
from mainspring.cli.manual import ManualPage
from mainspring.errors import UsageError
from mainspring.version import version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DESCRIPTION = """Run durable background jobs and schedules: a server, workers for Python tasks, and commands to inspect and
control them.

All options can be set in mainspring.toml in the working directory. The options of run, serve and worker, and in all commands
those that name a server, a namespace, the limit of a request, a store or TLS files, can also be set in the environment, as
MAINSPRING_ and the option's name: --log-level is MAINSPRING_LOG_LEVEL. The command line overrides the environment, and the
environment overrides the file.

Write durations as 250ms, 30s, 5m, 1h30m or 3d, and sizes as 512K, 64M or 1G.

EXIT CODES
  0 done               3 no server
  1 the job failed     4 not found
  2 wrong usage        5 timed out"""


RUNNING_GROUP = Group("Servers and workers", sort_key=1)
JOBS_GROUP = Group("Jobs", sort_key=2)
STORES_GROUP = Group("Nodes and stores", sort_key=3)
ACCESS_GROUP = Group("Access", sort_key=4)
OPTIONS_GROUP = Group("Options", sort_key=5)

COMMANDS = {
    "run": ("run:run", RUNNING_GROUP, "Run a server together with workers for the tasks in a file."),
    "serve": ("serve:serve", RUNNING_GROUP, "Run a server."),
    "worker": ("worker:worker", RUNNING_GROUP, "Run workers for the tasks in a file."),
    "submit": ("submit:submit", JOBS_GROUP, "Submit a job and wait for its result."),
    "jobs": ("jobs:jobs", JOBS_GROUP, "List, show, watch, cancel, retry and delete jobs."),
    "operations": ("operations:operations", JOBS_GROUP, "List, show and abort operations on many jobs."),
    "schedules": ("schedules:schedules", JOBS_GROUP, "List, add, change, pause and trigger schedules."),
    "workflows": ("workflows:workflows", JOBS_GROUP, "Start, list, show, signal, cancel and end runs of workflows."),
    "functions": ("functions:functions", JOBS_GROUP, "List, limit, pause and resume functions."),
    "status": ("status:status", STORES_GROUP, "Show a server's store, connections and jobs."),
    "nodes": ("nodes:nodes", STORES_GROUP, "List and drain the nodes that share a store, and remove dead ones."),
    "workers": ("workers:workers", STORES_GROUP, "List, drain and stop connected workers."),
    "migrate": ("migrate:migrate", STORES_GROUP, "Update the schema of a store."),
    "backup": ("backup:backup", STORES_GROUP, "Copy a SQLite store, even while a node uses it."),
    "import": ("gearmand_queue:import_queue", STORES_GROUP, "Submit the jobs of a gearmand SQLite queue."),
    "tokens": ("tokens:tokens", ACCESS_GROUP, "Create, list, revoke and rotate tokens."),
    "audit": ("audit:audit", ACCESS_GROUP, "List who did what, when and why."),
    "marks": ("audit:marks", ACCESS_GROUP, "Add and list marks, such as deployments."),
    "whoami": ("audit:whoami", ACCESS_GROUP, "Show who you are for a server, and what you may do."),
}
"""For each command: its module and function, which are loaded only when it runs, its group in the help, and its purpose."""

USAGES = {
    "run": "mainspring run FILE.py[:NAME] [OPTIONS]",
    "worker": "mainspring worker FILE.py[:NAME] [OPTIONS]",
    "submit": "mainspring submit FUNCTION [ARGS | -] [OPTIONS]",
}

OPTION_NAME = re.compile("--[A-Za-z]")

SUBCOMMANDS = {
    "tokens": ("create", "list", "show", "revoke", "rotate"),
    "audit": ("list",),
    "marks": ("list", "add"),
    "jobs": ("list", "show", "cancel", "retry", "delete", "watch", "result"),
    "operations": ("list", "show", "jobs", "abort"),
    "schedules": (
        "list",
        "show",
        "add",
        "edit",
        "pause",
        "resume",
        "trigger",
        "backfill",
        "remove",
        "next",
        "history",
        "preview",
        "fires",
        "timeline",
    ),
    "workflows": (
        "start",
        "list",
        "show",
        "history",
        "signal",
        "cancel",
        "terminate",
        "move",
        "unpark",
        "versions",
        "workers",
    ),
    "nodes": ("list", "show", "drain", "remove"),
    "functions": ("list", "show", "limit", "pause", "resume", "acknowledge", "series", "errors"),
    "workers": ("list", "show", "drain", "stop"),
}
"""The subcommands of each command that has some."""


def build_app(defaults: Defaults | None = None, *, listing: bool = False) -> App:
    """Return the parser of all commands. ``listing``: it only lists the commands and does not load them."""
    app = App(
        name="mainspring",
        help=DESCRIPTION,
        help_format="plaintext",
        help_formatter=ManualPage(),
        version=version,
        config=[] if defaults is None else [defaults],
    )
    for order, (name, (target, group, purpose)) in enumerate(COMMANDS.items()):
        # A purpose given here would replace the longer text on the command's own help page.
        more = {"help": purpose} if listing else {"usage": USAGES[name]} if name in USAGES else {}
        app.command(f"mainspring.cli.{target}", name=name, group=group, sort_key=order, **more)
    # Listed only: `run` parses the command itself, because gearmand's options have another syntax.
    app.command(
        App(
            name="gearmand",
            help="Run a server with gearmand's options, as a replacement for it.",
            group=RUNNING_GROUP,
            sort_key=len(COMMANDS),
        )
    )
    for flag in ("--help", "--version"):
        app[flag].group = OPTIONS_GROUP
    return app


class OptionNames(Mapping[str, frozenset[str]]):
    """The long options of each command without dashes; a command's subcommands count as one.

    Looking up a command loads it. ``serve`` and ``status`` come first: they load little, and together they have the options
    that a file usually sets for all commands.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def __getitem__(self, command: str) -> frozenset[str]:
        if command == "gearmand":
            return frozenset(BY_NAME)
        if command not in COMMANDS:
            raise KeyError(command)
        app = self._app[command]
        subcommands = [app[name] for name in SUBCOMMANDS[command]] if command in SUBCOMMANDS else [app]
        arguments = (argument for one in subcommands for argument in one.assemble_argument_collection())
        return frozenset(name[2:] for argument in arguments for name in argument.names if name.startswith("--"))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(("serve", "status", *COMMANDS, "gearmand")))

    def __len__(self) -> int:
        return len(COMMANDS) + 1


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Raises the errors that `mainspring.cli.failures` explains."""
    for name in [name for name, value in os.environ.items() if name.startswith("MAINSPRING_") and not value]:
        del os.environ[name]  # an empty variable counts as not set: unit files contain such variables
    defaults = load_defaults()
    app = build_app(defaults, listing=not arguments or arguments[0] not in COMMANDS)
    if defaults.found:
        defaults.check(OptionNames(app))
    if arguments[:1] == ["gearmand"]:
        from mainspring.cli.gearmand import gearmand  # noqa: PLC0415 - loads asyncio, which most commands do not need

        return gearmand(arguments[1:], defaults.of_gearmand())
    if arguments[:1] == ["help"]:
        return run([*arguments[1:], "--help"])
    if arguments[:1] == ["submit"]:
        _check_options(app["submit"], arguments[1:])
    code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    return code if isinstance(code, int) else EXIT_DONE


def _check_options(command: App, arguments: Sequence[str]) -> None:
    """Raise UsageError for a misspelt option, which would otherwise be submitted as a job's payload."""
    options = {"--help", "--version"}
    options.update(name for argument in command.assemble_argument_collection() for name in argument.names)
    for word in arguments:
        if word == "--":
            return  # the words after it are payloads, even with dashes
        name = word.partition("=")[0]
        if OPTION_NAME.match(name) and name not in options:
            raise UsageError(
                f"there is no option {name} (mainspring submit --help lists them); write a payload that begins with dashes"
                " after --, or pass it on standard input and write - as the payload"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, print one line for an expected error, and return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        if (refusal := correct_inheritance(arguments)) is not None:
            print_error(refusal)
            return EXIT_FAILED
    try:
        return run(arguments)
    except CycloptsError as error:
        text = _one_line(error)
        print_error(f"{text}{'' if text.endswith('?') else ';'} see: mainspring {_command(arguments)}--help")
        return EXIT_USAGE
    except GearmandUsageError as error:
        print_error(f"gearmand: {_one_line(error)}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. The interpreter must not write to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except EXPECTED_ERRORS as error:
        print_error(explain(error))
        return exit_code(error)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith("...") else text.removesuffix(".")


def _command(arguments: Sequence[str]) -> str:
    """Return the command and subcommand in the arguments, each with a space behind it; empty if there is none."""
    words = [word for word in arguments[:1] if word in COMMANDS]
    if words:
        words += [word for word in arguments[1:2] if word in SUBCOMMANDS.get(words[0], ())]
    return "".join(f"{word} " for word in words)


if __name__ == "__main__":
    sys.exit(main())

"""The ``mainspring`` command: parses the arguments, prints help, runs a command and returns its exit code.

Init scripts, agents and SSH daemons close standard input or output, or ignore signals. A command corrects that before it does
anything else, and the programs that its tasks start inherit the corrected state.

``--help`` is a manual page: text in paragraphs, options with their meaning indented below them.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mainspring.cli.defaults import Defaults, load_defaults
from mainspring.cli.display import (
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
from mainspring.errors import UsageError
from mainspring.version import version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cyclopts import App
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

SERVERS: Final = frozenset({"run", "serve", "worker", "gearmand"})
"""Commands whose output is a log."""


def correct_inheritance(arguments: Sequence[str]) -> str | None:
    """Give this process usual files and signals; return an error if the command has no place for its output.

    If Python has removed the texts of the help, this function starts the command again, and does not return.
    """
    closed = _open_standard_descriptors()
    # An ignored SIGCHLD makes the kernel drop exit codes: a failed program would count as successful. Background processes of
    # shells ignore SIGINT, and those of nohup SIGHUP: commands that need these signals set handlers.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of functions may have characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if sys.flags.optimize > 1 and (
        not arguments or arguments[0] == "help" or not {"-h", "--help"}.isdisjoint(arguments)
    ):
        _without_optimization(arguments)
    if 1 in closed and not (arguments and arguments[0] in SERVERS):
        return "standard output is closed, so the command cannot print: open it, for example with >/dev/null or >FILE"
    return None


def _open_standard_descriptors() -> set[int]:
    """Open the null device for each of the descriptors 0 to 2 that is closed, and return these.

    Otherwise the next opened files would get these numbers: libuv aborts for its own ones, and errors would go to a store's file.
    """
    closed = set()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                continue
            closed.add(descriptor)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:  # another thread was faster
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if 0 in closed:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    if 1 in closed:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open until the process ends
    if 2 in closed:
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115 - open until the process ends
    return closed


def _without_optimization(arguments: Sequence[str]) -> None:
    """Start the command again without PYTHONOPTIMIZE: the help consists of docstrings, which level 2 removes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "mainspring", *arguments], environment)  # noqa: S606 - this interpreter


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
            lines += _broken_command(line) if heading == "EXAMPLES" else _item(line)
        else:
            heading = line
            lines.append(line)
    return "\n".join(lines).rstrip()


def _broken_command(line: str) -> list[str]:
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


RUNNING_GROUP = "Servers and workers"
JOBS_GROUP = "Jobs"
STORES_GROUP = "Nodes and stores"
ACCESS_GROUP = "Access"

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
    "completions": ("completions:completions", JOBS_GROUP, "Complete jobs that await another system's answer."),
    "resources": ("resources:resources", JOBS_GROUP, "List, set, drain, hold and free shared resources."),
    "events": ("events:events", JOBS_GROUP, "List and follow what happens to jobs, runs and schedules."),
    "listeners": ("listeners:listeners", JOBS_GROUP, "List, pause, resume and remove listeners."),
    "webhooks": ("webhooks:webhooks", JOBS_GROUP, "Add, list, change, pause, test and remove webhooks."),
    "status": ("nodes:status", STORES_GROUP, "Show a server's store, connections and jobs."),
    "nodes": ("nodes:nodes", STORES_GROUP, "List and drain the nodes that share a store, and remove dead ones."),
    "workers": ("nodes:workers", STORES_GROUP, "List, drain and stop connected workers."),
    "migrate": ("stores:migrate", STORES_GROUP, "Update the schema of a store."),
    "backup": ("stores:backup", STORES_GROUP, "Copy a SQLite store, even while a node uses it."),
    "move-runs": ("stores:move_runs", STORES_GROUP, "Move open runs of workflows from SQLite to PostgreSQL."),
    "import": ("stores:import_queue", STORES_GROUP, "Submit the jobs of a gearmand SQLite queue."),
    "tokens": ("access:tokens", ACCESS_GROUP, "Create, list, revoke and rotate tokens."),
    "audit": ("access:audit", ACCESS_GROUP, "List who did what, when and why."),
    "marks": ("access:marks", ACCESS_GROUP, "Add and list marks, such as deployments."),
    "whoami": ("access:whoami", ACCESS_GROUP, "Show who you are for a server, and what you may do."),
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
    "events": ("list", "follow", "types"),
    "nodes": ("list", "show", "drain", "remove"),
    "listeners": ("list", "show", "pause", "resume", "remove"),
    "webhooks": (
        *("list", "show", "add", "edit", "pause", "resume", "test", "redeliver", "deliveries", "rotate", "remove"),
    ),
    "functions": ("list", "show", "limit", "pause", "resume", "acknowledge", "series", "errors"),
    "completions": ("complete", "fail", "progress", "heartbeat", "finish"),
    "resources": ("list", "show", "set", "drain", "hold", "free"),
    "workers": ("list", "show", "drain", "stop"),
}
"""The subcommands of each command that has some."""


LISTING: Final[tuple[list[str], ...]] = ([], ["--help"], ["-h"], ["help"])
"""Arguments that list the commands."""
GEARMAND = "Run a server with gearmand's options, as a replacement for it."


def listing() -> str:
    """Return the page that lists the commands. It needs no cyclopts, which takes longer to load than everything else here."""
    groups: dict[str, list[str]] = {}
    for name, (_, group, purpose) in COMMANDS.items():
        groups.setdefault(group, []).append(_beside(name, purpose))
    groups[RUNNING_GROUP].append(_beside("gearmand", GEARMAND))
    groups["Options"] = [
        _beside("--help, -h", "Display this message and exit."),
        _beside("--version", "Display application version."),
    ]
    panels = (f"{group.upper()}\n{''.join(lines)}\n" for group, lines in groups.items())
    return f"Usage: mainspring COMMAND\n\n{_flow(DESCRIPTION)}\n\n{''.join(panels)}"


def build_app(defaults: Defaults | None = None) -> App:
    """Return the parser of all commands."""
    from cyclopts import App  # noqa: PLC0415 - slow to load

    app = App(
        name="mainspring",
        help=DESCRIPTION,
        help_format="plaintext",
        help_formatter=ManualPage(),
        version=version,
        config=[] if defaults is None else [defaults],
    )
    for name, (target, _, _) in COMMANDS.items():
        app.command(f"mainspring.cli.{target}", name=name, **({"usage": USAGES[name]} if name in USAGES else {}))
    # Its name only: `run` parses the command itself, because gearmand's options have another syntax.
    app.command(App(name="gearmand", help=GEARMAND))
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
    """Run a command and return its exit code. Raises the errors that `mainspring.cli.display` explains."""
    for name in [name for name, value in os.environ.items() if name.startswith("MAINSPRING_") and not value]:
        del os.environ[name]  # an empty variable counts as not set: unit files contain such variables
    defaults = load_defaults()
    if list(arguments) in LISTING:
        if defaults.found:
            defaults.check(OptionNames(build_app(defaults)))
        sys.stdout.write(listing())
        return EXIT_DONE
    from cyclopts.exceptions import CycloptsError  # noqa: PLC0415 - slow to load

    try:
        return _parse_and_run(arguments, defaults)
    except CycloptsError as error:
        text = _one_line(error)
        print_error(f"{text}{'' if text.endswith('?') else ';'} see: mainspring {_command(arguments)}--help")
        return EXIT_USAGE


def _parse_and_run(arguments: Sequence[str], defaults: Defaults) -> int:
    app = build_app(defaults)
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

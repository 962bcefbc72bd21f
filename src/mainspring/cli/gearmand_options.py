"""gearmand's options: one table for the parser, the help and the documentation.

The parser accepts the syntax of gearmand 1.1.20: ``--name=value``, ``--name value``, ``-nvalue``, ``-n value``, combined flags
(``-dR``). Unlike gearmand it also accepts empty values (``--verbose=``), which select the default.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mainspring.cli.display import did_you_mean
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Support = Literal["applied", "noted", "elsewhere"]
"""``noted``: accepted without effect, with a note. ``elsewhere``: belongs to a queue that Mainspring refuses."""


class GearmandUsageError(UsageError):
    """The options are wrong; gearmand's exit code for that is 1."""


@dataclass(frozen=True, slots=True)
class GearmandOption:
    """One option."""

    name: str
    """Without dashes."""

    short: str | None
    argument: str | None
    """The name of the argument; None: the option is a flag."""

    group: str
    meaning: str
    support: Support = "applied"
    reason: str = ""
    """The reason in the note for a noted option."""


def _foreign(group: str, *names: str) -> tuple[GearmandOption, ...]:
    return tuple(
        GearmandOption(name, None, "ARG", group, "For a gearmand queue that Mainspring does not have.", "elsewhere")
        for name in names
    )


_GENERAL = "General"
GEARMAND_OPTIONS: tuple[GearmandOption, ...] = (
    GearmandOption("backlog", "b", "N", _GENERAL, "How many connections may wait to be accepted."),
    GearmandOption("check-args", None, None, _GENERAL, "Check the options and exit."),
    GearmandOption(
        "config-file",
        None,
        "FILE",
        _GENERAL,
        "Read options from FILE: as on the command line, or lines NAME=VALUE; default /etc/gearmand.conf.",
    ),
    GearmandOption("coredump", None, None, _GENERAL, "Let the system write a core file after a crash."),
    GearmandOption(
        "daemon", "d", None, _GENERAL, "Run in the background. The command returns when the ports are open."
    ),
    GearmandOption("exceptions", None, None, _GENERAL, "Send exceptions also to clients that did not ask for them."),
    GearmandOption("file-descriptors", "f", "N", _GENERAL, "The limit of open files, and so of connections."),
    GearmandOption(
        "hashtable-buckets",
        None,
        "N",
        _GENERAL,
        "Accepted without effect.",
        "noted",
        "look-ups are constant time at any number of jobs",
    ),
    GearmandOption("help", "h", None, _GENERAL, "Print this help and exit."),
    GearmandOption(
        "job-handle-prefix", None, "H:NAME", _GENERAL, "The prefix of job handles; NAME is the node's name."
    ),
    GearmandOption(
        "job-retries",
        "j",
        "N",
        _GENERAL,
        "How many deliveries a job may lose with its workers before it fails; 0: no limit.",
    ),
    GearmandOption("keepalive", None, None, _GENERAL, "Probe silent connections; this is the default here."),
    GearmandOption(
        "keepalive-count", None, "N", _GENERAL, "The number of unanswered probes after which a connection ends."
    ),
    GearmandOption("keepalive-idle", None, "SECONDS", _GENERAL, "The silence before the first probe."),
    GearmandOption("keepalive-interval", None, "SECONDS", _GENERAL, "The time between probes."),
    GearmandOption("listen", "L", "HOST", _GENERAL, "Listen on this address; default 127.0.0.1 (gearmand's: all)."),
    GearmandOption(
        "log-file", "l", "FILE", _GENERAL, "Log to FILE, stderr or none; default stderr. HUP reopens the file."
    ),
    GearmandOption("pid-file", "P", "FILE", _GENERAL, "Write the process id to FILE, and remove FILE at the end."),
    GearmandOption("protocol", "r", "NAME", _GENERAL, "Also serve another protocol: http."),
    GearmandOption(
        "queue-type", "q", "NAME", _GENERAL, "builtin keeps jobs in memory, libsqlite3 in a Mainspring store."
    ),
    GearmandOption("round-robin", "R", None, _GENERAL, "Give each worker jobs of its functions in rotation."),
    GearmandOption("syslog", None, None, _GENERAL, "Log to the system's log."),
    GearmandOption(
        "threads",
        "t",
        "N",
        _GENERAL,
        "Accepted without effect.",
        "noted",
        "one thread serves all connections, another the disk",
    ),
    GearmandOption("user", "u", "NAME", _GENERAL, "Switch to this user at the start."),
    GearmandOption(
        "verbose", None, "LEVEL", _GENERAL, "FATAL, ALERT, CRITICAL, ERROR (default), WARNING, NOTICE, INFO or DEBUG."
    ),
    GearmandOption("version", "V", None, _GENERAL, "Print the version and exit."),
    GearmandOption(
        "worker-wakeup",
        "w",
        "N",
        _GENERAL,
        "How many sleeping workers to wake for a job; default and 0: one, which is enough.",
    ),
    GearmandOption("http-port", None, "PORT", "HTTP", "The port of -r http; default 8080."),
    GearmandOption("port", "p", "PORT", "Gear", "The port of the Gearman protocol; default 4730; 0: any free port."),
    GearmandOption("ssl", None, None, "Gear", "Use TLS on the port."),
    GearmandOption("ssl-ca-file", None, "FILE", "Gear", "Require client certificates of this authority."),
    GearmandOption("ssl-certificate", None, "FILE", "Gear", "The server's certificate."),
    GearmandOption("ssl-key", None, "FILE", "Gear", "The certificate's key."),
    GearmandOption(
        "libsqlite3-db", None, "FILE", "libsqlite3", "The file of the Mainspring store; created if it does not exist."
    ),
    GearmandOption(
        "libsqlite3-table",
        None,
        "NAME",
        "libsqlite3",
        "Accepted without effect.",
        "noted",
        "a store has tables of its own",
    ),
    GearmandOption(
        "store-queue-on-shutdown",
        None,
        None,
        "libsqlite3",
        "Accepted without effect.",
        "noted",
        "background jobs are on disk before they are acknowledged",
    ),
    GearmandOption(
        "allow-shutdown",
        None,
        None,
        "Mainspring",
        "Accept the command shutdown from every connection to a loopback address.",
    ),
    GearmandOption(
        "insecure",
        None,
        None,
        "Mainspring",
        "Listen beyond loopback without TLS and client certificates: anybody can connect.",
    ),
    GearmandOption("store", None, "URL", "Mainspring", "The store, as for mainspring serve; replaces -q."),
    *_foreign("libmemcached", "libmemcached-servers", "libmemcached-prefix"),
    *_foreign("Postgres", "libpq-conninfo", "libpq-table"),
    *_foreign("redis", "redis-server", "redis-port", "redis-password", "redis-prefix"),
    *_foreign("MySQL", "mysql-host", "mysql-port", "mysql-user", "mysql-password", "mysql-db", "mysql-table"),
)

BY_NAME = {option.name: option for option in GEARMAND_OPTIONS}
_BY_SHORT = {option.short: option for option in GEARMAND_OPTIONS if option.short is not None}


def parse_gearmand(arguments: Sequence[str], *, skip_words: bool = False) -> dict[str, str]:
    """Return the value of each given option; a flag's is empty. ``skip_words`` skips arguments that are not options.

    Raises GearmandUsageError, with gearmand's own message if it has one.
    """
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            option = BY_NAME.get(name)
            if option is None:
                raise _unknown(argument)
            if option.argument is None and value:
                raise GearmandUsageError(f"option '--{name}' does not take any arguments")
            _put(given, option, value if equals or option.argument is None else _next(option, rest))
        elif argument.startswith("-") and len(argument) > 1 and not argument.startswith("--"):
            _parse_short(argument, rest, given)
        elif not skip_words:
            raise _unknown(argument)
    return given


def _parse_short(argument: str, rest: list[str], given: dict[str, str]) -> None:
    """Parse ``-p 4730``, ``-p4730`` or ``-dR``."""
    letters = argument[1:]
    while letters:
        option = _BY_SHORT.get(letters[0])
        if option is None:
            raise _unknown(argument)
        letters = letters[1:]
        if option.argument is None:
            _put(given, option, "")
        else:
            _put(given, option, letters.removeprefix("=") if letters else _next(option, rest))
            return


def _next(option: GearmandOption, rest: list[str]) -> str:
    if not rest:
        raise GearmandUsageError(f"the required argument for option '--{option.name}' is missing")
    return rest.pop(0)


def _put(given: dict[str, str], option: GearmandOption, value: str) -> None:
    if option.name in given:
        raise GearmandUsageError(f"option '--{option.name}' cannot be specified more than once")
    given[option.name] = value


def _unknown(argument: str) -> GearmandUsageError:
    near = did_you_mean(argument.partition("=")[0], [f"--{name}" for name in BY_NAME])
    hint = near or "; mainspring gearmand --help lists them"
    return GearmandUsageError(f"unrecognised option '{argument}'{hint}")


def read_config_file(path: Path) -> dict[str, str]:
    """Return what a configuration file sets; ``#`` begins a comment.

    gearmand 1.1.20 reads options as on its command line (``--verbose=INFO``) and skips other words. This reads lines
    ``name=value``, too, and skips unknown names in them. Raises OSError if the file cannot be read, GearmandUsageError if an
    option of the first form is wrong.
    """
    given: dict[str, str] = {}
    words: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        text = line.partition("#")[0]
        name, equals, value = text.partition("=")
        option = BY_NAME.get(name.strip())
        if option is None and (text.lstrip().startswith("-") or not equals):
            words += text.split()
        if option is not None and option.name not in given:
            text = value.strip()
            if option.argument is None and text.lower() in {"0", "no", "off", "false"}:
                continue
            given[option.name] = "" if option.argument is None else text
    try:
        return {**given, **parse_gearmand(words, skip_words=True)}
    except GearmandUsageError as error:
        raise GearmandUsageError(f"{path}: {error}") from error


def notes(given: Mapping[str, str]) -> list[str]:
    """Return a line for each given option that has no effect."""
    lines = []
    for name in given:
        option = BY_NAME[name]
        if option.support == "noted":
            lines.append(f"--{name} has no effect: {option.reason}")
        elif option.support == "elsewhere":
            lines.append(f"--{name} has no effect: it belongs to gearmand's {option.group} queue")
    return lines


PAGE_WIDTH = 79
OPTION_WIDTH = 34
"""Columns of an option's spelling, beside its meaning."""


def help_text() -> str:
    """Return the manual page."""
    parts = [
        "Usage: mainspring gearmand [OPTIONS]",
        "",
        "Run a server with the options, signals and pid file of gearmand 1.1.20, so that",
        "you can put it in gearmand's place in a unit file.",
    ]
    for group in dict.fromkeys(option.group for option in GEARMAND_OPTIONS):
        parts += ["", f"{group}:"]
        for option in (option for option in GEARMAND_OPTIONS if option.group == group):
            short = f"-{option.short}, " if option.short else "    "
            head = f"  {short}--{option.name}" + (f" {option.argument}" if option.argument else "")
            lines = textwrap.wrap(option.meaning, PAGE_WIDTH - OPTION_WIDTH)
            if len(head) < OPTION_WIDTH:
                parts.append(f"{head:<{OPTION_WIDTH}}{lines.pop(0)}")
            else:
                parts.append(head)
            parts += [" " * OPTION_WIDTH + line for line in lines]
    parts += [
        "",
        "Signals:",
        "  TERM, INT  stop: wait up to 30 s for running jobs, then release them",
        "  USR1       stop as soon as all running jobs have ended",
        "  HUP        reopen the log file and reload the TLS files",
        "",
        "Environment:",
        "  GEARMAND_PORT        the port, if -p is not given",
        "  MAINSPRING_STORE     the store, if neither --store nor -q is given; default",
        "                       memory://",
        "  MAINSPRING_INSECURE  1: like --insecure",
        "",
        "Exit codes:",
        "  0  stopped by a signal; with --check-args: the options are right",
        "  1  wrong options, or failed to start or to continue",
        "  2  an address beyond loopback without TLS and client certificates or",
        "     --insecure; or a user, or a file other than the log, that cannot be used",
        "",
    ]
    return "\n".join(parts)

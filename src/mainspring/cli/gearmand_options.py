"""gearmand's options: one table that the parser, the help and the documentation are made from.

The parser takes what gearmand 1.1.20 takes: ``--name=value``, ``--name value``, ``-nvalue``, ``-n value``, flags run together
(``-dR``). Unlike gearmand it also takes empty values (``--verbose=``), which stand for the default.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mainspring.cli.near import did_you_mean
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Answer = Literal["applied", "noted", "elsewhere"]
"""``noted``: taken, without effect, and said so. ``elsewhere``: belongs to a queue that is refused."""


class GearmandUsageError(UsageError):
    """The options are wrong; gearmand's exit code for that is 1."""


@dataclass(frozen=True, slots=True)
class GearmandOption:
    """One option."""

    name: str
    """Without dashes."""

    short: str | None
    argument: str | None
    """What the argument is called; None: the option is a flag."""

    group: str
    meaning: str
    answer: Answer = "applied"
    why: str = ""
    """Said when a noted option is given."""


def _foreign(group: str, *names: str) -> tuple[GearmandOption, ...]:
    return tuple(
        GearmandOption(name, None, "ARG", group, "For a queue that Mainspring replaces.", "elsewhere") for name in names
    )


_G = "General"
OPTIONS: tuple[GearmandOption, ...] = (
    GearmandOption("backlog", "b", "N", _G, "Connections that may wait to be accepted."),
    GearmandOption("check-args", None, None, _G, "Check the options and exit."),
    GearmandOption(
        "config-file", None, "FILE", _G, "Read options as given here, or lines NAME=VALUE; default /etc/gearmand.conf."
    ),
    GearmandOption("coredump", None, None, _G, "Let the system write a core file after a crash."),
    GearmandOption("daemon", "d", None, _G, "Run in the background; returns when the ports are open."),
    GearmandOption("exceptions", None, None, _G, "Send exceptions also to clients that did not ask for them."),
    GearmandOption("file-descriptors", "f", "N", _G, "Files, and so connections, that may be open."),
    GearmandOption(
        "hashtable-buckets",
        None,
        "N",
        _G,
        "Taken and noted.",
        "noted",
        "look-ups are constant time at any number of jobs",
    ),
    GearmandOption("help", "h", None, _G, "Print this help and exit."),
    GearmandOption("job-handle-prefix", None, "H:NAME", _G, "Begin job handles with H:NAME; NAME is the node's name."),
    GearmandOption(
        "job-retries", "j", "N", _G, "Deliveries that a job may lose with its workers before it fails; 0: no limit."
    ),
    GearmandOption("keepalive", None, None, _G, "Probe silent connections; this is the default here."),
    GearmandOption("keepalive-count", None, "N", _G, "Unanswered probes after which a connection ends."),
    GearmandOption("keepalive-idle", None, "SECONDS", _G, "Silence before the first probe."),
    GearmandOption("keepalive-interval", None, "SECONDS", _G, "Time between probes."),
    GearmandOption("listen", "L", "HOST", _G, "Listen on this address; default 127.0.0.1 (gearmand's: all)."),
    GearmandOption("log-file", "l", "FILE", _G, "Log to FILE, stderr or none; default stderr. HUP opens it again."),
    GearmandOption("pid-file", "P", "FILE", _G, "Write the process id to FILE, removed at the end."),
    GearmandOption("protocol", "r", "NAME", _G, "Serve another protocol too: http."),
    GearmandOption("queue-type", "q", "NAME", _G, "builtin keeps jobs in memory; libsqlite3 in a Mainspring store."),
    GearmandOption("round-robin", "R", None, _G, "Give each worker jobs of its functions in turn."),
    GearmandOption("syslog", None, None, _G, "Log to the system's log."),
    GearmandOption(
        "threads", "t", "N", _G, "Taken and noted.", "noted", "one thread serves all connections, another the disk"
    ),
    GearmandOption("user", "u", "NAME", _G, "Switch to this user at the start."),
    GearmandOption(
        "verbose", None, "LEVEL", _G, "FATAL, ALERT, CRITICAL, ERROR (default), WARNING, NOTICE, INFO or DEBUG."
    ),
    GearmandOption("version", "V", None, _G, "Print the version and exit."),
    GearmandOption(
        "worker-wakeup", "w", "N", _G, "Sleeping workers to wake for a job; default and 0: one, which is enough."
    ),
    GearmandOption("http-port", None, "PORT", "HTTP", "Port of -r http; default 8080."),
    GearmandOption("port", "p", "PORT", "Gear", "Port of the Gearman protocol; default 4730, 0: any free one."),
    GearmandOption("ssl", None, None, "Gear", "Speak TLS on the port."),
    GearmandOption("ssl-ca-file", None, "FILE", "Gear", "Clients must show a certificate of this authority."),
    GearmandOption("ssl-certificate", None, "FILE", "Gear", "The server's certificate."),
    GearmandOption("ssl-key", None, "FILE", "Gear", "The certificate's key."),
    GearmandOption(
        "libsqlite3-db", None, "FILE", "libsqlite3", "The Mainspring store: a file, made where it does not exist."
    ),
    GearmandOption(
        "libsqlite3-table", None, "NAME", "libsqlite3", "Taken and noted.", "noted", "a store has tables of its own"
    ),
    GearmandOption(
        "store-queue-on-shutdown",
        None,
        None,
        "libsqlite3",
        "Taken and noted.",
        "noted",
        "background jobs are on disk before they are acknowledged",
    ),
    GearmandOption(
        "insecure", None, None, "Mainspring", "Listen beyond loopback without TLS and clients' certificates."
    ),
    GearmandOption("store", None, "URL", "Mainspring", "The store as for `mainspring serve`, in place of -q."),
    *_foreign("libmemcached", "libmemcached-servers", "libmemcached-prefix"),
    *_foreign("Postgres", "libpq-conninfo", "libpq-table"),
    *_foreign("redis", "redis-server", "redis-port", "redis-password", "redis-prefix"),
    *_foreign("MySQL", "mysql-host", "mysql-port", "mysql-user", "mysql-password", "mysql-db", "mysql-table"),
)

BY_NAME = {option.name: option for option in OPTIONS}
_BY_SHORT = {option.short: option for option in OPTIONS if option.short is not None}


def parse_gearmand(arguments: Sequence[str], *, skip_words: bool = False) -> dict[str, str]:
    """Return the value of each option that was given; a flag's is empty. ``skip_words`` passes over arguments that are no option.

    Raises GearmandUsageError, in gearmand's words where it has some.
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
            _take_short(argument, rest, given)
        elif not skip_words:
            raise _unknown(argument)
    return given


def _take_short(argument: str, rest: list[str], given: dict[str, str]) -> None:
    """Take ``-p 4730``, ``-p4730`` or ``-dR``."""
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

    gearmand 1.1.20 takes options as on its command line (``--verbose=INFO``) and skips words that are none. Lines ``name=value``
    are taken, too; unknown names are skipped there. Raises OSError where the file cannot be read, GearmandUsageError where an
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
        if option.answer == "noted":
            lines.append(f"--{name} is taken and has no effect: {option.why}")
        elif option.answer == "elsewhere":
            lines.append(f"--{name} has no effect: it belongs to gearmand's {option.group} queue")
    return lines


WIDTH = 79
HEAD = 34
"""Columns of an option's spelling, beside its meaning."""


def help_text() -> str:
    """Return the manual page."""
    parts = [
        "Usage: mainspring gearmand [OPTIONS]",
        "",
        "Run a node that takes gearmand 1.1.20's options, signals and pid file, so that",
        "it can stand in a unit file in gearmand's place.",
    ]
    for group in dict.fromkeys(option.group for option in OPTIONS):
        parts += ["", f"{group}:"]
        for option in (option for option in OPTIONS if option.group == group):
            short = f"-{option.short}, " if option.short else "    "
            head = f"  {short}--{option.name}" + (f" {option.argument}" if option.argument else "")
            lines = textwrap.wrap(option.meaning, WIDTH - HEAD)
            if len(head) < HEAD:
                parts.append(f"{head:<{HEAD}}{lines.pop(0)}")
            else:
                parts.append(head)
            parts += [" " * HEAD + line for line in lines]
    parts += [
        "",
        "Signals:",
        "  TERM, INT  stop: running jobs get some time, then they are handed back",
        "  USR1       stop once all running jobs have ended",
        "  HUP        open the log file again and read the TLS files again",
        "",
        "Environment:",
        "  GEARMAND_PORT        the port where there is no -p",
        "  MAINSPRING_STORE     the store where neither --store nor -q is given; without",
        "                       it memory://",
        "  MAINSPRING_INSECURE  1: as --insecure",
        "",
        "Exit codes:",
        "  0  stopped by a signal; the options are right (--check-args)",
        "  1  wrong options, or it could not start or go on",
        "  2  an address beyond loopback without TLS, clients' certificates or",
        "     --insecure; a user, or a file other than the log, that cannot be used",
        "",
    ]
    return "\n".join(parts)

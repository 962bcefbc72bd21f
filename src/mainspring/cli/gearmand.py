"""``mainspring gearmand``: run a node with gearmand's options."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli.display import EXIT_DONE, print_error
from mainspring.cli.gearmand_options import (
    GearmandUsageError,
    help_text,
    notes,
    parse_gearmand,
    read_config_file,
)
from mainspring.cli.node import run_node, serve_node
from mainspring.errors import SettingsError
from mainspring.ids import NodeId, node_id
from mainspring.private_data import open_private
from mainspring.server.log_writer import LogSettings
from mainspring.server.settings import (
    JobSettings,
    KeepaliveSettings,
    ListenSettings,
    ProcessSettings,
    ServerSettings,
    StoreSettings,
    TcpAddress,
    TlsSettings,
    default_node_name,
    parse_store,
)
from mainspring.version import version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.cli.node import Ready

GEARMAND_VERSION = "1.1.20"
"""The version of gearmand whose options and answers this command implements."""

DEFAULT_CONFIG = Path("/etc/gearmand.conf")
DEFAULT_LISTEN = ListenSettings()
DEFAULT_KEEPALIVE = KeepaliveSettings()

LOG_LEVEL_OF = {
    "FATAL": "critical",
    "ALERT": "critical",
    "CRITICAL": "critical",
    "ERROR": "error",
    "WARNING": "warning",
    "NOTICE": "warning",
    "INFO": "info",
    "DEBUG": "debug",
    "": "error",
}

TLS_OPTIONS = ("--ssl", "--ssl-certificate", "--ssl-key", "--ssl-ca-file")

QUEUES_INSTEAD = {
    "mysql": "MySQL",
    "libdrizzle": "Drizzle or MySQL",
    "redis": "Redis",
    "libmemcached": "memcached",
    "libtokyocabinet": "Tokyo Cabinet",
}


def gearmand(arguments: Sequence[str], defaults: Mapping[str, str]) -> int:
    """Run the command with gearmand's arguments.

    All other sources of options override ``defaults``. Raises GearmandUsageError and SettingsError.
    """
    given = parse_gearmand(arguments)
    if "help" in given:
        sys.stdout.write(help_text())
        return EXIT_DONE
    if "version" in given:
        print(f"mainspring {version()}, in place of gearmand {GEARMAND_VERSION}")
        return EXIT_DONE
    merged = {**defaults, **_config_file(given.get("config-file", "")), **_environment(), **given}
    if "queue-type" in given or "libsqlite3-db" in given:
        merged = {name: value for name, value in merged.items() if name != "store" or name in given}
    settings = gearmand_settings(merged)
    settings.check(tls_options=TLS_OPTIONS)
    if "check-args" in given:
        return EXIT_DONE
    for note in notes(given):
        print_error(note)
    if not merged.get("listen"):
        print_error(
            f"listening only on {settings.listen.gearman[0]}, because -L is not given; gearmand would listen on all addresses"
        )
    return run_node(settings, _serve)


async def _serve(settings: ServerSettings, ready: Ready) -> int:
    # Only now: the user of -u must own the log file, because the node writes to it and reopens it as this user.
    return await serve_node(_with_usable_log(settings), ready)


def gearmand_settings(given: Mapping[str, str]) -> ServerSettings:
    """Return the settings for gearmand's options.

    Raises GearmandUsageError for an invalid value, SettingsError for settings that contradict each other.
    """
    host = given.get("listen") or "127.0.0.1"
    keepalive = KeepaliveSettings(
        idle=_seconds(given, "keepalive-idle", DEFAULT_KEEPALIVE.idle),
        interval=_seconds(given, "keepalive-interval", DEFAULT_KEEPALIVE.interval),
        count=_seconds(given, "keepalive-count", DEFAULT_KEEPALIVE.count),
    )
    files = _number(given, "file-descriptors", 0)
    return ServerSettings(
        name=_node_name(given.get("job-handle-prefix", "")),
        store=_store(given),
        listen=ListenSettings(
            gearman=(TcpAddress(host, _gearman_port(given)),),
            gearman_http=TcpAddress(host, _option_port(given, "http-port", 8080)) if _speaks_http(given) else None,
            tls=_tls(given),
            insecure="insecure" in given,
            allow_shutdown="allow-shutdown" in given,
            backlog=_number(given, "backlog", 0) or DEFAULT_LISTEN.backlog,
        ),
        keepalive=keepalive,
        jobs=JobSettings(
            job_retries=retries if (retries := _number(given, "job-retries", 0)) > 0 else None,
            round_robin="round-robin" in given,
            exceptions="exceptions" in given,
            worker_wakeup=max(1, _number(given, "worker-wakeup", 0)),
        ),
        log=_log(given),
        process=ProcessSettings(
            daemon="daemon" in given,
            pid_file=Path(path) if (path := given.get("pid-file")) else None,
            user=given.get("user") or None,
            max_files=files if files > 0 else None,
            core_dumps="coredump" in given,
        ),
        banner=GEARMAND_VERSION,
        verbosity=given.get("verbose") or "ERROR",
    )


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise GearmandUsageError(f"the argument ('{text}') for option '--{name}' is invalid: give a number") from None


def _seconds(given: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return a number above 0; gearmand's -1 selects the default."""
    value = _number(given, name, -1)
    return value if value > 0 else default


def _gearman_port(given: Mapping[str, str]) -> int:
    """Return ``--port``, or GEARMAND_PORT without it, as gearmand does."""
    if not given.get("port") and (text := os.environ.get("GEARMAND_PORT")):
        return _port(text, "GEARMAND_PORT")
    return _option_port(given, "port", 4730)


def _option_port(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    return _port(text, f"option '--{name}'") if text else default


def _port(text: str, source: str) -> int:
    """Return a port from its number or from a service's name in /etc/services. ``source`` names the option in errors."""
    try:
        port = int(text)
    except ValueError:
        try:
            return socket.getservbyname(text, "tcp")
        except OSError:
            message = f"the argument ('{text}') for {source} is invalid: give a number, or a name of /etc/services"
            raise GearmandUsageError(message) from None
    if not 0 <= port <= 65535:
        raise GearmandUsageError(f"the argument ('{text}') for {source} is invalid: ports are 0 to 65535")
    return port


def _node_name(prefix: str) -> NodeId:
    """Return the node's name from ``H:name``, gearmand's prefix of handles."""
    if not prefix:
        return default_node_name()
    try:
        return node_id(prefix.removeprefix("H:"))
    except SettingsError as error:
        raise GearmandUsageError(f"--job-handle-prefix: {error}") from error


def _speaks_http(given: Mapping[str, str]) -> bool:
    protocol = given.get("protocol", "")
    if protocol.lower() not in {"", "gear", "http"}:
        raise GearmandUsageError(f"Unknown protocol module : {protocol}; use http")
    return protocol.lower() == "http"


def _store(given: Mapping[str, str]) -> StoreSettings:
    queue = given.get("queue-type", "").lower()
    file = given.get("libsqlite3-db", "")
    if "store" in given:
        return parse_store(given["store"])
    if queue in {"", "builtin"}:
        return parse_store("memory://")
    if queue in {"libsqlite3", "sqlite", "sqlite3"}:
        if not file:
            raise GearmandUsageError("-q libsqlite3 needs --libsqlite3-db=FILE, the file of a Mainspring store")
        return parse_store(file if "://" in file else f"sqlite:///{file.replace('%', '%25')}")
    if queue in {"libpq", "postgres"}:
        raise GearmandUsageError(
            f"-q {given['queue-type']}: Mainspring does not read gearmand's tables; use --store postgresql://USER@HOST/DATABASE,"
            " which several servers can share"
        )
    if queue in QUEUES_INSTEAD:
        raise GearmandUsageError(
            f"-q {given['queue-type']}: Mainspring does not store jobs in {QUEUES_INSTEAD[queue]}; "
            "use -q libsqlite3 --libsqlite3-db=FILE, which needs no database server"
        )
    raise GearmandUsageError(f"Error while initializing the queue : {given['queue-type']}; use builtin or libsqlite3")


def _tls(given: Mapping[str, str]) -> TlsSettings | None:
    if "ssl" not in given:
        return None
    certificate = given.get("ssl-certificate") or os.environ.get("GEARMAND_SERVER_PEM")
    key = given.get("ssl-key") or os.environ.get("GEARMAND_SERVER_KEY")
    authority = given.get("ssl-ca-file") or os.environ.get("GEARMAND_CA_CERTIFICATE")
    if not certificate or not key:
        raise GearmandUsageError("--ssl needs --ssl-certificate=FILE and --ssl-key=FILE")
    return TlsSettings(Path(certificate), Path(key), Path(authority) if authority else None)


def _log(given: Mapping[str, str]) -> LogSettings:
    level = LOG_LEVEL_OF.get(given.get("verbose", ""))
    if level is None:
        levels = ", ".join(name for name in LOG_LEVEL_OF if name)
        raise GearmandUsageError(f"Invalid value for --verbose supplied: {given['verbose']!r}; use one of {levels}")
    file = given.get("log-file", "")
    return LogSettings(
        level=level,
        format="text",
        file=None if file in {"", "none", "stderr"} else Path(file),
        enabled=file != "none",
        syslog="syslog" in given,
    )


def _config_file(name: str) -> dict[str, str]:
    path = Path(name.removeprefix("@")) if name else DEFAULT_CONFIG
    try:
        return read_config_file(path)
    except OSError as error:
        if not name:
            return {}
        raise GearmandUsageError(f"Could not open configuration file {path}: {error.strerror}") from error


def _environment() -> dict[str, str]:
    found = {}
    if store := os.environ.get("MAINSPRING_STORE"):
        found["store"] = store
    if os.environ.get("MAINSPRING_INSECURE", "").lower() in {"1", "true", "yes", "on"}:
        found["insecure"] = ""
    return found


def _with_usable_log(settings: ServerSettings) -> ServerSettings:
    """Fall back on standard error if the log file cannot be opened, as gearmand does."""
    file = settings.log.file
    if file is None:
        return settings
    try:
        open(file, "a", opener=open_private).close()
    except OSError as error:
        print_error(f"cannot open the log file {file} ({error.strerror}): logging to standard error")
        return replace(settings, log=replace(settings.log, file=None))
    return settings

"""What a node is told at its start: typed, frozen, grouped, read once.

The command line, the environment and ``mainspring.toml`` are read elsewhere (`mainspring.cli`); here is what they add
up to. `ServerSettings.check` holds the rules between settings.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote, urlsplit

from mainspring.errors import SettingsError
from mainspring.ids import NodeId, node_id
from mainspring.nodes import strategies
from mainspring.nodes.lease import BEAT, LEASE, Lease
from mainspring.server.addresses import Address, TcpAddress, is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_STORE = "sqlite:///mainspring.db"
DEFAULT_GEARMAN = TcpAddress("127.0.0.1", 4730)

DAY = 86400.0
GRACE = 30.0
"""Seconds that a stop waits for running jobs, by default."""
MIB = 1 << 20

Engine = Literal["memory", "sqlite", "postgres", "zookeeper"]
Synchronous = Literal["full", "normal"]
LogFormat = Literal["auto", "text", "json"]
TLS_OPTIONS = ("--tls-cert", "--tls-key", "--tls-client-ca")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The durable record and how careful it is."""

    url: str = DEFAULT_STORE
    """``sqlite:///relative.db``, ``sqlite:////absolute/path.db``, ``postgresql://user@host/db?schema=name``,
    ``zookeeper://host:2181,host:2181/chroot`` or ``memory://``."""

    engine: Engine = "sqlite"
    path: Path | None = Path("mainspring.db")
    """The SQLite file, relative to the working directory or absolute; None where there is none."""

    synchronous: Synchronous = "full"
    """``full``: an accepted job survives the loss of power. ``normal``: it survives the process, not the power."""

    cache_bytes: int = 64 * MIB
    """Memory for pages of the file."""

    migrate: bool = True
    """Bring the schema of a database up to date at the start."""

    cluster: str | None = None
    """``zookeeper://…``: where the nodes of a store on PostgreSQL see who lives, and tell each other what is new."""

    @property
    def shown(self) -> str:
        """The URL as people may see it: without a password."""
        url = re.sub(r"(?<=[?&])((?:ssl)?password)=[^&]*", r"\1=***", self.url)
        parts = urlsplit(url)
        if parts.password is None:
            return url
        user, _, hosts = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user.partition(':')[0]}:***@{hosts}").geturl()

    def absolute(self) -> StoreSettings:
        """Return the same store, named so that it is found from any working directory."""
        if self.path is None:
            return self
        path = self.path.absolute()
        return replace(self, path=path, url=f"sqlite:///{quote(str(path))}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files for the ports; read again at SIGHUP."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Clients must show a certificate of this authority; None: anybody may connect."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The ports."""

    gearman: tuple[Address, ...] = (DEFAULT_GEARMAN,)
    http: Address | None = None
    """``/metrics``, ``/healthz``, ``/readyz``."""

    gearman_http: Address | None = None
    """gearmand's ``-r http`` protocol."""

    tls: TlsSettings | None = None
    insecure: bool = False
    """Listen beyond loopback although anybody could connect."""

    backlog: int = 1024
    """Connections that wait to be accepted."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds on what one peer can make a node hold."""

    max_packet: int = 64 * MIB
    """Bytes of one packet's body, checked from its header."""

    max_connections: int = 0
    """Connections at a time; 0: as many as the process may have open files."""

    max_functions: int = 100_000
    """Functions with jobs or workers; 0: any number."""

    queued_jobs: int = 4096
    """Submits of one connection that wait for the store; above it reading from the connection pauses, until half are stored."""

    queued_bytes: int = 8 * MIB
    """The same in bytes of what they hold in memory."""

    unsent_bytes: int = 8 * MIB
    """Replies that a connection has not read; above it reading from the connection pauses."""

    handshake_timeout: float = 10.0
    """Seconds that a TLS handshake may last."""

    packet_timeout: float = 60.0
    """Seconds without a byte in the middle of a packet, or of an HTTP request, after which a connection ends."""

    idle_timeout: float | None = None
    """Seconds without a packet after which a connection without jobs ends; None: never, as sleeping workers do."""


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """TCP keepalive, which finds peers that vanished without a word; None leaves a value to the operating system."""

    enabled: bool = True
    idle: int | None = 60
    """Seconds of silence before the first probe."""

    interval: int | None = 15
    """Seconds between probes."""

    count: int | None = 4
    """Unanswered probes after which the connection ends."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What holds for jobs that say nothing themselves."""

    retention: float = DAY
    """Seconds for which an ended job and its result are kept."""

    dead_retention: float = 14 * DAY
    """The same for dead letters: jobs that failed for good."""

    job_retries: int | None = None
    """Deliveries that a plain Gearman job may lose with its workers before it fails; None: no limit with plain workers, and 5
    with those of the extension."""

    round_robin: bool = False
    """Give a plain Gearman worker jobs of its functions in turn, not in the order of registration."""

    exceptions: bool = False
    """Send WORK_EXCEPTION also to clients that did not ask for it with ``OPTION_REQ exceptions``."""

    schedules: bool = True
    """Fire schedules."""

    worker_wakeup: int = 1
    """Sleeping workers that are woken for one job; 0: all of them. One is enough, and the quickest."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is written about the node's life, and where."""

    level: str = "info"
    """One of `LOG_LEVELS`."""

    format: LogFormat = "auto"
    """``text`` for people, ``json`` for programs; ``auto``: text on a terminal, JSON elsewhere."""

    file: Path | None = None
    """Opened again at SIGHUP; None: standard error."""

    tracebacks: bool = False
    """Workers log the tracebacks of failed attempts at any level, and not at ``debug`` alone."""

    enabled: bool = True
    """False: nothing is logged."""

    syslog: bool = False
    """Write to the system's log in place of a file."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The process as the operating system sees it."""

    daemon: bool = False
    """Detach and run in the background."""

    pid_file: Path | None = None
    """Holds the process id while the node runs; removed at its end."""

    user: str | None = None
    """Switch to this user once the ports are open."""

    max_files: int | None = None
    """Open files allowed; None: as many as the hard limit allows."""

    core_dumps: bool = False
    """Let the system write a core file after a crash."""

    grace: float = GRACE
    """Seconds given to running jobs at a stop before they are handed back."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """A node among others of one store."""

    strategy: str = "default"
    """By which rule nodes share stored jobs; the same on all of them."""

    weight: int = 1
    """This node's size beside the others', for strategies that share by it."""

    lease: float = LEASE
    """Seconds without a heartbeat after which other nodes take this one's jobs."""

    beat: float = BEAT
    """Seconds between heartbeats."""

    status: bool = False
    """The admin command ``status`` counts the running jobs and the workers of all nodes, not of this one alone."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that a node is told."""

    name: NodeId = field(default_factory=lambda: default_node_name())  # noqa: PLW0108 - defined below
    store: StoreSettings = StoreSettings()
    listen: ListenSettings = ListenSettings()
    limits: LimitSettings = LimitSettings()
    keepalive: KeepaliveSettings = KeepaliveSettings()
    jobs: JobSettings = JobSettings()
    fleet: FleetSettings = FleetSettings()
    log: LogSettings = LogSettings()
    process: ProcessSettings = ProcessSettings()
    banner: str | None = None
    """What ``version`` answers on the Gearman port; None: Mainspring's own version."""
    verbosity: str | None = None
    """What ``verbose`` answers there, a level of the log in gearmand's words; None: the log's own level."""

    def check(self, *, tls_options: Sequence[str] = TLS_OPTIONS) -> None:
        """Raise SettingsError where settings contradict each other or would open the node to strangers.

        ``tls_options``: what the options are called that would keep strangers out, the one for clients' certificates last.
        """
        if self.listen.gearman_http is not None and self.listen.gearman_http == self.listen.http:
            raise SettingsError(f"two faces cannot share the address {self.listen.http}: give one of them another port")
        if self.store.cluster is not None:
            if self.store.engine != "postgres":
                raise SettingsError(
                    f"--cluster is for nodes that share a store on PostgreSQL, and {self.store.shown} is none: leave it out"
                )
            if urlsplit(self.store.cluster).scheme != "zookeeper":
                raise SettingsError(f"{self.store.cluster!r} is no cluster: write zookeeper://HOST:2181/CHROOT")
        strategies.strategy(self.fleet.strategy)
        Lease(0.0, lease=self.fleet.lease, beat=self.fleet.beat)
        if self.fleet.weight < 0:
            raise SettingsError(f"a weight of {self.fleet.weight} is less than nothing: give 0 or more")
        if self.listen.insecure:
            return
        tls = self.listen.tls
        for address in self.addresses():
            if is_local(address) or (tls is not None and tls.client_ca is not None):
                continue
            missing = "TLS and clients' certificates" if tls is None else "clients' certificates"
            *others, last = tls_options
            wanted = f"{', '.join(others)} and {last}" if tls is None else last
            raise SettingsError(
                f"{address} can be reached from other machines without {missing}: "
                f"give {wanted}, listen on 127.0.0.1, or accept the risk with --insecure"
            )

    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses of all faces."""
        others = (self.listen.http, self.listen.gearman_http)
        return (*self.listen.gearman, *(address for address in others if address is not None))


def parse_store(url: str, **options: object) -> StoreSettings:
    """Read a store's URL.

    Raises SettingsError for a scheme that no engine has, and for a URL that names no file.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        if url not in {"memory://", "memory:"}:
            raise SettingsError(f"{url!r} names something, but a store in memory has no name: write memory://")
        return StoreSettings(url="memory://", engine="memory", path=None, **options)  # type: ignore[arg-type]
    if parts.scheme == "sqlite":
        if parts.netloc or not url.startswith("sqlite:///"):
            raise SettingsError(
                f"{url!r} lacks a slash: write sqlite:///FILE, or sqlite:////PATH/FILE for an absolute path"
            )
        path = unquote(url.removeprefix("sqlite:///"))
        if not path or path.endswith("/"):
            raise SettingsError(f"{url!r} names no file: write sqlite:///FILE, such as {DEFAULT_STORE}")
        return StoreSettings(url=url, engine="sqlite", path=Path(path), **options)  # type: ignore[arg-type]
    if parts.scheme in {"postgresql", "postgres"}:
        return StoreSettings(url=url, engine="postgres", path=None, **options)  # type: ignore[arg-type]
    if parts.scheme == "zookeeper":
        return StoreSettings(url=url, engine="zookeeper", path=None, **options)  # type: ignore[arg-type]
    if not parts.scheme or len(parts.scheme) == 1:
        raise SettingsError(f"{url!r} is no store: write sqlite:///{url} for that file, or memory://")
    raise SettingsError(
        f"{url!r} is a store that this version does not have: use sqlite:///FILE, postgresql://USER@HOST/DATABASE,"
        " zookeeper://HOST:2181/CHROOT, or memory:// to keep nothing"
    )


def default_node_name(host: str | None = None) -> NodeId:
    """Make a node's name of the host's: what no name may hold becomes a dash."""
    short = (socket.gethostname() if host is None else host).partition(".")[0]
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", short).lstrip("._-")[:32]
    return node_id(cleaned or "node")

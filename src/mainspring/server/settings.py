"""The settings of a node: typed, frozen, grouped, read once.

`mainspring.cli` reads them from the command line, the environment and ``mainspring.toml``. `ServerSettings.check` holds
the rules between settings.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote, urlsplit

from mainspring.access.proxy import USER_HEADER
from mainspring.errors import SettingsError
from mainspring.ids import NodeId, node_id
from mainspring.namespaces import DEFAULT
from mainspring.nodes import strategies
from mainspring.nodes.model import BEAT, LEASE, Lease
from mainspring.server.addresses import Address, TcpAddress, is_local
from mainspring.server.log_settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.proxy import Network, ProxyRule
    from mainspring.jobs.user_data import ArgumentRule

DEFAULT_STORE = "sqlite:///mainspring.db"
DEFAULT_GEARMAN = TcpAddress("127.0.0.1", 4730)
DEFAULT_HTTP = TcpAddress("127.0.0.1", 8080)
"""The address for HTTP of ``mainspring run``."""

DAY = 86400.0
STOP_GRACE = 30.0
"""Seconds that a stop waits for running jobs, by default."""
MIB = 1 << 20

Engine = Literal["memory", "sqlite", "postgres", "zookeeper"]
Synchronous = Literal["full", "normal"]
TLS_OPTIONS = ("--tls-cert", "--tls-key", "--tls-client-ca")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The store and its durability."""

    url: str = DEFAULT_STORE
    """``sqlite:///relative.db``, ``sqlite:////absolute/path.db``, ``postgresql://user@host/db?schema=name``,
    ``zookeeper://host:2181,host:2181/chroot`` or ``memory://``."""

    engine: Engine = "sqlite"
    path: Path | None = Path("mainspring.db")
    """The SQLite file, relative to the working directory or absolute; None for other engines."""

    synchronous: Synchronous = "full"
    """``full``: accepted jobs survive a power failure. ``normal``: they survive a crash of the process only."""

    cache_bytes: int = 64 * MIB
    """Bytes of memory for pages of the file."""

    migrate: bool = True
    """Update the schema of a database or file at the start."""

    backup_before_migrate: bool = True
    """Copy a SQLite file before its schema is updated."""

    cluster: str | None = None
    """``zookeeper://…``: the ensemble that tracks live nodes and carries their messages for a store on PostgreSQL."""

    @property
    def shown(self) -> str:
        """The URL without a password, for logs and messages."""
        url = re.sub(r"(?<=[?&])((?:ssl)?password)=[^&]*", r"\1=***", self.url)
        parts = urlsplit(url)
        if parts.password is None:
            return url
        user, _, hosts = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user.partition(':')[0]}:***@{hosts}").geturl()

    @property
    def keeps_workflows(self) -> bool:
        """Whether the store keeps runs of workflows."""
        return self.engine in {"memory", "sqlite"}

    def absolute(self) -> StoreSettings:
        """Return the same store with an absolute path, valid from any working directory."""
        if self.path is None:
            return self
        path = self.path.absolute()
        return replace(self, path=path, url=f"sqlite:///{quote(str(path))}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files for the ports; SIGHUP reloads them."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Clients must show a certificate of this authority; None: any client may connect."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The ports."""

    gearman: tuple[Address, ...] = (DEFAULT_GEARMAN,)
    http: Address | None = None
    """The API, ``/login``, ``/metrics``, ``/healthz``, ``/readyz``."""

    http_is_default: bool = False
    """The user did not set this address. If it is taken, the node starts without it."""

    http_hosts: tuple[str, ...] = ()
    """Names under which browsers and programs may address the HTTP port, beside IP addresses and the names of this machine."""

    http_prefix: str = ""
    """The path under which a proxy shows the HTTP port, such as ``/mainspring``; empty: the root."""

    gearman_http: Address | None = None
    """gearmand's ``-r http`` protocol."""

    tls: TlsSettings | None = None
    insecure: bool = False
    """Allow ports beyond loopback to which any client can connect."""

    proxies: tuple[Network, ...] = ()
    """Networks of proxies that sign users in to the HTTP API by headers."""

    proxy_user_header: bytes = USER_HEADER
    """The header with a user's name, in lower case."""

    proxy_rules: tuple[ProxyRule, ...] = ()
    """The rights of these users."""

    require_token: bool = False
    """Demand a token, a client certificate or a Unix socket of each connection to a Gearman port."""

    allow_shutdown: bool = False
    """Accept the command ``shutdown`` from loopback addresses too, and not only on Unix sockets without a namespace."""

    socket_mode: int | None = None
    """The mode of sockets in the file system; None: 0660, or less if the umask is stricter."""

    backlog: int = 1024
    """Connections that the system queues until they are accepted."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits on the resources that peers can make a node use."""

    max_packet: int = 64 * MIB
    """Bytes of one packet's body, checked when its header arrives."""

    max_connections: int = 0
    """Simultaneous connections; 0: as many as the limit of open files allows."""

    max_functions: int = 100_000
    """Functions with jobs or workers; 0: no limit."""

    queued_jobs: int = 4096
    """Submits of one connection that wait for the store. At the limit the node stops reading until half are stored."""

    queued_bytes: int = 8 * MIB
    """The same limit for the bytes that these submits occupy in memory."""

    unsent_bytes: int = 8 * MIB
    """Bytes of replies that a client has not read. At the limit the node stops reading from its connection."""

    handshake_timeout: float = 10.0
    """Seconds that a TLS handshake may last."""

    packet_timeout: float = 60.0
    """Seconds without a byte inside a packet or an HTTP request after which the connection ends."""

    idle_timeout: float | None = None
    """Seconds without a packet after which a connection without jobs ends; None: never, because workers sleep."""


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """TCP keepalive, which detects peers that vanished without closing; None leaves a value to the operating system."""

    enabled: bool = True
    idle: int | None = 60
    """Seconds of silence before the first probe."""

    interval: int | None = 15
    """Seconds between probes."""

    count: int | None = 4
    """Unanswered probes after which the connection ends."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Defaults for jobs without settings of their own."""

    retention: float = DAY
    """Seconds for which ended jobs and their results are kept."""

    dead_retention: float = 14 * DAY
    """The same for dead letters: jobs whose attempts have all failed."""

    log_retention: float = 7 * DAY
    """Seconds for which the lines are kept that tasks log."""

    audit_retention: float = 90 * DAY
    """Seconds for which acts are kept in the audit."""

    keep_arguments: tuple[ArgumentRule, ...] = ()
    """Bytes of the largest payload that is kept when a job has succeeded, by function; 1 KiB where no rule matches."""

    redact: tuple[ArgumentRule, ...] = ()
    """Keys whose values nobody may see in arguments, by function."""

    job_retries: int | None = None
    """Deliveries of a plain Gearman job that may be lost before it fails; None: no limit with plain workers, 5 with workers
    of the extension."""

    round_robin: bool = False
    """Assign jobs to a plain Gearman worker from its functions in turn, not in the order of registration."""

    exceptions: bool = False
    """Send WORK_EXCEPTION also to clients that did not request it with ``OPTION_REQ exceptions``."""

    schedules: bool = True
    """Whether this node fires schedules."""

    worker_wakeup: int = 1
    """Sleeping workers that are woken for one job; 0: all of them. 1 is enough and fastest."""


@dataclass(frozen=True, slots=True)
class WorkflowSettings:
    """Runs of workflows: how long closed ones are kept, and the limits of each run."""

    retention: float = 14 * DAY
    """Seconds for which closed runs are kept, with their histories."""

    timeout: float = 366 * DAY
    """Seconds that a run may last; also the time-out of a run without one."""

    events: int = 25_000
    """Events of its history; the run is terminated at this limit."""

    open: int = 1_000
    """Activities that it may have open at a time, and the same number of timers and of children."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of the operating system's process."""

    daemon: bool = False
    """Detach and run in the background."""

    pid_file: Path | None = None
    """A file that holds the process id while the node runs."""

    user: str | None = None
    """Switch to this user once the ports are open."""

    max_files: int | None = None
    """Limit of open files; None: the hard limit."""

    core_dumps: bool = False
    """Let the system write a core file after a crash."""

    grace: float = STOP_GRACE
    """Seconds that running jobs get at a stop before they are released."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of a node that shares its store with others."""

    strategy: str = "default"
    """The rule by which nodes share stored jobs; the same on all of them."""

    weight: int = 1
    """This node's size relative to others, for strategies that use it."""

    lease: float = LEASE
    """Seconds without a heartbeat after which other nodes recover this node's jobs."""

    beat: float = BEAT
    """Seconds between heartbeats."""

    status: bool = False
    """The admin command ``status`` counts the running jobs and the workers of all nodes, not only of this one."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All settings of a node."""

    name: NodeId = field(default_factory=lambda: default_node_name())  # noqa: PLW0108 - defined below
    store: StoreSettings = StoreSettings()
    listen: ListenSettings = ListenSettings()
    limits: LimitSettings = LimitSettings()
    keepalive: KeepaliveSettings = KeepaliveSettings()
    jobs: JobSettings = JobSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    fleet: FleetSettings = FleetSettings()
    log: LogSettings = LogSettings()  # noqa: RUF009 - it is frozen
    process: ProcessSettings = ProcessSettings()
    banner: str | None = None
    """The answer to ``version`` on the Gearman port; None: Mainspring's own version."""
    verbosity: str | None = None
    """The answer to ``verbose`` there, a log level in gearmand's words; None: the log's own level."""

    def check(self, *, tls_options: Sequence[str] = TLS_OPTIONS) -> None:
        """Raise SettingsError if settings contradict each other or would let any client connect.

        ``tls_options`` are the names of the TLS options for the message, the one for clients' certificates last.
        """
        if self.listen.gearman_http is not None and self.listen.gearman_http == self.listen.http:
            raise SettingsError(f"two faces cannot share the address {self.listen.http}: give one of them another port")
        if self.store.cluster is not None:
            if self.store.engine != "postgres":
                raise SettingsError(
                    f"--cluster needs a store on PostgreSQL, and {self.store.shown} is not one: leave it out"
                )
            if urlsplit(self.store.cluster).scheme != "zookeeper":
                raise SettingsError(f"{self.store.cluster!r} is not a cluster: write zookeeper://HOST:2181/CHROOT")
        if bool(self.listen.proxies) != bool(self.listen.proxy_rules):
            raise SettingsError("--trust-proxy and --proxy-role belong together: give both")
        if self.store.engine == "zookeeper":
            for address in self.listen.gearman:
                if address.namespace not in {None, DEFAULT}:
                    raise SettingsError(f"{address}: a store on ZooKeeper has the namespace {DEFAULT!r} alone")
        if self.listen.require_token and self.store.engine == "zookeeper":
            raise SettingsError("--require-token needs a store that keeps tokens: use one on SQLite or PostgreSQL")
        strategies.strategy(self.fleet.strategy)
        Lease(0.0, lease=self.fleet.lease, beat=self.fleet.beat)
        if self.fleet.weight < 0:
            raise SettingsError(f"the weight {self.fleet.weight} is negative: give 0 or more")
        if self.listen.insecure:
            return
        tls = self.listen.tls
        for address in self.addresses():
            if is_local(address) or (tls is not None and tls.client_ca is not None):
                continue
            if address == self.listen.http and tls is not None and self.store.engine != "zookeeper":
                continue  # callers have tokens, which TLS hides from others
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
    """Parse a store's URL.

    Raises SettingsError for an unknown scheme, and for a SQLite URL without a file.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        if url not in {"memory://", "memory:"}:
            raise SettingsError(f"{url!r} has a name, but a store in memory has none: write memory://")
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
        raise SettingsError(f"{url!r} is not a store: write sqlite:///{url} for that file, or memory://")
    raise SettingsError(
        f"{url!r} is a store that this version does not have: use sqlite:///FILE, postgresql://USER@HOST/DATABASE,"
        " zookeeper://HOST:2181/CHROOT, or memory:// to keep nothing"
    )


def default_node_name(host: str | None = None) -> NodeId:
    """Derive a node's name from the host's: characters that names may not hold become dashes."""
    short = (socket.gethostname() if host is None else host).partition(".")[0]
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", short).lstrip("._-")[:32]
    return node_id(cleaned or "node")

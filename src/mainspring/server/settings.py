"""The settings of a node: typed, frozen, grouped, read once.

`mainspring.cli` reads them from the command line, the environment and ``mainspring.toml``. `ServerSettings.check` holds
the rules between settings.

Listening addresses: ``HOST:PORT``, ``[V6]:PORT``, ``unix:PATH``, their namespaces and roles, and who reaches them.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote, urlsplit

from mainspring.access.caller import Role
from mainspring.access.proxy import USER_HEADER
from mainspring.errors import SettingsError, UsageError
from mainspring.ids import NodeId, node_id
from mainspring.namespaces import DEFAULT, check
from mainspring.nodes import strategies
from mainspring.nodes.model import BEAT, LEASE, LOOK, Lease
from mainspring.quantities import format_duration
from mainspring.server.log_writer import LogSettings
from mainspring.stores import DEFAULT_STORE, Engine, parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.proxy import Network, ProxyRule
    from mainspring.jobs.user_data import ArgumentRule

GEARMAN_PORT = 4730


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 is any free port."""

    host: str
    port: int
    namespace: str | None = None
    """Of a Gearman port: the namespace of all its connections; None: ``default``, or the one that a connection chooses."""
    role: Role = Role.DEVELOPER
    """Of a port with a namespace: the role of its connections there. Without a namespace, they may do everything."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + ("" if self.namespace is None else f"/{self.namespace}{_shown(self.role)}")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a socket in the file system; the permissions of its directory decide who may connect."""

    path: str
    namespace: str | None = None
    """As of `TcpAddress`."""
    role: Role = Role.DEVELOPER
    """As of `TcpAddress`."""

    def __str__(self) -> str:
        if self.namespace is None:
            return f"unix:{self.path}"
        return f"unix/{self.namespace}{_shown(self.role)}:{self.path}"


Address = TcpAddress | UnixAddress


def _shown(role: Role) -> str:
    return "" if role is Role.DEVELOPER else f"={role.name.lower()}"


def parse_address(text: str, *, default_port: int | None = GEARMAN_PORT) -> Address:
    """Parse one address. A missing port becomes ``default_port``, or is an error if that is None.

    Raises SettingsError for text that is not an address.
    """
    text = text.strip()
    if text.startswith("unix:"):
        if len(text) == len("unix:"):
            raise SettingsError("unix: lacks the path of the socket: write it as in unix:/run/mainspring.sock")
        return UnixAddress(text.removeprefix("unix:"))
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
    if match is None and text.count(":") > 1 and _is_ip(text):
        match = re.fullmatch(r"()(.*)()", text)  # an IPv6 address alone, without brackets or port
    if match is None or not (host := match[1] or match[2]):
        raise SettingsError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:4730, or unix:PATH")
    port = int(match[3]) if match[3] else default_port
    if port is None:
        raise SettingsError(f"{text!r} has no port: write HOST:PORT, such as {host}:8080")
    if port > 65535:
        raise SettingsError(f"{text!r} has a port above 65535")
    return TcpAddress(host, port)


def parse_addresses(text: str, *, default_port: int | None = GEARMAN_PORT) -> tuple[Address, ...]:
    """Parse a comma-separated list of addresses; ``none`` is the empty list."""
    if text.strip().lower() == "none":
        return ()
    addresses = tuple(parse_address(part, default_port=default_port) for part in text.split(",") if part.strip())
    if not addresses:
        raise SettingsError(f"{text!r} names no address: write HOST:PORT, or none")
    return addresses


def parse_gearman_addresses(text: str) -> tuple[Address, ...]:
    """Parse the addresses of Gearman ports: as `parse_addresses`, each with a namespace or without.

    It is ``HOST:PORT/NAMESPACE`` and ``unix/NAMESPACE:PATH``: behind a path, a namespace could be a part of the path. Its
    connections are developers there, with payloads; ``NAMESPACE=ROLE`` gives another role.
    """
    if "/" not in text:
        return parse_addresses(text)
    return tuple(_with_namespace(part.strip()) for part in text.split(",") if part.strip())


def _with_namespace(text: str) -> Address:
    if text.startswith("unix/"):
        namespace, colon, path = text.removeprefix("unix/").partition(":")
        if not colon or not path:
            raise SettingsError(f"{text!r} lacks the path of the socket: write it as in unix/team:/run/mainspring.sock")
        address: Address = UnixAddress(path)
    else:
        place, slash, namespace = text.partition("/")
        if not slash or text.startswith("unix:"):
            return parse_address(text)
        address = parse_address(place)
    namespace, equals, role = namespace.partition("=")
    if equals and role.strip().upper() not in Role.__members__:
        raise SettingsError(
            f"{text!r}: {role.strip()!r} is no role: write {', '.join(one.name.lower() for one in Role)}"
        )
    try:
        return replace(
            address,
            namespace=check(namespace.strip()),
            role=Role[role.strip().upper()] if equals else Role.DEVELOPER,
        )
    except UsageError as error:
        raise SettingsError(f"{text!r}: {error}") from None


def is_local(address: Address) -> bool:
    """Return whether only this machine can reach an address; a host name must resolve to loopback addresses only."""
    if isinstance(address, UnixAddress):
        return True
    if _is_ip(address.host):
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    try:
        found = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return address.host == "localhost"
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


DEFAULT_GEARMAN = TcpAddress("127.0.0.1", 4730)
DEFAULT_HTTP = TcpAddress("127.0.0.1", 8080)
"""The address for HTTP of ``mainspring run``."""

DAY = 86400.0
STOP_GRACE = 30.0
"""Seconds that a stop waits for running jobs, by default."""
MIB = 1 << 20

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
        return self.engine != "zookeeper"

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

    @property
    def bound(self) -> int | None:
        """Seconds after which the connection of a vanished peer ends; None if the operating system chooses it."""
        if self.idle is None or self.interval is None or self.count is None:
            return None
        return self.idle + self.interval * self.count


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

    event_retention: float = 7 * DAY
    """Seconds for which events are kept that somebody wanted."""

    event_limit: int = 1_000_000
    """The most events that are kept: the oldest ones are deleted before their time."""

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
class WebhookSettings:
    """Settings for webhooks."""

    sends: bool = True
    """Whether this node sends them."""

    allow: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks to which they may be sent although their addresses are not public."""

    url: str = ""
    """The address of the pages, without a slash at its end, for links in messages; empty: messages have none."""


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


SHORTEST_LOOK: Final = 0.1
"""Seconds."""


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

    look: float = LOOK
    """Seconds between looks at the other nodes, where the store lists their sessions; 0: leases alone decide."""

    rest: float = 0.0
    """Seconds for which a node without work reads nothing from its shared store, apart from its heartbeats; 0: no rest."""

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
    webhooks: WebhookSettings = WebhookSettings()
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
        if 0 < self.fleet.look < SHORTEST_LOOK:
            raise SettingsError(
                f"a look at the other nodes every {format_duration(self.fleet.look)} loads the database: give at least"
                f" {format_duration(SHORTEST_LOOK)}, or 0s for none"
            )
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
    """Parse a store's URL. Raises SettingsError, as `parse_url` does."""
    return StoreSettings(**parse_url(url)._asdict(), **options)  # type: ignore[arg-type]


def default_node_name(host: str | None = None) -> NodeId:
    """Derive a node's name from the host's: characters that names may not hold become dashes."""
    short = (socket.gethostname() if host is None else host).partition(".")[0]
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", short).lstrip("._-")[:32]
    return node_id(cleaned or "node")

"""``mainspring serve``: run a node. ``run`` has the same options of a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter

from mainspring.access.proxy import ProxyRule, parse_networks, parse_rules, parse_user_header
from mainspring.cli.node import run_node
from mainspring.cli.options import (
    DURATION_OPTION,
    OptionGroup,
    at_least,
    count,
    reading,
)
from mainspring.cli.process_options import (
    DEFAULT_LIMITS,
    DEFAULT_PROCESS,
    DEFAULT_RUN_LIMITS,
    DEFAULT_STOP,
    LimitOptions,
    ProcessOptions,
    RunLimitOptions,
    StopOptions,
    addresses_text,
    host_names,
    http_address,
    mode_text,
    path_prefix,
    socket_mode,
    strategy_name,
)
from mainspring.errors import SettingsError
from mainspring.ids import node_id
from mainspring.jobs.user_data import MAX_KEPT_ARGUMENTS, ArgumentRule
from mainspring.nodes.model import BEAT, LEASE, LOOK
from mainspring.quantities import format_duration, parse_duration, parse_size
from mainspring.server.settings import (
    DAY,
    DEFAULT_GEARMAN,
    DEFAULT_HTTP,
    STOP_GRACE,
    Address,
    FleetSettings,
    JobSettings,
    KeepaliveSettings,
    ListenSettings,
    ServerSettings,
    TlsSettings,
    WebhookSettings,
    default_node_name,
    parse_gearman_addresses,
    parse_store,
)
from mainspring.stores import DEFAULT_STORE

PORTS_GROUP = OptionGroup("Ports", sort_key=2)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The options of `serve` and `run` that decide who may connect."""

    trust_proxy: Annotated[
        tuple[Any, ...],
        PORTS_GROUP.several(
            "--trust-proxy",
            "The addresses of proxies that sign users in to the HTTP API by --proxy-user-header and X-Forwarded-Groups, several"
            " with commas. The proxies have to remove these headers from requests.",
            parse_networks,
            metavar="CIDR",
        ),
    ] = ()
    proxy_role: Annotated[
        tuple[ProxyRule, ...],
        PORTS_GROUP.several(
            "--proxy-role",
            "The roles of the users of these proxies, several with commas: ann@example.com=admin, *@example.com=viewer,"
            " group:ops=operator@NAMESPACE+payloads.",
            parse_rules,
            metavar="NAME=ROLE",
        ),
    ] = ()
    proxy_user_header: Annotated[
        str,
        PORTS_GROUP.option(
            "--proxy-user-header",
            "The only header that names the user of these proxies. Choose one whose value users cannot choose themselves.",
            metavar="NAME",
            converter=reading(parse_user_header),
            n_tokens=1,
        ),
    ] = "X-Forwarded-Email"
    socket_mode: Annotated[
        int | None,
        PORTS_GROUP.option(
            "--socket-mode",
            "The mode of Unix sockets: 0600, 0660, or 0666 for every user of this machine. Connections to them need no token.",
            metavar="MODE",
            converter=reading(socket_mode),
            n_tokens=1,
            show_default=mode_text,
        ),
    ] = None
    require_token: Annotated[
        bool,
        PORTS_GROUP.flag(
            "--require-token",
            "Demand a token of workers, clients and commands: MAINSPRING_TOKEN. Connections over a Unix socket and with client"
            " certificates need none; plain Gearman connections without either are refused.",
        ),
    ] = False
    allow_shutdown: Annotated[
        bool,
        PORTS_GROUP.flag(
            "--allow-shutdown",
            "Accept Gearman's command shutdown from every connection to a loopback address without a token. Without this option"
            " it needs a Unix socket.",
        ),
    ] = False


DEFAULT_ACCESS: Final = AccessOptions()

WEBHOOKS_GROUP = OptionGroup("Webhooks", sort_key=4.7)


def base_url(text: str) -> str:
    """Return the address of a node's pages, without a slash at its end. Raises SettingsError."""
    parts = urlsplit(text)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise SettingsError(f"{text!r} is not the address of pages: write it as in https://jobs.example.com/mainspring")
    return text.rstrip("/")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The options of `serve` and `run` about webhooks."""

    webhook_allow: Annotated[
        tuple[Any, ...],
        WEBHOOKS_GROUP.several(
            "--webhook-allow",
            "Networks to which webhooks may be sent although their addresses are not public, several with commas. Addresses"
            " at which clouds give credentials have to be named one by one. Set the same on all nodes.",
            parse_networks,
            metavar="CIDR",
        ),
    ] = ()
    webhook_url: Annotated[
        str,
        WEBHOOKS_GROUP.option(
            "--webhook-url",
            "The address under which people see the pages, for links in messages and the source of CloudEvents.",
            metavar="URL",
            converter=reading(base_url),
            n_tokens=1,
            show_default=False,
        ),
    ] = ""
    no_webhooks: Annotated[
        bool,
        WEBHOOKS_GROUP.flag("--no-webhooks", "Send no webhooks from this node; other nodes of its store do."),
    ] = False

    def settings(self) -> WebhookSettings:
        """Return the settings for webhooks."""
        return WebhookSettings(sends=not self.no_webhooks, allow=self.webhook_allow, url=self.webhook_url)


DEFAULT_WEBHOOKS: Final = WebhookOptions()

ARGUMENTS_GROUP = OptionGroup("Arguments of jobs", sort_key=4.5)


def kept_sizes(text: str) -> tuple[ArgumentRule, ...]:
    """Return rules from ``SIZE`` and ``FUNCTION=SIZE``, with commas between them. Raises SettingsError."""
    rules = []
    for functions, value in _entries(text):
        size = 0 if value == "0" else parse_size(value)
        if size > MAX_KEPT_ARGUMENTS:
            raise SettingsError(f"{value} is more than 1M: arguments of that size are not kept; store them elsewhere")
        rules.append(ArgumentRule(functions, size))
    return tuple(rules)


def redactions(text: str) -> tuple[ArgumentRule, ...]:
    """Return rules from ``KEY`` and ``FUNCTION=KEY``, with commas between them. Raises SettingsError."""
    return tuple(ArgumentRule(functions, key) for functions, key in _entries(text))


def _entries(text: str) -> list[tuple[str, str]]:
    entries = []
    for entry in text.split(","):
        functions, equals, value = entry.strip().rpartition("=")
        if not value or (equals and not functions):
            raise SettingsError(f"{text!r} has an empty entry: write VALUE or FUNCTION=VALUE, with commas between them")
        entries.append((functions or "*", value))
    return entries


def _shown(rules: tuple[ArgumentRule, ...]) -> str:
    return ",".join(f"{rule.functions}={rule.value}" for rule in rules) or "1K"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RememberingOptions:
    """The options of ``serve`` and ``run`` for the arguments of jobs."""

    keep: Annotated[
        tuple[ArgumentRule, ...],
        ARGUMENTS_GROUP.option(
            "--keep-arguments",
            "The largest arguments that are kept when a job has succeeded, for all functions or for those of a pattern, such as"
            " 1K,pay*=16K,sign_in=0. The last entry that matches counts.",
            converter=reading(kept_sizes),
            n_tokens=1,
            metavar="[FUNCTION=]SIZE,...",
            show_default=_shown,
        ),
    ] = ()
    redact: Annotated[
        tuple[ArgumentRule, ...],
        ARGUMENTS_GROUP.option(
            "--redact",
            "Keys whose values are replaced in arguments that are shown, and in those that are kept of succeeded jobs, such as"
            " *password*,pay*=card_number.",
            converter=reading(redactions),
            n_tokens=1,
            metavar="[FUNCTION=]KEY,...",
            show_default=False,
        ),
    ] = ()


DEFAULT_REMEMBERING = RememberingOptions()

NODE_GROUP = OptionGroup("Node", sort_key=1)
FLEET_GROUP = OptionGroup("Fleet", sort_key=3)
JOBS_GROUP = OptionGroup("Jobs", sort_key=4)


SHORTEST_LEASE = 1.0
"""Seconds. In less, a store on another machine may not confirm two heartbeats."""

STORE_HELP = (
    "The store for jobs: sqlite:///FILE, postgresql://USER@HOST/DATABASE, zookeeper://HOST:2181/CHROOT, or memory://, which"
    " keeps nothing on disk."
)
HTTP_HELP = "The address for the HTTP API, /login, /metrics, /healthz and /readyz, or none."


BackupBeforeMigrate = Annotated[
    bool,
    NODE_GROUP.option(
        "--backup-before-migrate",
        "Copy a SQLite store beside its file, as FILE.schema-N.backup, before its schema is updated.",
        negative="--no-backup-before-migrate",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of ``serve`` and ``run``."""

    store: Annotated[
        str,
        NODE_GROUP.option("--store", STORE_HELP, metavar="URL"),
    ] = DEFAULT_STORE
    name: Annotated[
        str | None,
        NODE_GROUP.option("--name", "The node's name, part of its jobs' handles; by default the host's name."),
    ] = None
    synchronous: Annotated[
        Literal["full", "normal"],
        NODE_GROUP.option(
            "--synchronous",
            "For a SQLite store. full: accepted jobs survive a power failure; normal: they survive the end of the process.",
        ),
    ] = "full"
    no_migrate: Annotated[
        bool,
        NODE_GROUP.flag(
            "--no-migrate", "Do not update the schema of a PostgreSQL or SQLite store; start only if it fits."
        ),
    ] = False
    backup_before_migrate: BackupBeforeMigrate = True
    no_schedules: Annotated[
        bool,
        NODE_GROUP.flag(
            "--no-schedules",
            "Fire no schedules on this node. It still runs schedules that are triggered by hand, and children of a run.",
        ),
    ] = False
    strategy: Annotated[
        str,
        FLEET_GROUP.option(
            "--strategy",
            "How the nodes of a store share its jobs: default, id_hash, least_count, weight, or FILE.py:NAME for a strategy"
            " that a file registers.",
            converter=reading(strategy_name),
        ),
    ] = "default"
    weight: Annotated[
        int, FLEET_GROUP.option("--weight", "This node's relative size, for the strategies id_hash and weight.")
    ] = 1
    lease: Annotated[
        float,
        FLEET_GROUP.option(
            "--lease",
            "After this time without a heartbeat of this node, other nodes take its jobs. Set the same on all nodes.",
            show_default=format_duration,
            **DURATION_OPTION
            | at_least(
                SHORTEST_LEASE,
                parse_duration,
                format_duration,
                "ends before a heartbeat is stored: give {least} or more",
            ),
        ),
    ] = LEASE
    look: Annotated[
        float,
        FLEET_GROUP.option(
            "--look",
            "For a PostgreSQL store: how often this node looks at the others. It finds one whose process has ended after three"
            " looks. With 0s, it waits for the end of the lease, and so do the others if this node dies.",
            show_default=format_duration,
            **DURATION_OPTION,
        ),
    ] = LOOK
    rest: Annotated[
        float,
        FLEET_GROUP.option(
            "--rest",
            "For a PostgreSQL store that shall sleep: how long this node, while it has no work, only sends its heartbeats, at a"
            " third of --lease. It finds what nobody notifies it of as late as that, and leases alone show deaths.",
            show_default=format_duration,
            **DURATION_OPTION,
        ),
    ] = 0.0
    cluster: Annotated[
        str | None,
        FLEET_GROUP.option(
            "--cluster",
            "For a PostgreSQL store: a ZooKeeper ensemble, zookeeper://HOST:2181/CHROOT, through which its nodes detect dead"
            " nodes and new jobs sooner.",
            metavar="URL",
        ),
    ] = None
    fleet_status: Annotated[
        bool,
        FLEET_GROUP.flag(
            "--fleet-status",
            "Let the admin command status count the running jobs and the workers of all nodes, not only of this one.",
        ),
    ] = False
    gearman: Annotated[
        tuple[Address, ...],
        PORTS_GROUP.option(
            "--gearman",
            "The address for Gearman clients and workers, several with commas, or none. Port 0 means any free port. Behind a"
            " slash, the namespace of all its connections: 127.0.0.1:4731/team, or unix/team:PATH for a socket. They are"
            " developers in it; team=viewer, team=operator and team=admin give other roles.",
            metavar="HOST:PORT",
            converter=reading(parse_gearman_addresses),
            n_tokens=1,
            json_list=False,  # an IPv6 address begins as a list in JSON does
            negative="",
            show_default=addresses_text,
        ),
    ] = (DEFAULT_GEARMAN,)
    http: Annotated[
        Address | None,
        PORTS_GROUP.option(
            "--http",
            HTTP_HELP,
            metavar="HOST:PORT",
            converter=reading(http_address),
            n_tokens=1,
            accepts_keys=False,
            show_default=False,
        ),
    ] = None
    http_host: Annotated[
        tuple[str, ...],
        PORTS_GROUP.several(
            "--http-host",
            "A name under which browsers and programs may address the HTTP port, several with commas. IP addresses, localhost and"
            " the name of this machine need none.",
            host_names,
            metavar="NAME",
        ),
    ] = ()
    http_prefix: Annotated[
        str,
        PORTS_GROUP.option(
            "--http-prefix",
            "The path under which a proxy shows the HTTP port, such as /mainspring.",
            metavar="PATH",
            converter=reading(path_prefix),
            show_default=False,
        ),
    ] = ""
    tls_cert: Annotated[Path | None, PORTS_GROUP.file("--tls-cert", "The server's certificate (PEM).")] = None
    tls_key: Annotated[Path | None, PORTS_GROUP.file("--tls-key", "The certificate's key (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None,
        PORTS_GROUP.file("--tls-client-ca", "Require client certificates of this authority (PEM)."),
    ] = None
    access: AccessOptions = DEFAULT_ACCESS
    insecure: Annotated[
        bool,
        PORTS_GROUP.flag(
            "--insecure", "Listen beyond loopback without TLS and client certificates: anybody can connect."
        ),
    ] = False
    retention: Annotated[
        float,
        JOBS_GROUP.duration("--retention", "How long ended jobs and their results are kept."),
    ] = DAY
    dead_retention: Annotated[
        float,
        JOBS_GROUP.duration("--dead-retention", "How long dead letters are kept: jobs whose attempts have all failed."),
    ] = 14 * DAY
    log_retention: Annotated[
        float,
        JOBS_GROUP.duration("--log-retention", "How long the lines are kept that tasks log."),
    ] = 7 * DAY
    audit_retention: Annotated[
        float,
        JOBS_GROUP.duration("--audit-retention", "How long acts are kept in the audit. Set the same on all nodes."),
    ] = 90 * DAY
    event_retention: Annotated[
        float,
        JOBS_GROUP.duration("--event-retention", "How long events are kept. Set the same on all nodes."),
    ] = 7 * DAY
    event_limit: Annotated[
        int,
        JOBS_GROUP.option(
            "--event-limit",
            "The most events that are kept; the oldest ones are deleted before their time. Set the same on all nodes.",
            **at_least(1, count, str, "is too few: give {least} or more"),
        ),
    ] = 1_000_000
    remembering: RememberingOptions = DEFAULT_REMEMBERING
    workflows: RunLimitOptions = DEFAULT_RUN_LIMITS
    webhooks: WebhookOptions = DEFAULT_WEBHOOKS
    job_retries: Annotated[
        int | None,
        JOBS_GROUP.option(
            "--job-retries",
            "How many deliveries a job without a retry policy may lose with its workers before it fails; by default 5 with"
            " workers of the extension, and no limit with plain Gearman workers.",
            **at_least(0, count, str, "is negative: give {least} or more, or leave it out"),
        ),
    ] = None
    round_robin: Annotated[
        bool, JOBS_GROUP.flag("--round-robin", "Give plain Gearman workers jobs of their functions in rotation.")
    ] = False
    exceptions: Annotated[
        bool,
        JOBS_GROUP.flag("--exceptions", "Send exceptions also to Gearman clients that did not ask for them."),
    ] = False
    limits: LimitOptions = DEFAULT_LIMITS
    process: ProcessOptions = DEFAULT_PROCESS

    def settings(self, grace: float = STOP_GRACE) -> ServerSettings:
        """Return the server's settings; ``grace``: the seconds of `StopOptions`. Raises SettingsError."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key belong together: give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key")
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = TlsSettings(self.tls_cert, self.tls_key, self.tls_client_ca)
        settings = ServerSettings(
            name=default_node_name() if self.name is None else node_id(self.name),
            store=parse_store(
                self.store,
                synchronous=self.synchronous,
                migrate=not self.no_migrate,
                backup_before_migrate=self.backup_before_migrate,
                cluster=self.cluster,
            ),
            listen=ListenSettings(
                gearman=self.gearman,
                http=self.http,
                http_is_default=self.http is DEFAULT_HTTP,
                http_hosts=self.http_host,
                http_prefix=self.http_prefix,
                tls=tls,
                insecure=self.insecure,
                require_token=self.access.require_token,
                allow_shutdown=self.access.allow_shutdown,
                socket_mode=self.access.socket_mode,
                proxies=self.access.trust_proxy,
                proxy_user_header=self.access.proxy_user_header.lower().encode(),
                proxy_rules=self.access.proxy_role,
            ),
            limits=self.limits.settings(),
            keepalive=KeepaliveSettings(enabled=self.limits.keepalive),
            fleet=FleetSettings(
                strategy=self.strategy,
                weight=self.weight,
                lease=self.lease,
                beat=self.lease * BEAT / LEASE,
                look=self.look,
                rest=self.rest,
                status=self.fleet_status,
            ),
            jobs=JobSettings(
                retention=self.retention,
                dead_retention=self.dead_retention,
                log_retention=self.log_retention,
                audit_retention=self.audit_retention,
                event_retention=self.event_retention,
                event_limit=self.event_limit,
                keep_arguments=self.remembering.keep,
                redact=self.remembering.redact,
                job_retries=self.job_retries,
                round_robin=self.round_robin,
                exceptions=self.exceptions,
                schedules=not self.no_schedules,
            ),
            workflows=self.workflows.settings(),
            webhooks=self.webhooks.settings(),
            log=self.process.log(),
            process=self.process.process(grace),
        )
        settings.check()
        return settings


DEFAULT_NODE = NodeOptions()


def serve(*, node: NodeOptions = DEFAULT_NODE, stop: StopOptions = DEFAULT_STOP) -> int:
    """Run a server.

    When a port is ready, the server prints a line such as "listening gearman 127.0.0.1:4730". It writes its log to
    standard error.

    EXAMPLES
      mainspring serve
      mainspring serve --store sqlite:////var/lib/mainspring/jobs.db --gearman 127.0.0.1:4730 --http 127.0.0.1:8080
      mainspring serve --store memory:// --gearman 127.0.0.1:0
      mainspring serve --gearman 10.0.0.5:4730 --tls-cert node.pem --tls-key node.key --tls-client-ca ca.pem

    SIGNALS
      TERM, INT   stop: wait up to --grace for running jobs, then release them
      second INT  stop now: release running jobs at once
      USR1        stop as soon as all running jobs have ended
      HUP         reopen the log file and reload the TLS files

    EXIT CODES
      0 stopped by a signal, 1 failed to start or to continue, 2 wrong usage
    """
    return run_node(node.settings(stop.seconds))

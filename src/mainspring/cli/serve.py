"""``mainspring serve``: run a node."""

from __future__ import annotations

from mainspring.cli.node import run_node
from mainspring.cli.node_options import NodeOptions
from mainspring.cli.stop_options import DEFAULT_STOP, StopOptions

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

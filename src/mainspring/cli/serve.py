"""``mainspring serve``: be a node."""

from __future__ import annotations

from mainspring.cli.node import run_node
from mainspring.cli.node_options import NodeOptions
from mainspring.cli.stop_options import USUAL_STOP, StopOptions

USUAL = NodeOptions()


def serve(*, node: NodeOptions = USUAL, stop: StopOptions = USUAL_STOP) -> int:
    """Run a server.

    Prints one line for each port when it is ready, such as "listening gearman 127.0.0.1:4730". Logs go to standard
    error.

    EXAMPLES
      mainspring serve
      mainspring serve --store sqlite:////var/lib/mainspring/jobs.db --gearman 127.0.0.1:4730 --http 127.0.0.1:8080
      mainspring serve --store memory:// --gearman 127.0.0.1:0
      mainspring serve --gearman 10.0.0.5:4730 --tls-cert node.pem --tls-key node.key --tls-client-ca ca.pem

    SIGNALS
      TERM, INT   stop: running jobs get the time of --grace, then they are handed back
      INT again   stop now: running jobs are handed back at once
      USR1        stop once all running jobs have ended
      HUP         open the log again and read the TLS files again

    EXIT CODES
      0 stopped by a signal, 1 it could not start or go on, 2 wrong usage
    """
    return run_node(node.settings(stop.seconds))

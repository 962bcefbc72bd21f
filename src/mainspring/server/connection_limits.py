"""Limits of connections for each port: the ports divide the process's descriptors, so a flood of one leaves the others theirs.

Each MAX_HTTP port gets at most an eighth, and so do TLS handshakes on Gearman's ports. Gearman's connections get the rest, except
for the files that the process needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.server.process import open_files, room_for_connections

if TYPE_CHECKING:
    from mainspring.server.settings import ServerSettings

MAX_HTTP: Final = 1024
"""Connections of the HTTP port."""
MAX_GEARMAN_HTTP: Final = 1024
"""Connections of gearmand's MAX_HTTP protocol, whose requests last as long as their jobs."""
MAX_HANDSHAKES: Final = 256
"""TLS handshakes under way on Gearman's ports."""
MIN_CONNECTIONS: Final = 8
"""Connections that each socket gets even if the limit of open files is low."""


class ConnectionLimits(NamedTuple):
    """Maximum of simultaneous connections for each port; 0 for a port that the node does not have."""

    http: int
    gearman_http: int
    handshakes: int
    gearman: int
    """0: no limit."""


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    """Return the limits of a node's ports. Call it when the node's other files are open: it counts open descriptors."""
    listen = settings.listen
    each = 1 if listen.tls is None else 2  # a handshake keeps a second descriptor, to send the reason if it fails
    allowed = open_files()

    def share(most: int, *, wanted: bool) -> int:
        if not wanted:
            return 0
        return most if allowed is None else max(MIN_CONNECTIONS, min(most, allowed // 8 // each))

    http = share(MAX_HTTP, wanted=listen.http is not None)
    gearman_http = share(MAX_GEARMAN_HTTP, wanted=listen.gearman_http is not None)
    handshakes = share(MAX_HANDSHAKES, wanted=listen.tls is not None)
    room = room_for_connections(each * (http + gearman_http + handshakes))
    most = settings.limits.max_connections
    return ConnectionLimits(http, gearman_http, handshakes, min(most, room) if most and room else most or room)

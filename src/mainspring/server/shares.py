"""How the descriptors that a process may have are shared among its ports: one that is flooded takes none of another's.

Each port beside Gearman's gets an eighth at most, and so do TLS handshakes on Gearman's. The rest, without the files that the
process needs itself, is for Gearman's connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.server.process import open_files, room_for_connections

if TYPE_CHECKING:
    from mainspring.server.settings import ServerSettings

HTTP: Final = 256
"""Connections for metrics and health checks, at most."""
GEARMAN_HTTP: Final = 1024
"""The same for gearmand's HTTP protocol, whose requests last as long as their jobs."""
HANDSHAKES: Final = 256
"""TLS handshakes on Gearman's ports, at most."""
SMALLEST: Final = 8
"""Connections of each socket, however few files may be open."""


class Shares(NamedTuple):
    """Connections at a time; 0 where there is no such port."""

    http: int
    gearman_http: int
    handshakes: int
    gearman: int
    """0: as many as there may be."""


def shares(settings: ServerSettings) -> Shares:
    """Return how many connections each port of a node may have; to be asked when its other files are open."""
    listen = settings.listen
    each = 1 if listen.tls is None else 2  # a handshake keeps a second descriptor, to tell the client why it has failed
    allowed = open_files()

    def share(most: int, *, wanted: bool) -> int:
        if not wanted:
            return 0
        return most if allowed is None else max(SMALLEST, min(most, allowed // 8 // each))

    http = share(HTTP, wanted=listen.http is not None)
    gearman_http = share(GEARMAN_HTTP, wanted=listen.gearman_http is not None)
    handshakes = share(HANDSHAKES, wanted=listen.tls is not None)
    room = room_for_connections(each * (http + gearman_http + handshakes))
    most = settings.limits.max_connections
    return Shares(http, gearman_http, handshakes, min(most, room) if most and room else most or room)

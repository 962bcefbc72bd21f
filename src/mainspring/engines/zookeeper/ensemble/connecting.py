"""kazoo's client as it is used here: how long it may take to reach a member, and what it says too little of.

It has no hooks for the beginning of a connection and for the order of replies, so two of its private functions are wrapped: its
version is fixed to the series that this was tested with.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from mainspring.engines.zookeeper.ensemble.wiring import Handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.address import Address

log = structlog.get_logger("mainspring.zookeeper")


def make_client(
    address: Address,
    session_timeout: float,
    changed: Callable[[object], None],
    agreed: Callable[[Any, float], None],
) -> Any:
    """Return a client that is not started.

    ``changed`` is called, in its thread, when its state has, ``agreed`` with the client and the seconds of the session's
    time-out that a member has agreed to.
    """
    attempt = min(
        max(session_timeout / 4, 0.25), 2.0
    )  # a member must be reached within it, and answer to our first word
    handler = Handler(attempt, session_timeout * 2 / 3)
    client = KazooClient(
        hosts=",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in address.hosts),
        timeout=session_timeout,
        handler=handler,
        auth_data=[] if address.user is None else [("digest", f"{address.user}:{address.password}")],
        read_only=False,  # one that is takes a session that it has not heard of for one that has ended
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func),
        logger=_quiet(),
    )
    client.add_listener(changed)
    connection = client._connection  # noqa: SLF001
    connection._invoke = _watched(client, connection._invoke, attempt, agreed)  # noqa: SLF001
    connection._read_response = _in_order(client, connection._read_response)  # noqa: SLF001
    return client


def _watched(
    client: Any, invoke: Callable[..., Any], attempt: float, agreed: Callable[[Any, float], None]
) -> Callable[..., Any]:
    """Return what looks at the beginning of a connection."""

    def watching(*arguments: Any, **more: Any) -> Any:
        if not isinstance(arguments[1], Connect):
            return invoke(*arguments, **more)
        timeout, *rest = arguments
        try:
            # A server that has just started may take a connection and forget it. To wait as long as a session lives would end it.
            result = invoke(min(timeout, attempt), *rest, **more)
        except ConnectionDropped:
            address = client._connection._socket.address  # noqa: SLF001
            if client.handler.is_read_only(address):
                member = f"{address[0]}:{address[1]}"
                log.warning(
                    "a member of the ensemble is read only, without a majority: it counts as away", member=member
                )
            raise
        seconds = result[0].time_out / 1000
        if seconds > 0:
            agreed(client, seconds)
        return result

    return watching


def _in_order(client: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return what reads replies, and gives the connection up where one is missing.

    A member whose leader goes may drop a request and answer the next one. kazoo's thread would end over it, for good, and the
    request that was dropped would be held for one that was refused; so nobody knows what became of it, as of any other.
    """

    def read_response(header: Any, *packet: Any) -> Any:
        under_way = client._pending  # noqa: SLF001
        if not under_way or under_way[0][2] != header.xid:
            raise ConnectionDropped("a reply is missing")
        return read(header, *packet)

    return read_response


def _quiet() -> logging.Logger:
    logger = logging.getLogger("mainspring.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger

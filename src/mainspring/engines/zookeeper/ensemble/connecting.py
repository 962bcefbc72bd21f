"""kazoo's client, with limits on the time to reach a member, a check of the order of replies, and a report of its thread's end.

kazoo has no hooks for these, so three of its functions are wrapped. Its version is therefore fixed to the series that this was
tested with. The check of the members' versions, at the end, does without it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from mainspring.engines.zookeeper.ensemble.wiring import Handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.address import Address

MIN_SILENCE: Final = 1.0
"""The least seconds for which a member may owe an answer, however short the sessions are: a busy machine takes as long."""

KEEPS_WRITES: Final = (3, 9, 4)
"""The first version known to keep acknowledged writes when a leader is killed."""
VERSION_TIMEOUT: Final = 5.0
"""Seconds that a member has to report its version."""

log = structlog.get_logger("mainspring.zookeeper")


def make_client(
    address: Address,
    session_timeout: float,
    changed: Callable[[object], None],
    agreed: Callable[[Any, float], None],
    ended: Callable[[Any, Exception | None], None],
) -> Any:
    """Return a client that is not started.

    In the client's thread, ``changed`` is called when its state changes, ``agreed`` with the client and the session time-out in
    seconds that a member has granted, and ``ended`` with the client when the thread ends, with the error that has ended it.
    """
    attempt = min(max(session_timeout / 4, 0.25), 2.0)  # to reach a member, and to get its first answer
    handler = Handler(attempt, max(session_timeout / 3, MIN_SILENCE))
    client = KazooClient(
        hosts=",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in address.hosts),
        timeout=session_timeout,
        handler=handler,
        auth_data=[] if address.user is None else [("digest", f"{address.user}:{address.password}")],
        read_only=False,  # a read-only member would report a session it does not have yet as ended
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func),
        logger=_quiet(),
    )
    client.add_listener(changed)
    connection = client._connection  # noqa: SLF001
    connection._invoke = _with_timeout(client, connection._invoke, attempt, agreed)  # noqa: SLF001
    connection._read_response = _check_order(client, connection._read_response)  # noqa: SLF001
    connection.zk_loop = _with_end(client, connection.zk_loop, ended)
    return client


def _with_end(
    client: Any, loop: Callable[[], None], ended: Callable[[Any, Exception | None], None]
) -> Callable[[], None]:
    """Return the function of kazoo's thread with a report of its end: kazoo itself would stay without a thread, and silent."""

    def run() -> None:
        failure = None
        try:
            loop()
        except Exception as error:  # noqa: BLE001 - it is reported
            failure = error
        ended(client, failure)

    return run


def _with_timeout(
    client: Any, invoke: Callable[..., Any], attempt: float, agreed: Callable[[Any, float], None]
) -> Callable[..., Any]:
    """Return ``invoke`` with a limit on the time of the first exchange."""

    def limited(*arguments: Any, **more: Any) -> Any:
        if not isinstance(arguments[1], Connect):
            return invoke(*arguments, **more)
        timeout, *rest = arguments
        try:
            # A server that has just started may accept a connection and never answer. A wait of a whole session time-out
            # would end the session.
            result = invoke(min(timeout, attempt), *rest, **more)
        except ConnectionDropped:
            address = client._connection._socket.address  # noqa: SLF001
            if client.handler.is_read_only(address):
                member = f"{address[0]}:{address[1]}"
                log.warning(
                    "a member of the ensemble has no majority and is read only: it is treated as unreachable",
                    member=member,
                )
            raise
        seconds = result[0].time_out / 1000
        if seconds > 0:
            agreed(client, seconds)
        return result

    return limited


def _check_order(client: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``read`` with a check: a missing reply drops the connection.

    A member that loses its leader may drop a request and answer the next one. kazoo's thread would end for good, and the dropped
    request would count as refused. With the connection dropped, its outcome is unknown, as that of all requests in flight.
    """

    def read_response(header: Any, *packet: Any) -> Any:
        in_flight = client._pending  # noqa: SLF001
        if not in_flight or in_flight[0][2] != header.xid:
            raise ConnectionDropped("a reply is missing")
        return read(header, *packet)

    return read_response


def _quiet() -> logging.Logger:
    logger = logging.getLogger("mainspring.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger


async def check_versions(address: Address) -> None:
    """Log a warning if a member has a version that may lose acknowledged writes."""
    members = [f"{host}:{port}" for host, port in address.hosts]
    versions = await asyncio.gather(*(_version(host, port) for host, port in address.hosts))
    reported = {member: version for member, version in zip(members, versions, strict=True) if version is not None}
    old = {member: ".".join(map(str, version)) for member, version in reported.items() if version < KEEPS_WRITES}
    if old:
        log.warning(
            "a member of the ensemble has a version of ZooKeeper that may lose acknowledged jobs when a leader is killed: "
            "update it to 3.9.4 or later",
            versions=old,
        )
    if unknown := [member for member in members if member not in reported]:
        log.info(
            "the versions of some members are not known: they cannot be reached, or their 4lw.commands.whitelist lacks srvr",
            members=unknown,
        )


async def _version(host: str, port: int) -> tuple[int, ...] | None:
    """Return a member's version; None if it does not report one."""
    try:
        async with asyncio.timeout(VERSION_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"srvr")
                answer = await reader.read(256)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    found = re.match(rb"Zookeeper version: (\d+)\.(\d+)\.(\d+)", answer)
    return None if found is None else tuple(map(int, found.groups()))

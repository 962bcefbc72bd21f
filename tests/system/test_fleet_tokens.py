"""Credentials that end at one node of a fleet end at the others within 3 seconds, with their streams and connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interop.packets import Kind

from .event_source import EventSource
from .fleet import Fleet
from .http_port import ask, sign_in

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import FleetNode, ForkServer
    from .stores import Store

WHOAMI = "/api/v1/whoami"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Streams:
    """Streams about one job at one node."""

    def __init__(self, stack: ExitStack, node: FleetNode, handle: bytes) -> None:
        self._stack = stack
        self._node = node
        self._job = f"/api/v1/namespaces/default/jobs/{handle.decode()}"

    def open(self, path: str, **credential: str) -> EventSource:
        """Return a stream that has begun."""
        return self._stack.enter_context(EventSource([self._node.http], self._job + path, credential)).begin()


def create(admin: ExtensionPeer, name: str, role: str = "viewer") -> tuple[str, str]:
    """Return the id and the secret of a new token."""
    grant = {"role": role, "namespace": "*", "payloads": True}
    token = admin.call("tokens.create", name=name, grants=[grant])
    return token["id"], token["token"]


def test_a_token_that_one_node_revokes_ends_at_another(
    fork_server: ForkServer, tmp_path: Path, store: Store, stack: ExitStack
) -> None:
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, store.url, "--http", "127.0.0.1:0"))
    first, second = fleet.start_many("n1", "n2")
    admin = stack.enter_context(first.extended())
    _, managers = create(admin, "manager", "admin")
    stolen_id, stolen = create(admin, "stolen")
    _, kept = create(admin, "kept")
    handle = stack.enter_context(second.extended()).submit_new(b"f")
    _, cookie = sign_in(second.http, token=stolen)
    _, left = sign_in(second.http, token=kept)
    streams = Streams(stack, second, handle)
    to_end = [
        streams.open("/stream", **bearer(stolen)),
        streams.open("/stream", Cookie=cookie),
        streams.open("/logs/stream", **bearer(stolen)),
        streams.open("/logs/stream", Cookie=cookie),
    ]
    of_session, going_on = streams.open("/stream", Cookie=left), streams.open("/stream", **bearer(kept))
    connection = stack.enter_context(second.peer())
    connection.send(Kind.OPTION_REQ, b"mainspring/2 " + stolen.encode())
    connection.expect(Kind.OPTION_RES)
    assert connection.call("whoami")["name"] == "stolen"

    assert ask(first.http, "DELETE", f"/api/v1/tokens/{stolen_id}", **bearer(managers))[0] == 200
    assert ask(first.http, "GET", WHOAMI, **bearer(stolen))[0] == 401, "at once at this node"
    assert ask(first.http, "POST", "/logout", Cookie=left, Sec_Fetch_Site="same-origin")[0] == 303

    for stream in (*to_end, of_session):
        assert {event.data["state"] for event in stream.rest()} <= {"pending"}
        assert stream.connections == 1, "the node has ended it, and has not broken it off"
    assert connection.socket.recv(1) == b"", "the connection is closed"
    for credential in (bearer(stolen), {"Cookie": cookie}, {"Cookie": left}):
        assert ask(second.http, "GET", WHOAMI, **credential)[0] == 401
    assert ask(second.http, "GET", WHOAMI, **bearer(kept))[0] == 200
    stack.enter_context(second.worker(b"f")).job()
    shown = [going_on.next(), going_on.next()]
    assert [event and event.data["state"] for event in shown] == ["pending", "running"], "others' streams go on"

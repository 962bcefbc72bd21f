"""The namespace of clients and workers: from an argument or the environment, and in the second packet of a connection."""

from __future__ import annotations

from mainspring import namespaces
from mainspring.client import environment
from mainspring.client.environment import NAMESPACE_VARIABLE
from mainspring.errors import ServerError
from mainspring.wire.gearman import packets
from mainspring.wire.gearman.packets import NAMESPACE_OPTION, Type


def namespace_or_default(given: str | None) -> str:
    """Return a namespace; if it is None or empty, MAINSPRING_NAMESPACE; if that is empty, ``default``.

    Raises UsageError for an invalid one.
    """
    return namespaces.check(given or environment.variable(NAMESPACE_VARIABLE) or namespaces.DEFAULT)


def namespace_request(namespace: str) -> bytes:
    """Return the packet that chooses a namespace for all names on a connection."""
    return packets.request(Type.OPTION_REQ, NAMESPACE_OPTION + namespace.encode())


def namespace_error(code: str, message: str, namespace: str) -> ServerError:
    """Return the error for a server that refuses a namespace."""
    if code == "UNKNOWN_OPTION":
        return ServerError(f"the server has no namespaces, and the namespace is {namespace!r}: update the server")
    return ServerError(f"the server refuses the namespace {namespace!r}: {message}")

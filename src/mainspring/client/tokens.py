"""The token of clients and workers: from the environment, and in the first packet of each connection."""

from __future__ import annotations

from mainspring.client import environment
from mainspring.client.environment import TOKEN_VARIABLE
from mainspring.wire.gearman import packets
from mainspring.wire.gearman.packets import EXTENSION, Type


def token_of_environment() -> str | None:
    """Return the token for servers that demand one; None if there is none."""
    return environment.variable(TOKEN_VARIABLE)


def extension_request(token: str | None) -> bytes:
    """Return the first packet of a connection: it requests the extension, and signs in with a token if there is one."""
    return packets.request(Type.OPTION_REQ, EXTENSION if token is None else EXTENSION + b" " + token.encode())


def is_unaware_of_tokens(code: str, token: str | None) -> bool:
    """Return whether a server of an earlier version has refused a token: it takes the request without one."""
    return token is not None and code == "UNKNOWN_OPTION"

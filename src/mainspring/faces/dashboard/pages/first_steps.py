"""Commands for a new installation: they work as they are pasted, on the machine of the browser or of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.api.nodes import NodeInfo
from mainspring.faces.dashboard.calls import ROOT, Items

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Visit

DEFAULT: Final = "127.0.0.1:4730"
"""The server that commands use without an option."""


async def server_option(visit: Visit) -> str:
    """Return the option for a command that names a live node's server, with a space before it; empty for the default."""
    nodes = await visit.optional(visit.calls.get(Items[NodeInfo], f"{ROOT}/nodes"))
    addresses = [one.address for one in nodes.items if one.state == "live"] if isinstance(nodes, Items) else []
    address = next((one for one in addresses if one), DEFAULT)
    namespace = "" if visit.namespace == "default" else f" --namespace {visit.namespace}"
    return ("" if address == DEFAULT else f" --server {address}") + namespace

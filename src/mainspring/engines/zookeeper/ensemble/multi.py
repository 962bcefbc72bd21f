"""A multi as kazoo sends it: bound to one session, with its paths unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionDropped
from kazoo.protocol import serialization

from mainspring.engines.zookeeper.tree import Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.tree import Change


class Multi(serialization.Transaction):  # type: ignore[misc]
    """All changes or none.

    A request that kazoo got before it noticed the end of the session would go out in the next session. So kazoo's thread calls
    ``is_due`` directly before it sends; if that returns False, the connection is dropped instead.
    """

    is_due: Callable[[], bool]

    def serialize(self) -> Any:
        """Return the packet's content."""
        if not self.is_due():
            raise ConnectionDropped("a request of a session that has ended")
        return super().serialize()


def multi(changes: Sequence[Change], prefix: str, access: Sequence[Any], is_due: Callable[[], bool]) -> Multi:
    """Return the request for changes whose paths get a prefix; ``access`` is for the nodes that are created."""
    operations: list[Any] = []
    for change in changes:
        path = prefix + change.path
        if isinstance(change, Create):
            flags = change.ephemeral + 2 * change.sequence
            operations.append(serialization.Create(path, change.data, access, flags))
            continue
        if change.path == "/":
            path = prefix or "/"
        if isinstance(change, Write):
            operations.append(serialization.SetData(path, change.data, change.version))
        elif isinstance(change, Delete):
            operations.append(serialization.Delete(path, change.version))
        else:
            operations.append(serialization.CheckVersion(path, change.version))
    request = Multi(operations)
    request.is_due = is_due
    return request


def size(changes: Sequence[Change], prefix: str) -> int:
    """Return the number of bytes that changes have in a packet, but for the access lists of the nodes that they create."""
    total = 0
    for change in changes:
        total += len(prefix) + len(change.path) + 17
        if isinstance(change, (Create, Write)):
            total += len(change.data) + 4
    return total

"""Large payloads of events, which stores keep apart from histories.

A payload of more than `LARGE` bytes is a row of its own. Its event has a stub in its place, with size and digest, so a node that
reads states, lists and alarms does not read it. Readers of events put it back: workers, pages of histories and reruns get whole
events. A run in the memory of a node has stubs.

A payload that begins as a stub does is kept apart whatever its size, so nothing else is ever taken for a stub.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from mainspring.errors import StoreError
from mainspring.workflows import history
from mainspring.workflows.history import KINDS, MarkerName, is_hold_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.workflows.history import Event

LARGE: Final = 16 * 1024
"""Bytes of the largest payload that is part of its event."""
STUB: Final = b"\x00mainspring-apart-1\x00"
_SIZE: Final = 8
_DIGEST: Final = 16
_LENGTH: Final = len(STUB) + _SIZE + _DIGEST
_ATTRIBUTES: Final = ("input", "result", "details")
_PLACES: Final = {kind: name for kind in KINDS.values() for name in _ATTRIBUTES if name in kind.__struct_fields__}
"""The attribute with the payload, by the kind of the event."""
_READ_BY_NODES: Final = frozenset({MarkerName.HOLD, MarkerName.RELEASE, MarkerName.WITHDRAW})


class Apart(NamedTuple):
    """A payload that is kept apart from its event."""

    run: int
    event: int
    data: bytes


class Stub(NamedTuple):
    """The size and digest of a payload, which its event has in place of it."""

    size: int
    digest: bytes


def split(run: int, events: Sequence[Event]) -> tuple[list[Event], list[Apart]]:
    """Return events with stubs in place of large payloads, and these payloads."""
    stored: list[Event] = []
    apart: list[Apart] = []
    for event in events:
        name = _PLACES.get(type(event))
        payload = b"" if name is None else getattr(event, name)
        if (len(payload) <= LARGE and not payload.startswith(STUB)) or _is_read_by_nodes(event):
            stored.append(event)
            continue
        assert name is not None
        data = bytes(payload)
        apart.append(Apart(run, event.id, data))
        stored.append(replace(event, **{name: _stub(data)}))
    return stored, apart


def _is_read_by_nodes(event: Any) -> bool:
    if isinstance(event, history.MarkerRecorded):
        return event.native and event.name in _READ_BY_NODES
    return isinstance(event, history.WorkflowExecutionSignaled) and is_hold_answer(event)


def _stub(data: bytes) -> bytes:
    return STUB + len(data).to_bytes(_SIZE) + blake2b(data, digest_size=_DIGEST).digest()


def may_split(block: bytes) -> bool:
    """Return whether a block of events may have payloads to keep apart. Blocks of small ones cost no look at their events."""
    return len(block) > LARGE or STUB in block


def stub_of(event: Event) -> Stub | None:
    """Return what is known of a payload that is kept apart from an event; None for other events."""
    name = _PLACES.get(type(event))
    payload = b"" if name is None else getattr(event, name)
    if not payload.startswith(STUB) or len(payload) != _LENGTH or _is_read_by_nodes(event):
        return None
    size = int.from_bytes(payload[len(STUB) : len(STUB) + _SIZE])
    return Stub(size, payload[-_DIGEST:])


def stubs_in(events: Iterable[Event]) -> dict[int, Stub]:
    """Return the stubs of events, by the numbers of the events."""
    return {event.id: stub for event in events if (stub := stub_of(event)) is not None}


def joined(events: Iterable[Event], apart: Mapping[int, bytes]) -> list[Event]:
    """Return events with their payloads in place of stubs. Raises StoreError if the store has not what an event says."""
    whole: list[Event] = []
    for event in events:
        stub = stub_of(event)
        if stub is None:
            whole.append(event)
            continue
        data = apart.get(event.id)
        if data is None or (len(data), blake2b(data, digest_size=_DIGEST).digest()) != stub:
            found = "is missing" if data is None else "is not as it was stored"
            raise StoreError(f"the payload of event {event.id} {found}: {stub.size:,} bytes that are kept apart")
        whole.append(replace(event, **{_PLACES[type(event)]: data}))
    return whole

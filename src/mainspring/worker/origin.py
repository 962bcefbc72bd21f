"""The origin of a worker's job: all that a report about the job needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key


class Origin(NamedTuple):
    """The connection and the delivery of a job."""

    link: Link
    key: Key

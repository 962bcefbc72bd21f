"""The choice of a version for new runs.

Of the versions that have connected workers, new runs get the one that was registered first the most recently. So a rolling deploy
moves new runs to the new version with its first worker, and workers of the old version that reconnect do not take them back.

The store has for each version when it was first and last seen. The second is written once a minute while workers with the version
are connected. A version that was last seen long before another one has no workers any more. The node writes that a version is
gone ten seconds after its last worker has left, if another one has workers (`definitions`); after a crash of the node, the times
say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from mainspring.workflows.model import Definition

SEEN_INTERVAL: Final = 60.0
"""Seconds between two writes of the time at which a connected version was last seen."""
LATELY_US: Final = 100_000_000
"""A version that was last seen this long before another one counts as gone. It is more than the interval, with time for a
reconnection, and at most two minutes pass until it is noticed."""


def version_for_new_runs(definitions: Collection[Definition]) -> Definition | None:
    """Return the version that a run without a stated one gets; None if there are no versions."""
    if not definitions:
        return None
    latest_us = max(one.last_seen_us for one in definitions)
    connected = (one for one in definitions if latest_us - one.last_seen_us < LATELY_US)
    return max(connected, key=lambda one: (one.first_seen_us, len(one.version), one.version))

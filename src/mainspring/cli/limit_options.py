"""The options of a node for what its peers can make it use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from mainspring.cli.node_values import size_text
from mainspring.cli.options import DURATION_OPTION, SIZE_OPTION, at_least, count, option
from mainspring.quantities import format_duration, parse_duration, parse_size
from mainspring.server.settings import MIB, LimitSettings

LIMITS_GROUP = Group("Limits", sort_key=6)

SMALLEST_PACKET = 8 << 10
"""Bytes, the most that the arguments before a payload may have: a smaller limit could refuse a job without a payload."""

SHORTEST_SILENCE = 1.0
"""Seconds. A working client may pause this long between two packets."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The options of ``serve`` and ``run`` that limit packets, connections and functions."""

    max_packet: Annotated[
        int,
        option(
            "--max-packet",
            "The largest packet.",
            group=LIMITS_GROUP,
            show_default=size_text,
            **SIZE_OPTION
            | at_least(SMALLEST_PACKET, parse_size, size_text, "is too small for a job: give {least} or more"),
        ),
    ] = 64 * MIB
    max_connections: Annotated[
        int,
        option(
            "--max-connections",
            "The most connections at a time; 0: as many as the limit of open files allows.",
            group=LIMITS_GROUP,
            **at_least(
                0, count, str, "is negative: give 1 or more, or 0 for as many as the limit of open files allows"
            ),
        ),
    ] = 0
    max_functions: Annotated[
        int,
        option(
            "--max-functions",
            "The most functions with jobs or workers; 0: any number.",
            group=LIMITS_GROUP,
            **at_least(0, count, str, "is negative: give 1 or more, or 0 for any number"),
        ),
    ] = 100_000
    idle_timeout: Annotated[
        float | None,
        option(
            "--idle-timeout",
            "Close connections of clients that have been silent for this time; by default never.",
            group=LIMITS_GROUP,
            **DURATION_OPTION
            | at_least(
                SHORTEST_SILENCE,
                parse_duration,
                format_duration,
                "would disconnect working clients: give {least} or more, or leave it out for never",
            ),
        ),
    ] = None
    keepalive: Annotated[
        bool, option("--keepalive", "Probe silent connections to detect peers that are gone.", group=LIMITS_GROUP)
    ] = True

    def settings(self) -> LimitSettings:
        """Return the settings of a node."""
        return LimitSettings(
            max_packet=self.max_packet,
            max_connections=self.max_connections,
            max_functions=self.max_functions,
            idle_timeout=self.idle_timeout,
        )


DEFAULT_LIMITS: Final = LimitOptions()

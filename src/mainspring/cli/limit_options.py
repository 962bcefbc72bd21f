"""The options of a node for limits: of what its peers can make it use, and of runs of workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from mainspring.cli.options import DURATION_OPTION, SIZE_OPTION, at_least, count, option, within
from mainspring.cli.process_options import size_text
from mainspring.quantities import format_duration, parse_duration, parse_size
from mainspring.server.settings import DAY, MIB, LimitSettings, WorkflowSettings

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

WORKFLOWS_GROUP = Group("Workflows", sort_key=5)

SHORTEST_RUN = 1.0
LONGEST_RUN = 366 * DAY
"""Seconds; the limit of timers."""

SHORTEST_HISTORY = 2_000
"""Events. The last 1,000 take no signals."""
LONGEST_HISTORY = 1_000_000
"""Events. Workers keep all of them in memory, and read them again after a restart."""

MOST_OPEN = 10_000
"""The number of commands that one report of a worker may have."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimitOptions:
    """The options of ``serve`` and ``run`` for runs of workflows."""

    retention: Annotated[
        float,
        option(
            "--workflow-retention",
            "How long closed runs of workflows are kept, with their histories.",
            group=WORKFLOWS_GROUP,
            show_default=format_duration,
            **DURATION_OPTION,
        ),
    ] = 14 * DAY
    timeout: Annotated[
        float,
        option(
            "--workflow-timeout",
            "The longest time that a run may last. Runs without a time-out of their own get this one.",
            group=WORKFLOWS_GROUP,
            show_default=format_duration,
            **DURATION_OPTION
            | within(
                SHORTEST_RUN,
                LONGEST_RUN,
                parse_duration,
                format_duration,
                "is no limit for runs: give {least} to {most}",
            ),
        ),
    ] = LONGEST_RUN
    events: Annotated[
        int,
        option(
            "--workflow-events",
            "The most events in the history of a run. At this limit the run is terminated.",
            group=WORKFLOWS_GROUP,
            **within(
                SHORTEST_HISTORY, LONGEST_HISTORY, count, str, "is no limit for histories: give {least} to {most}"
            ),
        ),
    ] = 25_000
    open: Annotated[
        int,
        option(
            "--workflow-open",
            "The most activities that a run may have open at a time, the most timers, and the most children.",
            group=WORKFLOWS_GROUP,
            **within(1, MOST_OPEN, count, str, "is no limit for open activities: give {least} to {most}"),
        ),
    ] = 1_000

    def settings(self) -> WorkflowSettings:
        """Return the settings of a node."""
        return WorkflowSettings(self.retention, self.timeout, self.events, self.open)


DEFAULT_RUN_LIMITS = RunLimitOptions()

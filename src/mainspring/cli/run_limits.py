"""The options of a node for runs of workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from mainspring.cli.options import DURATION_OPTION, count, option, within
from mainspring.quantities import format_duration, parse_duration
from mainspring.server.settings import DAY, WorkflowSettings

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

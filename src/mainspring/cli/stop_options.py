"""The options of ``run``, ``serve`` and ``worker`` for a stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from mainspring.cli.options import DURATION_OPTION, option
from mainspring.quantities import format_duration
from mainspring.server.settings import STOP_GRACE

STOP_GROUP = Group("Stop", sort_key=8)


def _default(_grace: float | None) -> str:
    return format_duration(STOP_GRACE)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """How long a stop waits. The two options mean the same; if both are set, anywhere, the longer time applies."""

    grace: Annotated[
        float | None,
        option(
            "--grace",
            "How long a stop waits for running jobs before it releases them: puts them back into the queue.",
            group=STOP_GROUP,
            show_default=_default,
            **DURATION_OPTION,
        ),
    ] = None
    drain: Annotated[
        float | None,
        option(
            "--drain",
            "The former name of --grace. If both are set, the longer time applies.",
            group=STOP_GROUP,
            show_default=False,
            **DURATION_OPTION,
        ),
    ] = None

    @property
    def seconds(self) -> float:
        """The time for running jobs in seconds."""
        return max((given for given in (self.grace, self.drain) if given is not None), default=STOP_GRACE)


DEFAULT_STOP = StopOptions()

"""The options of `run`, `serve` and `worker` about their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from mainspring.cli.options import DURATION, option, shown
from mainspring.server.settings import GRACE

STOP = Group("Stop", sort_key=7)


def _usual(_grace: float | None) -> str:
    return shown(GRACE)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """How long a stop waits. Both options mean the same; where both are given, wherever that is, the longer holds."""

    grace: Annotated[
        float | None,
        option(
            "--grace",
            "How long a stop waits for running jobs before they are handed back.",
            group=STOP,
            show_default=_usual,
            **DURATION,
        ),
    ] = None
    drain: Annotated[
        float | None,
        option(
            "--drain",
            "The former name of --grace; where both are given, the longer holds.",
            group=STOP,
            show_default=False,
            **DURATION,
        ),
    ] = None

    @property
    def seconds(self) -> float:
        """The time for running jobs."""
        return max((given for given in (self.grace, self.drain) if given is not None), default=GRACE)


USUAL_STOP = StopOptions()

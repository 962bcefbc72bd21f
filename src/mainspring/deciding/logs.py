"""The log of workflow code: silent while a replay repeats what was logged before."""

from __future__ import annotations

import logging
from typing import Any

from mainspring.deciding.api import current


class WorkflowLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops the messages of replays, and adds the run to others as ``run`` and ``workflow_id``."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - of the standard library
        """Return whether a message of this level is logged now."""
        calls = current()
        return (calls is None or not (calls.state.replaying or calls.state.evicted)) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Add the run to a message."""
        calls = current()
        if calls is not None:
            started = calls.started
            extra = {"run": calls.state.run, "workflow_id": started.workflow_id, "workflow": started.type}
            kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return msg, kwargs


log = WorkflowLog(logging.getLogger("mainspring.workflow"), {})

"""The lint of an App's workflows, at the start of a worker: by then all of their modules are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from mainspring.deciding.lint import lint
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from mainspring.worker.registry import Registry

_log = structlog.get_logger("mainspring.workflows")


def check_workflows(registry: Registry, *, strict: bool = False) -> None:
    """Log a warning for code of workflows that a replay cannot repeat.

    Raises SettingsError for it if ``strict``.
    """
    findings = list(dict.fromkeys(one for workflow in registry.workflows.values() for one in lint(workflow.code.call)))
    if strict and findings:
        listed = "; ".join(map(str, findings))
        raise SettingsError(f"workflows have code that a replay cannot repeat: {listed}")
    for finding in findings:
        _log.warning(
            "a replay cannot repeat this code of a workflow",
            at=f"{finding.file}:{finding.line}",
            function=finding.function,
            problem=finding.message,
        )

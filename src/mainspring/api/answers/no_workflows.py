"""The answers of a node whose store keeps no runs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.errors import ApiError, Code
from mainspring.api.workflow_versions import Remove, Versions, Workers
from mainspring.api.workflows import (
    Cancel,
    History,
    List,
    Move,
    Show,
    Signal,
    Start,
    Terminate,
    Unpark,
)

if TYPE_CHECKING:
    from mainspring.api.answers.registry import Handlers


def without_workflows() -> Handlers:
    """Return the answers to all calls about workflows."""

    async def refuse(*_: object) -> None:
        raise ApiError(Code.UNSUPPORTED, "this node's store keeps no workflows: run a node with a store on SQLite")

    kinds = (Start, List, Show, History, Signal, Cancel, Terminate, Move, Unpark, Versions, Remove, Workers)
    return dict.fromkeys(kinds, refuse)

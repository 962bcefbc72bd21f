"""Processor time of a process and its descendants."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def seconds(pid: int) -> float:
    """Return the processor time of a process and its children, including ended ones; 0.0 if it has ended."""
    with contextlib.suppress(OSError):  # it has just ended: its time counts for its parent
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = " ".join(listed.read_text() for listed in Path(f"/proc/{pid}/task").glob("*/children")).split()
        own_and_ended = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        return own_and_ended + sum(seconds(int(child)) for child in children)
    return 0.0

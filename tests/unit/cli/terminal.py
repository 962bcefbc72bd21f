"""A terminal for the output of commands."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(show: Callable[[], object], width: int) -> list[str]:
    """Return the lines on a terminal with this number of columns, without colours."""
    output = Terminal()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(width))
        show()
    return re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue()).splitlines()

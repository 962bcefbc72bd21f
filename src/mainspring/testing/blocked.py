"""Where the code under test blocks: the frames of threads that do not go on."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import TYPE_CHECKING, Final

from mainspring.jobs.failures import is_users

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_TASKS: Final = "mainspring-task-"
"""The beginning of the names of the threads that run tasks."""


def place_of(thread: int) -> str:
    """Return the place of the innermost frame of a thread that is no frame of Mainspring or of the standard library."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack
    return "an unknown place" if frame is None else _place(frame)


def places_of_tasks() -> list[str]:
    """Return the places of the tasks that run in threads now."""
    frames = sys._current_frames()  # noqa: SLF001
    threads = [one for one in threading.enumerate() if one.name.startswith(_TASKS) and one.ident in frames]
    places = (_user_frame(frames[one.ident]) for one in threads if one.ident is not None)
    return [_shown(frame) for frame in places if frame is not None]


def interrupt(thread: int) -> None:
    """Raise SystemExit in a thread, so that a loop of its code does not go on for the rest of the tests."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


def _place(frame: FrameType) -> str:
    return _shown(_user_frame(frame) or frame)


def _user_frame(innermost: FrameType) -> FrameType | None:
    for frame in _outwards(innermost):
        if is_users(frame.f_code.co_filename):
            return frame
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"

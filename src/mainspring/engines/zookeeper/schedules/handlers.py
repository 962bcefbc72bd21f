"""Which handler each operation of the schedules slice has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper.schedules import history, mending, reading, writing
from mainspring.schedules import store as ops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.storage.operation import Operation

HANDLERS: Final[dict[type[Operation], Callable[[Session, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    ops.SaveSchedules: writing.save,
    ops.Declare: writing.run,
    ops.MendSchedules: mending.mend,
    ops.FireSchedules: writing.fire,
    ops.TriggerSchedule: writing.trigger,
    ops.ForgetFires: history.forget,
    ops.FindDue: reading.find_due,
}

"""The functions by which a worker creates, checks and releases instances of a managed resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.worker.current import current_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.managed import Kind


def step_functions(kind: Kind) -> dict[str, Callable[..., Any]]:
    """Return the functions of a class, by step."""

    async def create(key: str, fields: dict[str, Any], meta: Any, repeated: bool) -> Any:
        """Create an instance, or find it if an earlier attempt may have created it."""
        del meta
        one = kind.instance(fields)
        if repeated or current_job().attempt > 1:
            found = await _found(kind, one, key)
            if found is not None:
                return found
        return await one.create(key)

    async def check(key: str, fields: dict[str, Any], meta: Any, repeated: bool) -> Any:
        """Return the status of an instance."""
        del key, repeated
        return dict(zip(("state", "text"), await kind.instance(fields).check(kind.meta(meta)), strict=True))

    async def release(key: str, fields: dict[str, Any], meta: Any, repeated: bool, created: bool = True) -> None:
        """Release an instance, or what its failed creation has left behind."""
        del repeated
        one = kind.instance(fields)
        if created:
            await one.release(kind.meta(meta))
        else:
            found = await _found(kind, one, key)
            if found is not None:
                await one.release(found)

    functions: dict[str, Callable[..., Any]] = {"create": create, "check": check, "release": release}
    return {step: functions[step] for step in kind.steps}


async def _found(kind: Kind, one: Any, key: str) -> Any:
    return await one.find(key) if kind.finds else None

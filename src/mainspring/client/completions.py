"""Completing jobs by their completion tokens, from any program that has one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.client.connections import OnServers
from mainspring.client.json_types import encode_json
from mainspring.client.options import check_progress, check_progress_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.api.completions import CompletionInfo

_CALL = "completions.answer"


class Completions(OnServers):
    """Answers to completion tokens, which jobs get from ``current_job().completion_token()``.

    The token is all that an answer needs. A result or a failure counts once; the same one may be repeated. Raises NotFoundError
    for an unknown token, ConflictError for an answer that is late or differs from the first one, and ConnectionLostError. Methods
    that begin with ``a`` are for asyncio.
    """

    def complete(self, token: str, result: Any = None) -> CompletionInfo:
        """Let the job of a token succeed with a result."""
        return self._answer(self._result(token, result))

    async def acomplete(self, token: str, result: Any = None) -> CompletionInfo:
        """As ``complete``."""
        return await self._aanswer(self._result(token, result))

    def fail(
        self,
        token: str,
        message: str,
        *,
        type: str = "ExternalFailure",  # noqa: A002 - as the key of a failure
        retry: bool = True,
    ) -> CompletionInfo:
        """Let the attempt of a token fail. It is tried again by the job's policy, unless ``retry`` is False."""
        return self._answer(_failure(token, message, type, retry=retry))

    async def afail(
        self,
        token: str,
        message: str,
        *,
        type: str = "ExternalFailure",  # noqa: A002 - as the key of a failure
        retry: bool = True,
    ) -> CompletionInfo:
        """As ``fail``."""
        return await self._aanswer(_failure(token, message, type, retry=retry))

    def progress(self, token: str, done: int, total: int, text: str = "") -> CompletionInfo:
        """Report how much of the work is done; a sign of life, too."""
        return self._answer(_progress(token, done, total, text))

    async def aprogress(self, token: str, done: int, total: int, text: str = "") -> CompletionInfo:
        """As ``progress``."""
        return await self._aanswer(_progress(token, done, total, text))

    def heartbeat(self, token: str) -> CompletionInfo:
        """Give a sign of life, for a token with a heartbeat."""
        return self._answer({"token": token, "heartbeat": True})

    async def aheartbeat(self, token: str) -> CompletionInfo:
        """As ``heartbeat``."""
        return await self._aanswer({"token": token, "heartbeat": True})

    def _result(self, token: str, result: Any) -> dict[str, Any]:
        data = encode_json(result, "the result of a completion token")
        encoded = self._connections.codecs.encode_json(data, "result", repeatable=True)
        return {"token": token, "result": msgspec.Raw(encoded)}

    def _answer(self, params: Mapping[str, Any]) -> CompletionInfo:
        return _info(self._connections.blocking().call(_CALL, dict(params)))

    async def _aanswer(self, params: Mapping[str, Any]) -> CompletionInfo:
        return _info(await self._connections.aio().call(_CALL, dict(params)))


def _failure(token: str, message: str, kind: str, *, retry: bool) -> dict[str, Any]:
    return {"token": token, "failure": {"type": kind, "message": message, "retry": retry}}


def _progress(token: str, done: int, total: int, text: str) -> dict[str, Any]:
    done, total = check_progress(done, total)
    return {"token": token, "progress": {"done": done, "total": total, "text": check_progress_text(text)}}


def _info(answer: Any) -> CompletionInfo:
    # Programs that only submit jobs do not load the declared requests.
    kind = importlib.import_module("mainspring.api.completions").CompletionInfo
    info: CompletionInfo = msgspec.convert(answer, kind)
    return info

"""Answers to queries: what a run's code says about the run, as of its last decision. They are in no history.

A query changes nothing of its run. The calls of workflow code that would do so raise an error; what the code could do all the
same, such as asyncio's own calls, is found afterwards: then there is no answer, and the run leaves the worker's memory, so that
it goes on by a replay. A handler may change its own object: nothing finds that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.client.payload import encode_result
from mainspring.errors import PayloadError
from mainspring.jobs.model import encodable, text_of
from mainspring.workflow_code.handlers import HandlerKind
from mainspring.workflow_code.model import Evicted

if TYPE_CHECKING:
    from mainspring.workflow_code.api import Calls

_MOST_TEXT = 4_096
"""Characters of an error."""
_MOST_NAMES = 20
"""Names of handlers in an error."""


class QueryAnswer(NamedTuple):
    """The answer to a query."""

    result: bytes = b""
    """The encoded result, unless it failed."""
    error: str = ""
    """The class of the error; empty: it has an answer."""
    message: str = ""
    has_changed_run: bool = False
    """Whether the handler has changed the run, which has to leave the memory."""


def unanswered(error: str, message: str, *, has_changed_run: bool = False) -> QueryAnswer:
    """Return an answer that is an error."""
    return QueryAnswer(b"", encodable(error), message[:_MOST_TEXT], has_changed_run)


def answer_query(calls: Calls, name: str, payload: bytes) -> QueryAnswer:
    """Call the handler of a query, as code of the run. Raises nothing."""
    handler = None if calls.handlers is None else calls.handlers.find(HandlerKind.QUERY, name)
    if handler is None:
        return unanswered("UnknownQuery", _unknown(calls, name))
    try:
        args, named = handler.signature.decode(payload)
    except PayloadError as error:
        return unanswered("PayloadError", f"the arguments of the query {name}: {error}")
    before = _traces(calls)
    chance = calls.rng.getstate() if "rng" in vars(calls) else None
    calls.state.query = name
    try:
        value = calls.loop.context.copy().run(handler.call, *args, **named)
        try:
            answer = QueryAnswer(handler.signature.encode_result(value) if value is not None else encode_result(None))
        except PayloadError as error:
            answer = unanswered("PayloadError", f"the result of the query {name}: {error}")
        del value
    except Evicted:
        answer = unanswered("WorkflowUsageError", f"the query {name} called code that only decisions may call")
    except BaseException as error:  # noqa: BLE001 - code of users may raise anything
        answer = unanswered(type(error).__name__, text_of(error))
    finally:
        calls.state.query = ""
        if chance is not None:
            calls.rng.setstate(chance)
    if _traces(calls) != before:
        why = f"the query {name} changed its run, as by asyncio.create_task: a query only reads what the run has"
        return unanswered("WorkflowUsageError", why, has_changed_run=True)
    return answer


def _traces(calls: Calls) -> tuple[Any, ...]:
    """Return numbers that differ after anything that a replay would have to repeat."""
    return *calls.loop.traces(), calls.side_effects, calls.next_command


def _unknown(calls: Calls, name: str) -> str:
    names = () if calls.handlers is None else calls.handlers.names(HandlerKind.QUERY)
    if not names:
        return f"the run has no handler of the query {name!r}, nor of any other"
    listed = ", ".join(names[:_MOST_NAMES])
    return f"the run has no handler of the query {name!r}: it answers {listed}"

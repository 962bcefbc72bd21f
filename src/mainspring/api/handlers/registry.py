"""The only list of calls: their names, requests and handlers.

Faces are adapters of it. They convert their clients' messages to requests, and problems to the errors of their protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from mainspring.access.caller import LOCAL, Act
from mainspring.access.roles import Permission
from mainspring.api.handlers.text import within_budget
from mainspring.api.request import ApiError, Code, Request, Touches, lacking, problem_of
from mainspring.callbacks import CallInProgress, reject, resolve
from mainspring.errors import ForbiddenError
from mainspring.features import Feature
from mainspring.namespaces import DEFAULT, check, name_text
from mainspring.private_data import hide_secrets
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from mainspring.access.caller import Caller
    from mainspring.access.idempotency import IdempotencyKey
    from mainspring.api.request import Feed, Problem
    from mainspring.callbacks import Ask
    from mainspring.errors import MainspringError
    from mainspring.loop_shares import LoopShare, LoopShares

if TYPE_CHECKING:
    Handlers = Mapping[type[Request[Any]], Callable[..., Coroutine[Ask, Any, Any]]]
    """Coroutines by kind of request, which get the request, its `Caller` and its `Once`, or the first one or two of these. They
    raise MainspringErrors, which `problem_of` turns into problems; with a `Once`, which is None for a request without a key, also
    `RepeatedError`."""
    Finder = Callable[[Any, Caller], Coroutine[Ask, Any, Iterable[str] | None]]
    """Returns the functions of the object of a request; None: all functions of the namespace. Raises ApiError if there is no such
    object. It is called for callers whose grants name some functions."""
    Followers = Mapping[type[Request[Any]], Callable[[Any, Caller, Feed], Coroutine[Ask, Any, Callable[[], None]]]]
    """Coroutines that begin a stream: they send its state to the feed, and later each change, until the function that they return
    is called."""

A = TypeVar("A")

READS: Final = frozenset({Permission.SIGNED_IN, Permission.READ, Permission.PAYLOADS})
"""The permissions of requests that change nothing."""
OBJECT_LIMIT: Final = 500
"""Characters of an object in a refusal: clients choose them."""


class Api:
    """The calls of a node, for all faces.

    ``enter`` is called with the namespace of each request outside ``default``. ``lacks`` is what the node's store does not do.
    """

    def __init__(
        self,
        *parts: Handlers,
        refused: Callable[[Act], object] = lambda _: None,
        enter: Callable[[str], object] = check,
        lacks: frozenset[Feature] = frozenset(),
        shares: LoopShares | None = None,
    ) -> None:
        """``refused`` is called with each act that a caller may not do. ``shares`` are those of the node's loop."""
        self._refused = refused
        self._shares = shares
        self._enter = enter
        self.lacks = lacks
        """The features that the store of the node does not have."""
        self.requests: dict[str, type[Request[Any]]] = {}
        """Names of calls to their requests."""
        self._handlers: dict[type[Request[Any]], tuple[Callable[..., Coroutine[Ask, Any, Any]], int]] = {}
        """Each with the number of its arguments."""
        self._followers: dict[type[Request[Any]], Callable[..., Coroutine[Ask, Any, Callable[[], None]]]] = {}
        self._finders: dict[Touches, Finder] = {}
        self._with_objects: set[type[Request[Any]]] = set()
        """The requests whose objects `_check_object` checks."""
        for part in parts:
            self.add(part)
        # Their names are known, so that they are refused with the reason.
        self.requests |= {kind.call: kind for kind in _kinds(Request) if kind.call and kind.requires in lacks}

    @property
    def kinds(self) -> frozenset[type[Request[Any]]]:
        """The kinds of all requests and streams."""
        return frozenset((*self._handlers, *self._followers))

    def add(self, handlers: Handlers) -> None:
        """Add calls."""
        for request, handler in handlers.items():
            assert isinstance(request.permission, Permission), request
            assert request.permission in READS or request.touches is not None, f"{request} has to state what it acts on"
            parameters = signature(handler).parameters
            self._handlers[request] = handler, 3 if "once" in parameters else min(len(parameters), 2)
            if request.touches in LOOKED_UP or request.touches is Touches.ALL:
                self._with_objects.add(request)
        self.requests |= {request.call: request for request in handlers if request.call}

    def start(
        self,
        request: Request[A],
        done: Callable[[A], None],
        failed: Callable[[Problem], None],
        broken: Callable[[Exception], None] | None = None,
        *,
        caller: Caller = LOCAL,
    ) -> CallInProgress:
        """Begin a call. ``done`` or ``failed`` is called with its outcome, at once if possible. See `CallInProgress`.

        This is the one place where each request is refused to callers without its permission.
        """
        return CallInProgress(
            self.answer(request, caller),
            done,
            lambda error: failed(problem_of(error)),
            broken,
            self.share_of(caller, request.namespace),
        )

    def share_of(self, caller: Caller, namespace: str) -> LoopShare | None:
        """Return the share of a caller of the node's loop."""
        return None if self._shares is None else self._shares.of(caller.holder, namespace)

    def keeps_reply(self, kind: type[Request[Any]]) -> bool:
        """Return whether the handler of a request stores its answer in the transaction of its act, if the request has a key."""
        return kind in self._handlers and self._handlers[kind][1] > 2

    async def answer(self, request: Request[A], caller: Caller, once: IdempotencyKey | None = None) -> A:
        """Return the answer to a request, for a coroutine of a call."""
        try:
            return await self.answer_unrecorded(request, caller, once)
        except (ForbiddenError, ApiError) as error:
            self._record_refusal(request, caller, error)
            raise

    async def answer_unrecorded(self, request: Request[A], caller: Caller, once: IdempotencyKey | None = None) -> A:
        """Return the answer as `answer` does; a refusal is not recorded: for requests that the caller did not make."""
        self._check(request, caller)
        if type(request) in self._with_objects and caller is not LOCAL:
            await self._check_object(request, caller)
        handler, number = self._handlers[type(request)]
        answer: A = await handler(*(request, caller, once)[:number])
        if request.rows:
            # The only place where the rows of lists are cut: faces, pages and streams get answers from here.
            answer = await within_budget(request, answer, lambda smaller: handler(*(smaller, caller, once)[:number]))
        return answer

    def _record_refusal(self, request: Request[Any], caller: Caller, error: ForbiddenError | ApiError) -> None:
        if problem_of(error).code is Code.FORBIDDEN:
            self._refused(_refusal(request, caller, error))

    async def call(self, request: Request[A], *, caller: Caller = LOCAL, once: IdempotencyKey | None = None) -> A:
        """Return the answer to a request. Raises ApiError. Cancelling this coroutine ends the call.

        ``once`` is the key of the request, for those that `keeps_reply`: RepeatedError is raised if it was made before.
        """
        answer: A = await _outcome(self.answer(request, caller, once), self.share_of(caller, request.namespace))
        return answer

    def check_early(self, kind: type[Request[Any]], namespace: str, caller: Caller, named: str) -> None:
        """Raise ForbiddenError, and record it, if a caller may make no request of this kind in a namespace.

        For faces that refuse a request before they have read all of it. ``named`` is its object, as far as it is known.
        """
        try:
            check_permission(kind, namespace, caller)
        except ForbiddenError as error:
            self.refused_early(_name_of(kind), namespace, caller, named, str(error))
            raise

    def refused_early(self, what: str, namespace: str, caller: Caller, named: str, why: str) -> None:
        """Record that a face has refused a request, which is no call yet."""
        act = caller.act(what, hide_secrets(named)[:OBJECT_LIMIT], namespace=hide_secrets(namespace)[:OBJECT_LIMIT])
        self._refused(replace(act, refused=why))

    def refused_token(self, address: str, request: str, why: str) -> None:
        """Record a request or a connection with a wrong token, whose caller is unknown."""
        self._refused(Act("sign_in", "", address=address, request=request, refused=why))

    def _check(self, request: Request[Any], caller: Caller) -> None:
        if caller is not LOCAL:
            check_permission(type(request), request.namespace, caller, getattr(request, request.function_field, None))
        if request.namespace != DEFAULT:
            if Feature.NAMESPACES in self.lacks:
                raise lacking(Feature.NAMESPACES)
            self._enter(request.namespace)
        if self.lacks and (feature := request.needed_feature()) in self.lacks:
            raise lacking(feature)

    async def _check_object(self, request: Request[Any], caller: Caller) -> None:
        """Raise ForbiddenError unless the caller has the request's own permission for each function of its object.

        A right to see the object does not count, and neither does a right to act in another place.
        """
        touches, needed = request.touches, request.needs()
        if touches is Touches.ALL:
            if not request.in_all_namespaces:  # `check_permission` has checked those
                caller.check_all(needed, request.namespace)
        elif touches in LOOKED_UP and caller.functions(needed, request.namespace) is not None:
            found = await self._finders[touches](request, caller) if touches in self._finders else None
            if found is None:
                caller.check_all(needed, request.namespace)
            else:
                for function in found:
                    caller.check(needed, request.namespace, function)

    def add_objects(self, finders: Mapping[Touches, Finder]) -> None:
        """Add the look-ups of the objects of requests, by kind of object."""
        self._finders |= finders

    @property
    def missing_objects(self) -> frozenset[Touches]:
        """The kinds of objects of its requests that this API cannot look up: they are for callers with all functions alone."""
        named = {kind.touches for kind in self.kinds if kind.touches is not None}
        return frozenset(named & LOOKED_UP - self._finders.keys())

    def add_streams(self, followers: Followers) -> None:
        """Add streams."""
        for request in followers:
            assert isinstance(request.permission, Permission), request
        self._followers |= followers

    async def follow(self, request: Request[Any], feed: Feed, *, caller: Caller = LOCAL) -> Callable[[], None]:
        """Begin a stream; return the function that ends it. Raises ApiError."""
        share = self.share_of(caller, request.namespace)
        end: Callable[[], None] = await _outcome(self._follow(request, caller, feed), share)
        return end

    async def _follow(self, request: Request[Any], caller: Caller, feed: Feed) -> Callable[[], None]:
        try:
            self._check(request, caller)
            if request.touches is not None and caller is not LOCAL:
                await self._check_object(request, caller)
            return await self._followers[type(request)](request, caller, feed)
        except (ForbiddenError, ApiError) as error:
            self._record_refusal(request, caller, error)
            raise


def _kinds(base: type[Request[Any]]) -> Iterator[type[Request[Any]]]:
    """Yield all requests."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def check_permission(
    kind: type[Request[Any]], namespace: str, caller: Caller, function: str | bytes | None = None
) -> None:
    """Raise ForbiddenError if a caller may make no request of this kind in a namespace; ``function`` is the one that it names."""
    if kind.about_nodes and caller.is_port:
        raise ForbiddenError(
            f"{caller.name!r}: a port of one namespace shows nothing of nodes and of other namespaces: use functions.list or"
            " namespaces.status, or a port without a namespace"
        )
    if kind.in_all_namespaces:
        caller.check_everywhere(kind.permission)
    if not (kind.in_any_namespace and caller.may_somewhere(kind.permission)):
        name = function_text(function) if isinstance(function, bytes) else function
        if not isinstance(name, str):  # also the field of a schedule that is left out
            name = None
        caller.check(kind.permission, namespace, name)


LOOKED_UP: Final = frozenset({Touches.JOB, Touches.RUN, Touches.SCHEDULE, Touches.OPERATION})
"""The kinds of objects whose functions are not in the request."""

_OBJECTS: Final = ("handle", "name", "function", "key", "token", "node", "schedule", "id")
"""Fields that name the object of a request."""


def _name_of(kind: type[Request[Any]]) -> str:
    """Return the name of a request in the audit."""
    return kind.call or kind.name_in_audit or kind.__name__


def _refusal(request: Request[Any], caller: Caller, error: MainspringError) -> Act:
    """Return the refusal of a request as the audit shows it."""
    of = getattr(request, "job", request)  # a new job names its function
    named = next((value for name in _OBJECTS if (value := getattr(of, name, None)) is not None), "")
    name = name_text(named) if isinstance(named, bytes) else str(named)
    act = caller.act(_name_of(type(request)), hide_secrets(name)[:OBJECT_LIMIT], namespace=request.namespace)
    return replace(act, refused=str(error))


async def _outcome(work: Coroutine[Ask, Any, Any], share: LoopShare | None) -> Any:
    """Await the coroutine of a call from asyncio."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    under_way = CallInProgress(work, partial(resolve, answer), partial(_refuse, answer), partial(reject, answer), share)
    try:
        return await answer
    finally:
        under_way.end()
        del answer, under_way, work  # its error has this frame in its traceback: together they would keep the request


def _refuse(answer: asyncio.Future[Any], error: MainspringError) -> None:
    problem = problem_of(error)
    reject(answer, ApiError(problem.code, problem.message, problem.live_handle))

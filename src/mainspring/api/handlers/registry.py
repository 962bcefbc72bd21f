"""The only list of calls: their names, requests and handlers.

Faces are adapters of it. They convert their clients' messages to requests, and problems to the errors of their protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.access.caller import LOCAL, Act, Permission
from mainspring.api.handlers.pages import page_of
from mainspring.api.request import ApiError, Code, Request, Touches, is_list, lacking, problem_of
from mainspring.callbacks import CallInProgress, reject, resolve
from mainspring.errors import ForbiddenError, NotFoundError
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
    Handler = Callable[[Any, "Call"], Coroutine[Ask, Any, Any]]
    """Returns the answer to a request. Raises MainspringErrors, which `problem_of` turns into problems, and RepeatedError for a
    request with a key that was made before."""
    Handlers = Mapping[type[Request[Any]], Handler]
    Finder = Callable[[Any, Caller], Coroutine[Ask, Any, Iterable[str] | None]]
    """Returns the functions of the object of a request; None: all functions of the namespace. Raises ApiError if there is no such
    object. It is called for callers whose grants name some functions."""
    Followers = Mapping[type[Request[Any]], Callable[[Any, "Call", Feed], Coroutine[Ask, Any, Callable[[], None]]]]
    """Coroutines that begin a stream: they send its state to the feed, and later each change, until the function that they return
    is called."""

A = TypeVar("A")
T = TypeVar("T")

READS: Final = frozenset({Permission.SIGNED_IN, Permission.READ, Permission.PAYLOADS})
"""The permissions of requests that change nothing."""
OBJECT_LIMIT: Final = 500
"""Characters of an object in a refusal: clients choose them."""


class Call(msgspec.Struct):
    """A request under way, as its handler gets it: who makes it, its act for the audit, and its key."""

    request: Request[Any]
    caller: Caller
    once: IdempotencyKey | None = None
    """The key of the client's request; None without one."""

    def check(self, function: str) -> None:
        """Raise ForbiddenError unless the caller has the request's permission for a function of its object.

        For handlers that read the object (`Request.reads_object`), or several (`Touches.EACH`).
        """
        if self.caller is not LOCAL:
            self.caller.check(self.request.permission, self.request.namespace, function)

    @property
    def is_restricted(self) -> bool:
        """Whether the caller's grants for the request name some functions."""
        caller, request = self.caller, self.request
        return caller is not LOCAL and caller.functions(request.permission, request.namespace) is not None

    def shown(self, items: list[T], function: Callable[[T], str]) -> list[T]:
        """Return the items of a list whose functions the caller may see."""
        if not self.is_restricted:
            return items
        request = self.request
        return [one for one in items if self.caller.may(request.permission, request.namespace, function(one))]

    def not_found(self) -> ApiError:
        """Return the refusal of the request, because its object does not exist."""
        touches = self.request.touches
        assert touches is not None
        return touches.not_found(self._object())

    def act(
        self,
        reason: str = "",
        *,
        of: str | None = None,
        namespace: str | None = None,
        before: Any = None,
        after: Any = None,
    ) -> Act:
        """Return the act of the request for the audit, with the name of the request and of its object, or ``of``."""
        return self.caller.act(
            _name_of(type(self.request)),
            self._object() if of is None else of,
            reason,
            namespace=self.request.namespace if namespace is None else namespace,
            before=before,
            after=after,
        )

    def _object(self) -> str:
        request = self.request
        field = (
            request.function_field if request.touches is Touches.FUNCTION else request.touches and request.touches.field
        )
        name = getattr(request, field, "") if field else ""
        return name_text(name) if isinstance(name, bytes) else str(name)


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
        self._handlers: dict[type[Request[Any]], Handler] = {}
        self._followers: dict[
            type[Request[Any]], Callable[[Any, Call, Feed], Coroutine[Ask, Any, Callable[[], None]]]
        ] = {}
        self._finders: dict[Touches, Finder] = {}
        self._with_objects: set[type[Request[Any]]] = set()
        """The requests whose objects `_check_object` checks."""
        self._lists: set[type[Request[Any]]] = set()
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
            self._handlers[request] = handler
            if request.touches in LOOKED_UP | WHOLE and not request.reads_object:
                self._with_objects.add(request)
            if is_list(request):
                self._lists.add(request)
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
        return kind in self._handlers and kind.keeps_answer

    async def answer(
        self, request: Request[A], caller: Caller, once: IdempotencyKey | None = None, *, recorded: bool = True
    ) -> A:
        """Return the answer to a request, for a coroutine of a call. A refusal is recorded in the audit."""
        try:
            if caller is not LOCAL:
                named = getattr(request, request.function_field, None)
                check_permission(type(request), request.namespace, caller, named)
            if request.namespace != DEFAULT or self.lacks:
                self.check_store(request)
            if caller is not LOCAL and type(request) in self._with_objects:
                await self._check_object(request, caller)
            handler, call = self._handlers[type(request)], Call(request, caller, once)
            answer: Any
            try:
                if type(request) in self._lists:
                    # The only place where cursors are made and pages are cut: faces, pages and streams get answers from here.
                    answer = await page_of(request, lambda placed: handler(placed, Call(placed, caller, once)))
                else:
                    answer = await handler(request, call)
            except NotFoundError:
                raise call.not_found() from None
        except (ForbiddenError, ApiError) as error:
            if recorded:
                self._record_refusal(request, caller, error)
            raise
        found: A = answer
        return found

    def answer_unrecorded(self, request: Request[A], caller: Caller) -> Coroutine[Ask, Any, A]:
        """Return the answer as `answer` does; a refusal is not recorded: for requests that the caller did not make."""
        return self.answer(request, caller, recorded=False)

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

    def check_store(self, request: Request[Any]) -> None:
        """Raise ApiError if the store lacks what a request needs, and prepare the node for its namespace."""
        if request.namespace != DEFAULT:
            if Feature.NAMESPACES in self.lacks:
                raise lacking(Feature.NAMESPACES)
            self._enter(request.namespace)
        if (feature := request.needed_feature()) in self.lacks:
            raise lacking(feature)

    async def _check_object(self, request: Request[Any], caller: Caller) -> None:
        """Raise ForbiddenError unless the caller has the request's own permission for each function of its object.

        A right to see the object does not count, and neither does a right to act in another place.
        """
        touches, needed = request.touches, request.needs()
        if touches in WHOLE:
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
            if caller is not LOCAL:
                check_permission(
                    type(request), request.namespace, caller, getattr(request, request.function_field, None)
                )
            self.check_store(request)
            if request.touches is not None and not request.reads_object and caller is not LOCAL:
                await self._check_object(request, caller)
            return await self._followers[type(request)](request, Call(request, caller), feed)
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

WHOLE: Final = frozenset({Touches.ALL, Touches.NODE, Touches.WORKER})
"""The kinds of objects that are of all functions."""

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
    reject(
        answer, ApiError(problem.code, problem.message, problem.live_handle, field=problem.field, oldest=problem.oldest)
    )

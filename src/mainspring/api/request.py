"""Requests to a node in every protocol: what all of them share, their problems, and streams of changes.

Only this module reads requests from JSON and writes answers as JSON. The other modules of this package have the requests and the
answers of one subject each; `handlers` has their handlers.

Problems are data: a stable code, and a sentence for people. docs/reference/errors.md has the table of the codes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from enum import Enum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec

from mainspring.access.caller import Permission  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.declaration import Button, Http  # noqa: TC001 - msgspec reads the annotations
from mainspring.errors import ConflictError, ForbiddenError, Kind, MainspringError, RefusedError, UsageError
from mainspring.features import Feature  # noqa: TC001 - msgspec reads the annotation
from mainspring.namespaces import Namespaced
from mainspring.private_data import hide_secrets
from mainspring.sizes import Text, Texts, Time, about, described

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Self

PAGE_LIMIT = 1000
"""The largest number of jobs, functions, times or runs in one answer."""
Rows = Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)]
"""A number of rows in a part of a list."""

# ---- fields that many requests have ----

Handle = Annotated[Text, about("The handle of a job.")]
FunctionName = Annotated[Text, about("The name of a function.")]
ScheduleName = Annotated[Text, about("The name of a schedule.")]
OperationId = Annotated[Text, about("The id of an operation.")]
RunKey = Annotated[
    Text, about("The run: the handle of its root job, the same with @ and a number, or its workflow id.")
]
NodeName = Annotated[Text, about("The name of a node, or the number of its term.")]
WorkerId = Annotated[Text, about("The id of a connected worker.")]
TokenName = Annotated[Text, about("The id of a token, or its name if no other token has it.")]
Cursor = Annotated[Text | None, about("Where to continue: `next` of the page before. Without it, the list begins.")]
Limit = Annotated[Rows, about("The most rows of a page. A page may have fewer although more follow.")]
Revision = Annotated[
    Text | None, about("`revision` of the last answer: if the object was changed since, the request fails.")
]


class Code(StrEnum):
    """Codes of problems: the only table of them. Callers compare codes, so none is ever renamed.

    Each has its class, from which the exit code of commands follows, and its status and its title in HTTP.
    """

    UNKNOWN_CALL = "unknown_call", Kind.USAGE, 404, "There is no such request"
    UNREADABLE = "unreadable", Kind.USAGE, 400, "The request cannot be read"
    """The request is no JSON object with the keys and types of its call."""
    INVALID = "invalid", Kind.USAGE, 422, "A value is invalid"
    """The message names the value."""
    UNSUPPORTED = "unsupported", Kind.USAGE, 422, "The store of this node does not support the request"
    TOO_LARGE = "too_large", Kind.USAGE, 413, "A name or a payload is too long"
    """The message gives the limit in bytes."""
    TOO_MANY_FUNCTIONS = "too_many_functions", Kind.USAGE, 422, "The node accepts no more functions"
    """The request names a new function."""
    FORBIDDEN = "forbidden", Kind.FORBIDDEN, 403, "The caller lacks a permission"
    """The message names the permission."""
    JOB_NOT_FOUND = "job_not_found", Kind.NOT_FOUND, 404, "There is no such job"
    NOT_KEPT = "not_kept", Kind.NOT_FOUND, 404, "The data are not kept"
    """The job exists, and its arguments or its result are no longer kept, or never were."""
    FUNCTION_NOT_FOUND = "function_not_found", Kind.NOT_FOUND, 404, "There is no such function"
    SCHEDULE_NOT_FOUND = "schedule_not_found", Kind.NOT_FOUND, 404, "There is no such schedule"
    NODE_NOT_FOUND = "node_not_found", Kind.NOT_FOUND, 404, "There is no such node"
    RUN_NOT_FOUND = "run_not_found", Kind.NOT_FOUND, 404, "There is no such run"
    OPERATION_NOT_FOUND = "operation_not_found", Kind.NOT_FOUND, 404, "There is no such operation"
    WORKER_NOT_FOUND = "worker_not_found", Kind.NOT_FOUND, 404, "There is no such worker"
    """No connected worker has this id."""
    WORKFLOW_NOT_FOUND = "workflow_not_found", Kind.NOT_FOUND, 404, "There is no such workflow"
    """No worker has registered the workflow, or its version."""
    VALUE_NOT_FOUND = "value_not_found", Kind.NOT_FOUND, 404, "There is no such value"
    """The job has published no value of this name, or none after the change that the request names."""
    RESOURCE_NOT_FOUND = "resource_not_found", Kind.NOT_FOUND, 404, "There is no such resource"
    LISTENER_NOT_FOUND = "listener_not_found", Kind.NOT_FOUND, 404, "There is no such listener"
    WEBHOOK_NOT_FOUND = "webhook_not_found", Kind.NOT_FOUND, 404, "There is no such webhook"
    TOKEN_NOT_FOUND = "token_not_found", Kind.NOT_FOUND, 404, "There is no such token"
    COMPLETION_NOT_FOUND = "completion_not_found", Kind.NOT_FOUND, 404, "There is no such completion token"
    COMPLETION_GONE = "completion_gone", Kind.CONFLICT, 410, "The answer is late"
    """The token has expired, or its attempt or its job is over; the message says which, and since when."""
    CURSOR_NOT_FOUND = "cursor_not_found", Kind.NOT_FOUND, 404, "There is no such cursor"
    EVENTS_GONE = "events_gone", Kind.NOT_FOUND, 410, "Events behind the place are not kept"
    """The reader has missed some; ``oldest`` is the number behind which it misses none."""
    CONFLICT = "conflict", Kind.CONFLICT, 409, "The state does not allow the request"
    """That of a job, a schedule or a run; the message names the state."""
    CHANGED = "changed", Kind.CONFLICT, 412, "The object has changed"
    """It was changed since the revision that the request names: read it again."""
    AMBIGUOUS_NODE = "ambiguous_node", Kind.CONFLICT, 409, "Several nodes have this name"
    NODE_LIVES = "node_lives", Kind.CONFLICT, 409, "The node is alive"
    """It is not dead, and only ``force`` removes such a node."""
    ONLY_NODE = "only_node", Kind.CONFLICT, 409, "There is no other node"
    """No other node shares the store of this node, so it can be neither drained nor removed."""
    REFUSED = "refused", Kind.UNAVAILABLE, 429, "The node accepts no more jobs now"
    """The function's queue is full, or the memory for foreground jobs."""
    TOO_MANY_WAITS = "too_many_waits", Kind.UNAVAILABLE, 429, "The caller has too many requests that wait"
    """The node has no place for one more watch or wait of this caller, or of its namespace; the message has the numbers."""
    UNAVAILABLE = "unavailable", Kind.UNAVAILABLE, 503, "The store cannot be reached"
    """It could not be reached, or has refused, or a call over Gearman met a defect; the message is the reason."""

    kind: Kind
    status: int
    heading: str
    """Its title in HTTP."""

    def __new__(cls, text: str, kind: Kind, status: int, heading: str) -> Self:  # noqa: D102 - of an enumeration
        code = str.__new__(cls, text)
        code._value_ = text
        code.kind, code.status, code.heading = kind, status, heading
        return code


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a call failed."""

    code: Code
    message: str
    """A sentence: what was wrong with which input, and what to do."""
    live_handle: str | None = None
    """Of a conflict: the job that has the unique now."""
    field: str | None = None
    """The field of the request that is wrong, if the problem is about one."""
    oldest: str | None = None
    """Of `Code.EVENTS_GONE`: the number behind which the reader misses no event."""


class ApiError(MainspringError):
    """A call failed; ``problem`` is the reason."""

    def __init__(
        self,
        code: Code,
        message: str,
        live_handle: str | None = None,
        *,
        field: str | None = None,
        oldest: str | None = None,
    ) -> None:
        message = hide_secrets(message)  # it may quote a token that stands in the wrong place, and clients log it
        super().__init__(message)
        self.problem = Problem(code, message, live_handle, field, oldest)


def lacking(feature: Feature) -> ApiError:
    """Return the refusal of a request for something that the store of the node does not do."""
    return ApiError(Code.UNSUPPORTED, feature.refusal)


def problem_of(error: MainspringError) -> Problem:
    """Return the problem that stands for an error of the services."""
    if isinstance(error, ApiError):
        return error.problem
    kinds = (
        (UsageError, Code.INVALID),
        (ForbiddenError, Code.FORBIDDEN),
        (ConflictError, Code.CONFLICT),
        (RefusedError, Code.REFUSED),
    )
    code = next((code for kind, code in kinds if isinstance(error, kind)), Code.UNAVAILABLE)
    return Problem(code, hide_secrets(str(error)), error.live_handle if isinstance(error, ConflictError) else None)


def check_number(name: str, number: int) -> None:
    """Raise ApiError if a number is not from 1 to `PAGE_LIMIT`."""
    if not 1 <= number <= PAGE_LIMIT:
        raise ApiError(Code.INVALID, f"{name} is a number from 1 to {PAGE_LIMIT}, not {number}")


A = TypeVar("A")
R = TypeVar("R")


class Touches(Enum):
    """The object of a request: `Api` finds its functions, and refuses callers who lack the request's permission for one.

    Each has the field of requests that names it, and the code and the sentence of a request whose object does not exist.
    """

    FUNCTION = (
        "function",
        Code.FUNCTION_NOT_FOUND,
        "no job and no worker has the function {}: mainspring functions list shows those there are",
    )
    """The function that the field ``function_field`` names."""
    JOB = "handle", Code.JOB_NOT_FOUND, "no job has the handle {}: it never existed here, or is no longer kept"
    RUN = (
        "key",
        Code.RUN_NOT_FOUND,
        "no run has the handle or workflow id {}: it never existed here, or is no longer kept; see mainspring workflows list",
    )
    """A run of a workflow; without a key, all runs of the namespace."""
    SCHEDULE = (
        "name",
        Code.SCHEDULE_NOT_FOUND,
        "there is no schedule {!r}; mainspring schedules list shows those there are",
    )
    """A schedule, and the function that the request gives it."""
    OPERATION = "id", Code.OPERATION_NOT_FOUND, "there is no operation {}: it never existed here, or is no longer kept"
    """An operation: all jobs that it may change, unless the caller started it."""
    WORKER = "worker", Code.WORKER_NOT_FOUND, "no worker has the id {}: mainspring workers list shows those there are"
    """A worker is of all functions of the namespace: the caller needs the permission for all of them."""
    NODE = "node", Code.NODE_NOT_FOUND, "there is no node {}; mainspring nodes list shows those there are"
    """A node is of all functions, as a worker is."""
    TOKEN = "token", Code.TOKEN_NOT_FOUND, "there is no token {!r}; mainspring tokens list shows their ids"
    """A token: its handler checks that the caller administers it."""
    ALL = "", None, "all"
    """Another thing of all functions of the namespace."""
    EACH = "", None, "each"
    """Several objects, whose handler checks each of them and leaves out or refuses those without the permission."""
    NONE = "", None, "none"
    """Nothing that exists."""

    def __init__(self, field: str, code: Code | None, missing: str) -> None:
        self.field = field
        self.code = code
        self._missing = missing

    def not_found(self, name: str) -> ApiError:
        """Return the refusal of a request for an object of this kind that does not exist."""
        assert self.code is not None
        return ApiError(self.code, self._missing.format(name))


class Page(msgspec.Struct, Generic[A]):
    """A part of a list, whose request has the fields ``cursor`` and ``limit``.

    Any part may be short, and even empty: the list ends where ``next`` is None. `Api` ends a part at `sizes.PAGE` bytes.
    """

    items: list[A]
    next: str | None = None
    """The ``cursor`` of the request for the next part. Only `Api` makes and reads cursors: a handler gives a place of its own,
    such as a handle, and finds it in ``cursor``."""
    searched_to: str | None = None
    """How far a search has come that ended before the page was full: the time of the last row that it has examined."""


class Request(Namespaced, Generic[A], forbid_unknown_fields=True, omit_defaults=True):
    """A request; ``A`` is the type of its answer."""

    permission: ClassVar[Permission]
    """The need of the caller in the namespace of the request. `Api` registers no request without one."""
    touches: ClassVar[Touches | None] = None
    """Its object. `Api` registers no request without one whose permission is more than to read; others may have one, too."""
    reads_object: ClassVar[bool] = False
    """Whether its handler reads the object that it touches, and checks it with `Call.check`: `Api` does not look it up before."""
    keeps_answer: ClassVar[bool] = False
    """Whether its handler keeps the answer in the transaction of the act, if the request has a key (`Call.once`)."""
    requires: ClassVar[Feature | None] = None
    """The feature of the store that it needs: `Api` refuses it without."""
    function_field: ClassVar[str] = "function"
    """The field with the name of a function; the caller needs the permission for that."""
    in_any_namespace: ClassVar[bool] = False
    """Whether a caller with the permission in some namespace may ask. The handler then checks each object."""
    call: ClassVar[str] = ""
    """The name in JSON; empty for a request with bytes, which JSON cannot hold, and for one that other calls replace."""
    http: ClassVar[Http | None] = None
    """Its place in the HTTP API; None: a face has its routes by hand, or there is none."""
    command: ClassVar[str] = ""
    """The end of a command's help, such as its examples. A request with it has a command that is made of its declaration."""
    button: ClassVar[Button | None] = None
    """Its form on the page of its object; None: the page has one by hand, or there is none."""
    name_in_audit: ClassVar[str] = ""
    """The name of a request without ``call`` in the audit."""
    in_all_namespaces: ClassVar[bool] = False
    """Whether a caller needs the permission in all namespaces, for all functions: the request is about what all of them share."""
    about_nodes: ClassVar[bool] = False
    """Whether its answer is about nodes or about all namespaces. Tokens get the part that they may see; ports of one namespace
    have no right to any of it."""
    only_reads: ClassVar[bool] = False
    """Whether it changes nothing and may take long: it ends when its client disconnects."""
    is_small: ClassVar[bool] = False
    """Whether it reads or changes a single thing and has a short answer, so that a client may have many of them under way."""
    of_page: ClassVar[tuple[str, ...]] = ("limit",)
    """Of a list: fields that are about one page, and no part of the filter to which a cursor belongs. They have defaults."""
    bounds_pages: ClassVar[bool] = False
    """Of a list: whether its handler ends a page at `sizes.PAGE` bytes itself, in place of `Api`."""

    def needs(self) -> Permission:
        """Return the need of this request, which may be more than ``permission``."""
        return self.permission

    def needed_feature(self) -> Feature | None:
        """Return the feature of the store that this request needs, which may depend on its fields."""
        return self.requires


@cache
def answer_type(kind: type[Request[Any]]) -> Any:
    """Return the type of the answer to a request."""
    for base in kind.__mro__:
        for origin in getattr(base, "__orig_bases__", ()):
            if get_origin(origin) is Request:
                return get_args(origin)[0]
    raise TypeError(f"{kind.__name__} does not name the type of its answer")


def is_list(kind: type[Request[Any]]) -> bool:
    """Return whether a request has a page of a list as its answer."""
    return "cursor" in kind.__struct_fields__


def summary_of(kind: type[Request[Any]]) -> str:
    """Return the first sentence of a request's docstring, as the title of its route, its command and its button."""
    first = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
    return first.partition(". ")[0].removesuffix(".")


def details_of(kind: type[Request[Any]]) -> str:
    """Return a request's docstring without the first sentence."""
    whole = inspect.cleandoc(kind.__doc__ or "")
    return whole.removeprefix(summary_of(kind)).removeprefix(".").strip()


def requests_of(subject: ModuleType) -> tuple[type[Request[Any]], ...]:
    """Return the requests that a module declares, in their order."""
    found = [one for one in vars(subject).values() if isinstance(one, type) and one.__module__ == subject.__name__]
    return tuple(one for one in found if issubclass(one, Request))


def read(requests: Mapping[str, type[R]], name: str, params: bytes) -> R:
    """Return a request from JSON; no bytes stand for an empty object. Raises ApiError."""
    kind = requests.get(name)
    if kind is None:
        raise ApiError(Code.UNKNOWN_CALL, f"there is no method {name!r}; there are {', '.join(sorted(requests))}")
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (ValueError, RecursionError) as error:  # a MsgspecError, text that is not UTF-8, or too many levels
        raise ApiError(Code.UNREADABLE, f"the params of {name} cannot be read: {error}") from None


def params_of(request: Request[Any]) -> dict[str, Any]:
    """Return a request's fields as JSON values, without those at their defaults: nodes have the same ones."""
    params: dict[str, Any] = msgspec.to_builtins(request)
    return params


write = msgspec.json.Encoder().encode
"""Return an answer as JSON."""

StateName = Literal["scheduled", "pending", "leased", "running", "succeeded", "failed", "cancelled", "expired"]
OfState = Annotated[
    Text | Texts | None, described("Only jobs in this state; may be repeated.", choices=get_args(StateName))
]
OfFunction = Annotated[Text | None, described("Only jobs of this function.")]
OfUnique = Annotated[Text | None, described("Only jobs with this unique.")]
OfKey = Annotated[Text | None, described("Only jobs with this concurrency key.", label="Concurrency key")]
OfSchedule = Annotated[Text | None, described("Only jobs of this schedule.")]
OfWorkflow = Annotated[
    Text | None, described("Only jobs of this run, given by its handle or workflow id.", label="Run")
]
OfError = Annotated[
    Text | None,
    described("Only jobs whose last failure has this type, such as ValueError.", "--error", label="Error type"),
]
OfTag = Annotated[Text | None, described("Only jobs with this tag.")]
CreatedFrom = Annotated[
    Time | None,
    described(
        "Only jobs that were submitted at this time or later, such as 2030-01-31T12:00:00Z.",
        "--created-after",
        label="Created from",
    ),
]
CreatedTo = Annotated[
    Time | None,
    described("Only jobs that were submitted before this time.", "--created-before", label="Created before"),
]


class JobCriteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Criteria for jobs. A job matches if it meets all of them; docs/reference/protocol.md explains the keys.

    `jobs.List` has the same fields. It cannot inherit them: msgspec allows one base with fields, and all requests have another.
    """

    state: OfState = None
    function: OfFunction = None
    unique: OfUnique = None
    key: OfKey = None
    schedule: OfSchedule = None
    workflow: OfWorkflow = None
    error_type: OfError = None
    tag: OfTag = None
    created_from: CreatedFrom = None
    created_to: CreatedTo = None


class Shared:
    """A value for many feeds, which is encoded once: all clients get the same bytes."""

    __slots__ = ("_encoded", "_value")

    def __init__(self, value: object) -> None:
        self._value = value
        self._encoded: dict[str, bytes] = {}

    def encoded(self, event: str, encode: Callable[[str, object], bytes]) -> bytes:
        """Return the bytes of an event with this value. All feeds pass the same ``encode``."""
        found = self._encoded.get(event)
        if found is None:
            found = self._encoded[event] = encode(event, self._value)
        return found


class Feed(Protocol):
    """Takes the events of one stream. No method waits: a feed drops events that a slow client cannot take."""

    def replace(self, event: str, value: object) -> None:
        """Send the newest state of something, or a `Shared` one; an unsent earlier one of the same name is dropped."""

    def append(self, event: str, value: object, place: str = "") -> None:
        """Send an event that may not be dropped. If too many are unsent, the stream ends, and its client connects again.

        A client that has got ``place`` gives it back then (``Last-Event-ID``).
        """

    @property
    def has_room(self) -> bool:
        """Whether the client has read enough to get more: a stream that reads a store waits for it."""

    def end(self) -> None:
        """End the stream once all events are sent."""

"""Events: changes of jobs for subscribers of the same process (`Hub`), and messages between the nodes of one store (`Relay`).

No guarantee depends on the messages: any of them can be lost.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - msgspec reads the annotations of messages
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container


class Identified(Protocol):
    """A job, or anything else with an id."""

    @property
    def id(self) -> int:
        """Its number."""


class _EveryJob:
    """The ids of all jobs."""

    def __contains__(self, job_id: object) -> bool:
        return True


_EVERY_JOB: Final = _EveryJob()


class Hub:
    """Publishes jobs to the subscribers of single jobs, and to those of all jobs.

    Publishers look at ``active`` and then at ``wanted`` first, and create nothing that nobody gets. Otherwise many pages that
    each show one job would cost every other job a call for each page.
    """

    def __init__(self) -> None:
        self._of_all: dict[Callable[[Any], None], None] = {}
        self._of_one: dict[int, dict[Callable[[Any], None], None]] = {}
        self.active = False
        self.wanted: Container[int] = self._of_one
        """The ids of the jobs whose changes somebody gets: no method, because it is asked at each change of each job."""

    def subscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Call a function with each change from now on: of one job, or of all."""
        (self._of_all if of is None else self._of_one.setdefault(of, {}))[subscriber] = None
        self._changed()

    def unsubscribe(self, subscriber: Callable[[Any], None], of: int | None = None) -> None:
        """Stop calling a function that was subscribed with the same ``of``."""
        subscribers = self._of_all if of is None else self._of_one.get(of, {})
        subscribers.pop(subscriber, None)
        if of is not None and not subscribers:
            self._of_one.pop(of, None)
        self._changed()

    def _changed(self) -> None:
        self.active = bool(self._of_all or self._of_one)
        self.wanted = _EVERY_JOB if self._of_all else self._of_one

    def publish(self, job: Identified) -> None:
        """Call the job's subscribers; they must not raise."""
        for subscriber in (*self._of_all, *self._of_one.get(job.id, ())):
            subscriber(job)


class Settled(NamedTuple):
    """Jobs have ended for which clients of the receiving node wait; their outcomes are in the store."""

    ids: Sequence[int]


class Pending(NamedTuple):
    """Due jobs of these functions were stored; nodes with workers for them may claim them."""

    functions: Sequence[bytes]


class Progress(NamedTuple):
    """A progress report of a job for which a client of the receiving node waits."""

    id: int
    kind: Literal["data", "warning", "status"]
    first: bytes
    """The data; the numerator for a status."""
    second: bytes = b""
    """The denominator."""


class ProgressText(NamedTuple):
    """The text of the progress of a job, before the `Progress` or the `Running` with its numbers. Older nodes leave it out."""

    id: int
    text: str


class Stop(NamedTuple):
    """A request to cancel a job that a worker of the receiving node runs."""

    id: int
    reason: str


class Ask(NamedTuple):
    """A request for the state of a job that the receiving node holds. Nodes of older versions do not answer."""

    id: int
    by: int
    """The term of the requesting node."""


class Running(NamedTuple):
    """The answer to `Ask`: the state of a job that a worker of the answering node runs."""

    id: int
    started_us: int
    """When the worker got it; 0 if the node has not assigned it to a worker, and then the other fields are empty."""
    attempt: int = 0
    """The number of the attempt under way."""
    worker: str = ""
    numerator: bytes = b"0"
    denominator: bytes = b"0"


class StopRequested(NamedTuple):
    """When the worker of a job was asked to stop it, before the job's `Running`. Older nodes leave it out."""

    id: int
    at_us: int


class Abandoned(NamedTuple):
    """Ended terms still hold jobs: the receiving node recovers them. An engine sends this to its own node."""

    terms: Sequence[int]


class Direct(NamedTuple):
    """A request to a worker that is connected to the receiving node. Nodes of older versions ignore it."""

    worker: int
    """Its number at that node."""
    verb: Literal["drain", "undrain", "stop"]


class FollowLog(NamedTuple):
    """A request to report new lines of a job that the receiving node holds. It holds for some seconds; older nodes ignore it."""

    id: int
    by: int
    """The term of the requesting node."""


class Logged(NamedTuple):
    """Lines of these jobs were stored, whose logs clients of the receiving node read."""

    ids: Sequence[int]


class FollowValues(NamedTuple):
    """Clients of the node of a term wait for published values: report them to it for some seconds. Older nodes ignore it."""

    by: int


class ValuesPublished(NamedTuple):
    """Values of these jobs were stored, and clients of the receiving node wait for some."""

    ids: Sequence[int]


class FollowStreams(NamedTuple):
    """Clients of the node of a term read streams: report what is written to it for some seconds. Older nodes ignore it."""

    by: int


class StreamsWritten(NamedTuple):
    """Items of streams of these jobs were stored, and clients of the receiving node read some."""

    ids: Sequence[int]


class InterestsChanged(NamedTuple):
    """The receiving node reads the interests in events again, which another node has changed. Older nodes ignore it."""

    version: int
    """The number of changes in the store."""


class TakeSlots(NamedTuple):
    """A request to take the slots of a resource away from a job that the receiving node holds. Older nodes ignore it."""

    id: int
    turn: int
    """Under which the job has them."""
    resource: str
    """The key of its name."""
    cancel: bool
    """Whether to cancel the job; if not, it waits for its slots again."""
    act: bytes
    """MessagePack of the act."""


AboutWaiters = FollowValues | ValuesPublished | FollowStreams | StreamsWritten
"""Messages about clients that wait for values, or read streams."""

Message = (
    Settled
    | Pending
    | Progress
    | ProgressText
    | Stop
    | Ask
    | StopRequested
    | Running
    | Abandoned
    | Direct
    | FollowLog
    | Logged
    | InterestsChanged
    | TakeSlots
    | FollowValues
    | ValuesPublished
    | FollowStreams
    | StreamsWritten
)


class Relay(Protocol):
    """The port of a shared store for messages."""

    def listen(self, on_message: Callable[[Message], None]) -> None:
        """Call a function with each message for this node, on the node's thread, from now on.

        The engine itself sends `Settled` and `Pending` after the commits that cause them, and may send `Abandoned`.
        """

    def send(self, to: int, message: Message) -> None:
        """Send a message to the node of a term; without such a node it is dropped."""

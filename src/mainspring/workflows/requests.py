"""The requests of deciders and clients to a run, with their answers.

The pure rules judge them; operations of the store carry them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from mainspring.namespaces import DEFAULT
from mainspring.workflows.model import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError
    from mainspring.jobs.model import State as JobState
    from mainspring.workflows.decisions.model import Decision, StepResult, StepRetry
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Key, Parked

    Failed = Callable[[MainspringError], None]
    """Is called with the error if a request fails."""


class Completion(NamedTuple):
    """A decider's report about a run.

    With ``job`` it holds a decision task. The node puts the task's settlement before this operation and atomically with it,
    unless ``more``: then the decider goes on with the run. Without ``job`` it is *fused*: the decider has just completed
    activities of the run (``settled``), and their settlements go before it. A fused one is current while no decision task of the
    run is held, and nothing is newer than ``seen`` but the ends of these activities.
    """

    run: int
    job: int = 0
    """The decision task's job, held under the node's term; 0 if fused."""
    seen: int = 0
    """The last event that the decider had."""
    now_us: int = 0
    batch: int = 0
    steps: Sequence[StepResult] = ()
    decisions: Sequence[Decision] = ()
    settled: Sequence[int] = ()
    """Jobs of activities."""
    more: bool = False
    about: bytes = b""
    """``model.About`` as MessagePack, for people."""
    parked: Parked | None = None
    """Park the run instead: its code cannot make this decision."""
    build: str = ""
    identity: str = ""
    new_run: int = 0
    """The id of the new run if the decisions continue the run as new; 0: the rules choose it."""
    namespace: str = DEFAULT
    """The namespace of the decider: runs of others are unknown to it."""
    semantics: int = 0
    """The behaviour with which the code ran; see ``model.SEMANTICS``."""
    retries: Sequence[StepRetry] = ()
    """Steps that wait for their next attempts: the run gets a decision when the first one is due."""


Verdict = Literal["recorded", "stale", "refused", "parked"]


class Ruling(NamedTuple):
    """The verdict of the rules on a completion."""

    verdict: Verdict
    why: str = ""
    refused_close: bool = False
    """See ``Decided``."""


class Decided(NamedTuple):
    """The outcome of one completion."""

    verdict: Verdict
    why: str = ""
    events: Sequence[Event] = ()
    """All events after ``Completion.seen``, as far as they are in memory; empty if stale."""
    status: Status = Status.OPEN
    refused_close: bool = False
    """The run had unseen events, so that it was not closed: the decider takes them and issues the close again."""


class Signal(NamedTuple):
    """A signal for a run, or for a job whose run has not begun."""

    key: Key
    name: str
    input: bytes
    request: int = 0
    """A hash that identifies the request: a repeated one counts once. 0: none."""


RequestVerdict = Literal["recorded", "repeated", "unknown", "ambiguous", "closed", "full", "unread"]
"""``ambiguous``: several jobs may be meant, whose runs have not begun; ``unread``: the node cannot read the run."""


class Reached(NamedTuple):
    """The outcome of a request to a run."""

    verdict: RequestVerdict
    run: int = 0
    """0 if the run has not begun and begins no more, or takes no more signals before its begin."""
    root: int = 0
    event: int = 0
    status: Status = Status.OPEN
    waiting: JobState | None = None
    """The state of the job with which the signal is stored, because its run has not begun."""
    fault: str = ""
    """Why the node cannot read the run."""

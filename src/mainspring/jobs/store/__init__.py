"""The operations of the jobs slice on a store, and their outcomes.

An engine runs them in the order of their phases (``storage.phases``). Every operation names its guards. A row whose guard fails
stays unchanged and is listed in the outcome; the operation's other rows are not affected.
"""

from mainspring.jobs.store.changes import Deleted, DeleteEnded, Reschedule, Rescheduled
from mainspring.jobs.store.claims import KEYS_PER_CLAIM, After, Claim, ClaimByKey, ClaimedByKey, ClaimRequest
from mainspring.jobs.store.counts import Count, CountDead, Counted, CountLive, ShowLive, numbered
from mainspring.jobs.store.life import (
    Assign,
    Cancel,
    Cancelled,
    Found,
    JobTerm,
    Redrive,
    Redriven,
    RequestStop,
    Settle,
    Submit,
    SubmitOnce,
    Withdrawn,
    each_once,
)
from mainspring.jobs.store.lookups import Find, FindUnique, InNamespace, ShowJob, fitting, leave_unread
from mainspring.jobs.store.nodes import (
    Backlog,
    DrainedInbox,
    DrainInbox,
    FindSubscribers,
    LostAttempt,
    ReadBacklog,
    Recover,
    Recovered,
    Subscribe,
    Unsubscribe,
    lost_attempts,
    tally,
)
from mainspring.jobs.store.timing import Sweep, Wake, Woken

__all__ = [
    "KEYS_PER_CLAIM",
    "After",
    "Assign",
    "Backlog",
    "Cancel",
    "Cancelled",
    "Claim",
    "ClaimByKey",
    "ClaimRequest",
    "ClaimedByKey",
    "Count",
    "CountDead",
    "CountLive",
    "Counted",
    "DeleteEnded",
    "Deleted",
    "DrainInbox",
    "DrainedInbox",
    "Find",
    "FindSubscribers",
    "FindUnique",
    "Found",
    "InNamespace",
    "JobTerm",
    "LostAttempt",
    "ReadBacklog",
    "Recover",
    "Recovered",
    "Redrive",
    "Redriven",
    "RequestStop",
    "Reschedule",
    "Rescheduled",
    "Settle",
    "ShowJob",
    "ShowLive",
    "Submit",
    "SubmitOnce",
    "Subscribe",
    "Sweep",
    "Unsubscribe",
    "Wake",
    "Withdrawn",
    "Woken",
    "each_once",
    "fitting",
    "leave_unread",
    "lost_attempts",
    "numbered",
    "tally",
]

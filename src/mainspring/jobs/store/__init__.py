"""The port that the jobs slice needs: its operations, and what each answers.

An engine runs them in the order of their phases (``storage.phases``). Every operation names what guards it; a row whose guard
does not hold is left alone and said so in the outcome, and costs only itself.
"""

from mainspring.jobs.store.claims import KEYS_AT_MOST, After, Claim, ClaimByKey, ClaimedByKey, Want
from mainspring.jobs.store.counts import Count, Counted, CountLive, ShowLive, numbered
from mainspring.jobs.store.life import (
    Assign,
    Cancel,
    Cancelled,
    Found,
    Lease,
    Redrive,
    Redriven,
    Settle,
    Submit,
    each_once,
)
from mainspring.jobs.store.lookups import Find, FindUnique, fitting, leave_unread
from mainspring.jobs.store.nodes import (
    Leave,
    Look,
    LostAttempt,
    Outlook,
    Recover,
    Recovered,
    TakeInbox,
    Taken,
    Wait,
    Watchers,
    lost_attempts,
    tally,
)
from mainspring.jobs.store.timing import Sweep, Wake, Woken

__all__ = [
    "KEYS_AT_MOST",
    "After",
    "Assign",
    "Cancel",
    "Cancelled",
    "Claim",
    "ClaimByKey",
    "ClaimedByKey",
    "Count",
    "CountLive",
    "Counted",
    "Find",
    "FindUnique",
    "Found",
    "Lease",
    "Leave",
    "Look",
    "LostAttempt",
    "Outlook",
    "Recover",
    "Recovered",
    "Redrive",
    "Redriven",
    "Settle",
    "ShowLive",
    "Submit",
    "Sweep",
    "TakeInbox",
    "Taken",
    "Wait",
    "Wake",
    "Want",
    "Watchers",
    "Woken",
    "each_once",
    "fitting",
    "leave_unread",
    "lost_attempts",
    "numbered",
    "tally",
]

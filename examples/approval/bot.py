"""The bot's ears: each line of the chat such as ``eva: yes trip-7`` becomes a vote."""

from __future__ import annotations

import sys

from app import Vote, approval, votes
from mainspring import ConflictError, NotFoundError

for line in sys.stdin:
    person, _, rest = line.strip().partition(": ")
    answer, _, request = rest.partition(" ")
    if answer in {"yes", "no"}:
        try:
            approval.get(request).signal(votes, Vote(person, answer == "yes"))
        except (NotFoundError, ConflictError):
            print(f"{person}: {request} is not open")

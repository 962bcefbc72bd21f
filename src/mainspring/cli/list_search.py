"""A search for jobs or runs in several requests: each answer has those found in 60 ms and the handle at which to continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.cli.calls import call
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.api import jobs, workflows
    from mainspring.client.blocking import Client


class ListSearch:
    """The rows found so far, and the position of the search.

    ``rows`` is the key of an answer's rows, ``place`` the field of the request with the handle at which it continues.
    """

    def __init__(self, client: Client, request: jobs.List | workflows.List, *, rows: str, place: str) -> None:
        self._client = client
        self._request = request
        self._rows = rows
        self._place = place
        self._supports_partial = True
        """Whether the server can answer before it has found as many rows as the limit; earlier versions cannot."""
        self.found: list[dict[str, Any]] = []
        self.next: str | None = None
        """The handle before which the search continues; None: it has ended."""
        self.searched_to: str | None = None
        """The time at which the last examined job was submitted, or run was started."""

    def run(self) -> None:
        """Search until the limit is reached or no row is left. An exception keeps the rows that were found before it."""
        request, limit = self._request, self._request.limit
        while True:
            answer = self._call(_replaced(request, limit=limit - len(self.found)))
            self.found += answer[self._rows]
            self.next, self.searched_to = answer.get("next"), answer.get("searched_to")
            if self.next is None or len(self.found) >= limit:
                return
            request = _replaced(request, **{self._place: self.next})

    def _call(self, request: jobs.List | workflows.List) -> dict[str, Any]:
        if self._supports_partial:
            try:
                return call(self._client, _replaced(request, partial=True))
            except UsageError:
                self._supports_partial = False
        return call(self._client, request)


def _replaced(request: jobs.List | workflows.List, **fields: Any) -> jobs.List | workflows.List:
    return msgspec.structs.replace(request, **fields)

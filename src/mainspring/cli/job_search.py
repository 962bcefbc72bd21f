"""A search for jobs in several requests: each answer has the jobs found in 60 ms and the handle at which to continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.cli.calls import call
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.api.jobs import List
    from mainspring.client.blocking import Client


class JobSearch:
    """The jobs found so far, and the position of the search."""

    def __init__(self, client: Client, request: List) -> None:
        self._client = client
        self._request = request
        self._supports_partial = True
        """Whether the server can answer before it has found as many jobs as the limit; earlier versions cannot."""
        self.jobs: list[dict[str, Any]] = []
        self.next: str | None = None
        """The handle before which the search continues; None: it has ended."""
        self.searched_to: str | None = None
        """The time at which the last examined job was submitted."""

    def run(self) -> None:
        """Search until the limit is reached or no job is left. An exception keeps the jobs that were found before it."""
        request, limit = self._request, self._request.limit
        while True:
            answer = self._call(replace(request, limit=limit - len(self.jobs)))
            self.jobs += answer["jobs"]
            self.next, self.searched_to = answer.get("next"), answer.get("searched_to")
            if self.next is None or len(self.jobs) >= limit:
                return
            request = replace(request, before=self.next)

    def _call(self, request: List) -> dict[str, Any]:
        if self._supports_partial:
            try:
                return call(self._client, replace(request, partial=True))
            except UsageError:
                self._supports_partial = False
        return call(self._client, request)

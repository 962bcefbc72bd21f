"""A list of jobs, answer by answer: each has what the server has found in a tenth of a second, and says where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.cli.asking import ask
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.api.jobs import List
    from mainspring.client.blocking import Client


class Search:
    """Jobs that are listed, as far as the server has searched."""

    def __init__(self, client: Client, request: List) -> None:
        self._client = client
        self._request = request
        self._knows_partial = True
        """Whether the server may answer before it has as many jobs as the limit says; of an earlier version, it cannot."""
        self.jobs: list[dict[str, Any]] = []
        self.next: str | None = None
        """The handle before which it goes on."""
        self.searched_to: str | None = None
        """When the last job that was looked at was submitted."""

    def run(self) -> None:
        """Search until there are as many jobs as the limit says, or no more; whatever ends it before leaves what was found."""
        request, limit = self._request, self._request.limit
        while True:
            answer = self._ask(replace(request, limit=limit - len(self.jobs)))
            self.jobs += answer["jobs"]
            self.next, self.searched_to = answer.get("next"), answer.get("searched_to")
            if self.next is None or len(self.jobs) >= limit:
                return
            request = replace(request, before=self.next)

    def _ask(self, request: List) -> dict[str, Any]:
        if self._knows_partial:
            try:
                return ask(self._client, replace(request, partial=True))
            except UsageError:
                self._knows_partial = False
        return ask(self._client, request)

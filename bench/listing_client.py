"""Clients that list pages of rare functions continuously; run by `listing.py`.

    python listing_client.py CLIENTS FUNCTIONS      (the server is in MAINSPRING_SERVER; ends with its input)

It prints one line of JSON: the number of answers, and the times of the slowest answer and the longest search in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from mainspring.client.aio import AsyncClient
from mainspring.client.environment import parse_servers

INTERVAL = 0.1


class Lister:
    """A client that requests a page every 100 ms, or after the last answer; each request continues the search."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.answers: list[float] = []
        self.searches: list[float] = []
        self.found = 0

    async def run(self, over: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        client = AsyncClient(parse_servers(os.environ["MAINSPRING_SERVER"]))
        params: dict[str, Any] = {"function": self._function}
        began = now()
        while not over.is_set():
            sent = now()
            answer = await client.call("jobs.list", params)
            self.answers.append(now() - sent)
            self.found += len(answer["items"])
            if answer["next"] is None:
                self.searches.append(now() - began)
                params.pop("cursor", None)
            else:
                params["cursor"] = answer["next"]
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(sent + INTERVAL - now(), 0))
            began = now() if answer["next"] is None else began
        await client.close()


async def main(clients: int, functions: int) -> None:
    listers = [Lister(f"rare{number % functions}") for number in range(clients)]
    over = asyncio.Event()
    work = asyncio.gather(*(lister.run(over) for lister in listers))
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    await work
    answers = sorted(seconds for lister in listers for seconds in lister.answers)
    searches = [seconds for lister in listers for seconds in lister.searches]
    print(
        json.dumps(
            {
                "answers": len(answers),
                "median_s": answers[len(answers) // 2],
                "slowest_s": answers[-1],
                "searches": len(searches),
                "longest_search_s": max(searches, default=None),
                "found": sum(lister.found for lister in listers),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

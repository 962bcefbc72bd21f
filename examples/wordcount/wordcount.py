"""Counting words: the tasks.  `mainspring run wordcount.py` runs them; demo.py beside this file submits them."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TypedDict
from urllib.parse import quote, unquote_to_bytes

from mainspring import App, Retry, current_job

app = App()  # its jobs go to MAINSPRING_SERVER

WORD = re.compile(rb"[a-z]+")
BLOCK = 1 << 20
"""Bytes of a file that are looked at in one go: a large file takes no more memory than a small one."""


class Counted(TypedDict):
    """What a map job returns."""

    words: dict[str, int]
    unread: list[str]
    """Files that could not be read, and count for nothing."""


def as_text(path: bytes) -> str:
    """Write any path as text for JSON, also one that is no UTF-8."""
    return quote(path)


@app.task(retry=Retry(max_attempts=4, initial="200ms"))
def count_words(files: list[str], fails_at_first: bool = False) -> Counted:
    """Map: count the words of some files; one that cannot be read costs the others nothing.

    ``fails_at_first``: the first attempt raises once its work is half done, as a disk or a network does now and then.
    """
    counts: Counter[bytes] = Counter()
    unread = []
    for number, name in enumerate(files):
        if fails_at_first and current_job().attempt == 1 and number >= len(files) // 2:
            raise OSError(f"planted for the demo: {name} cannot be read at the first attempt")
        found: Counter[bytes] = Counter()
        try:
            with open(unquote_to_bytes(name), "rb") as file:  # noqa: PTH123 - a path of bytes
                while lines := file.readlines(BLOCK):
                    found.update(WORD.findall(b"".join(lines).lower()))
        except OSError:
            unread.append(name)
        else:
            counts.update(found)
    return {"words": {word.decode(): count for word, count in counts.items()}, "unread": unread}


@app.task(retry=Retry(max_attempts=4, initial="200ms"))
def most_frequent(counted: list[str], places: int) -> list[tuple[str, int]]:
    """Reduce: add up the results of the jobs that ``counted`` names by handle, and return the first places.

    The results come from the server, one at a time, so that neither the payload nor this worker holds all of them.
    """
    total: Counter[str] = Counter()
    for number, handle in enumerate(counted, start=1):
        total.update(json.loads(app.job(handle).result(timeout=60))["words"])
        current_job().progress(number, len(counted))
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))[:places]

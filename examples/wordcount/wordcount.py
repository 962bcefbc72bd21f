"""The tasks that count words.  `mainspring run wordcount.py` runs them; demo.py in this directory submits them."""

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
"""Bytes to read from a file at a time, so that a large file needs no more memory than a small one."""


class WordCounts(TypedDict):
    """The result of a map job."""

    words: dict[str, int]
    unread: list[str]
    """Files that could not be read; they are not counted."""


def as_text(path: bytes) -> str:
    """Return any path as text for JSON, even if it is not valid UTF-8."""
    return quote(path)


@app.task(retry=Retry(max_attempts=4, initial="200ms"))
def count_words(files: list[str], fails_at_first: bool = False) -> WordCounts:
    """Map: count the words of some files; skip and report files that cannot be read.

    ``fails_at_first``: the first attempt raises in the middle of its work, as if a disk or network had failed.
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
    """Reduce: add up the results of the jobs whose handles are in ``counted``, and return the first places.

    The results come from the server one at a time, so neither the payload nor this worker holds all of them.
    """
    total: Counter[str] = Counter()
    for number, handle in enumerate(counted, start=1):
        total.update(json.loads(app.job(handle).result(timeout=60))["words"])
        current_job().progress(number, len(counted))
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))[:places]

"""Counting words: the tasks.  `mainspring run wordcount.py` runs them; demo.py beside this file submits them."""

from __future__ import annotations

import json
import re
from collections import Counter
from urllib.parse import quote, unquote_to_bytes

from mainspring import App, Retry, current_job

app = App()  # its jobs go to MAINSPRING_SERVER

WORD = re.compile(rb"[a-z]+")
BLOCK = 1 << 20
"""Bytes of a file that are looked at in one go: a large file takes no more memory than a small one."""


def as_text(path: bytes) -> str:
    """Write any path as text for JSON, also one that is no UTF-8."""
    return quote(path)


@app.task(retry=Retry(max_attempts=4, initial=0.2))
def count_words(files: list[str], fails_at_first: bool = False) -> dict[str, int]:
    """Map: count the words of some files.

    ``fails_at_first``: the first attempt raises once its work is half done, as a disk or a network does now and then.
    """
    counts: Counter[bytes] = Counter()
    for number, name in enumerate(files):
        if fails_at_first and current_job().attempt == 1 and number >= len(files) // 2:
            raise OSError(f"planted for the demo: {name} cannot be read at the first attempt")
        with open(unquote_to_bytes(name), "rb") as file:  # noqa: PTH123 - a path of bytes
            while lines := file.readlines(BLOCK):
                counts.update(WORD.findall(b"".join(lines).lower()))
    return {word.decode(): count for word, count in counts.items()}


@app.task(retry=Retry(max_attempts=4, initial=0.2))
def most_frequent(counted: list[str], places: int) -> list[tuple[str, int]]:
    """Reduce: add up the results of the jobs that ``counted`` names by handle, and return the first places.

    The results come from the server, one at a time, so that neither the payload nor this worker holds all of them.
    """
    total: Counter[str] = Counter()
    for number, handle in enumerate(counted, start=1):
        total.update(json.loads(app.job(handle).result(timeout=60)))
        current_job().progress(number, len(counted))
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))[:places]

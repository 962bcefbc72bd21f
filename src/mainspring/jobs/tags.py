"""Tags: short texts that users give to jobs, to find them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.model import Job

MOST_TAGS: Final = 10
"""Tags of one job."""
TAG_LIMIT: Final = 100
"""Bytes of a tag."""


def check_tags(tags: Iterable[object], what: str = "tags") -> tuple[str, ...]:
    """Return tags sorted, each once. Raises UsageError for one that is invalid, and for too many."""
    found: set[str] = set()
    for tag in tags:
        if not isinstance(tag, str) or not tag.isprintable() or not 0 < len(tag.encode()) <= TAG_LIMIT:
            raise UsageError(f"{what}: {tag!r} is not a tag: give 1 to {TAG_LIMIT} bytes of printable text")
        found.add(tag)
    if len(found) > MOST_TAGS:
        raise UsageError(f"{what}: a job has at most {MOST_TAGS} tags, and {len(found)} were given")
    return tuple(sorted(found))


def indexed_tags(job: Job) -> tuple[str, ...]:
    """Return the tags by which lists find a job. A job whose row is deleted at its end has none."""
    options = job.options
    return () if options is None or options.forget else options.tags

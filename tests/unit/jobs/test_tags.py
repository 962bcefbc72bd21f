from __future__ import annotations

import pytest

from mainspring.errors import UsageError
from mainspring.jobs.model import Job, Options
from mainspring.jobs.user_data import check_tags, indexed_tags


def test_tags_are_sorted_and_unique() -> None:
    assert check_tags(["b", "a", "b", "ü" * 50]) == ("a", "b", "ü" * 50)
    assert check_tags([]) == ()


@pytest.mark.parametrize("tag", ["", "a\nb", "a\x1fb", "ü" * 51, b"a", 5, None])
def test_an_invalid_tag_is_refused(tag: object) -> None:
    with pytest.raises(UsageError, match="is not a tag: give 1 to 100 bytes of printable text"):
        check_tags(["a", tag])


def test_too_many_tags_are_refused() -> None:
    assert len(check_tags([*map(str, range(10)), "0"])) == 10
    with pytest.raises(UsageError, match="--tag: a job has at most 10 tags, and 11 were given"):
        check_tags(map(str, range(11)), "--tag")


def test_a_job_without_options_or_that_leaves_no_row_has_no_tags_in_the_index() -> None:
    job = Job(1, b"f", b"")
    assert indexed_tags(job) == ()
    job.options = Options(tags=("a",))
    assert indexed_tags(job) == ("a",)
    job.options = Options(tags=("a",), forget=True)
    assert indexed_tags(job) == ()

"""Statistics of attempts: bounded, and no figure ever decreases."""

from __future__ import annotations

from random import Random

import pytest

from mainspring.jobs import attempts, rules
from mainspring.jobs.attempts import BOUNDS, OTHER, OUTCOMES, RANK_INTERVAL, Attempts, waited_us
from mainspring.jobs.model import Job
from mainspring.jobs.rules import Event, Outcome, Settlement


def ended(
    function: bytes, outcome: Outcome | None = Outcome.SUCCEEDED, seconds: float = 1.0, event: Event = Event.SUCCEED
) -> Settlement:
    settlement = Settlement(Job(1, function, b""), event, 1)
    settlement.outcome = outcome
    settlement.ran_us = round(seconds * 1_000_000)
    return settlement


def waited(function: bytes, seconds: float) -> Settlement:
    """Return a success of a job that had waited so long."""
    started_us = 1 + round(seconds * 1_000_000)
    return rules.succeeded(Job(1, function, b"", created_us=1), b"", started_us, started_us)


def counted(figures: Attempts, now: float = 0.0) -> dict[tuple[bytes, str], int]:
    return {
        (one.name, outcome): number
        for one in figures.figures(now)
        for outcome, number in zip(OUTCOMES, one.outcomes, strict=True)
        if number
    }


def measured(figures: Attempts, now: float = 0.0) -> dict[bytes, int]:
    return {one.name: sum(one.ran_counts.counts) for one in figures.figures(now) if one.measured}


def test_each_end_is_counted_as_what_it_was() -> None:
    figures = Attempts()
    figures.ended([ended(b"f", outcome) for outcome in Outcome if outcome is not Outcome.FAILED])
    figures.ended([ended(b"f", Outcome.FAILED, event=Event.FAIL), ended(b"f", Outcome.TIMED_OUT, event=Event.RETRY)])
    figures.ended([ended(b"f", Outcome.FAILED, event=Event.RETRY), ended(b"f", None)])
    assert counted(figures) == {(b"f", outcome): 1 + (outcome == "timed_out") for outcome in OUTCOMES}


def test_durations_are_counted_up_to_their_bounds() -> None:
    figures = Attempts()
    durations = (1e-6, BOUNDS[0], BOUNDS[0] + 1e-6, BOUNDS[-1], BOUNDS[-1] + 1)
    figures.ended([ended(b"f", seconds=seconds) for seconds in durations])
    figures.ended([waited(b"f", seconds) for seconds in durations])
    one = next(figures.figures(0))
    for distribution in (one.ran_counts, one.waited_counts):
        assert distribution.counts == [2, 1, *[0] * (len(BOUNDS) - 3), 1, 1]
        assert distribution.total_us == sum(round(seconds * 1_000_000) for seconds in durations)


def test_an_attempt_of_unknown_length_is_counted_without_it() -> None:
    figures = Attempts()
    figures.ended([ended(b"f", Outcome.LOST, 0.0)])
    assert (counted(figures), measured(figures)) == ({(b"f", "lost"): 1}, {b"f": 0, OTHER: 0})


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (Job(1, b"f", b"", created_us=90_000_000), 10.0),
        (Job(1, b"f", b"", created_us=50_000_000, due_us=98_000_000), 2.0),
        (Job(1, b"f", b"", created_us=90_000_000, due_us=50_000_000), 10.0),
        (Job(1, b"f", b"", created_us=50_000_000, due_us=97_000_000, attempt=1), 3.0),
        (Job(1, b"f", b"", created_us=101_000_000), 0.0),  # the clock of the node that took it was ahead
        (Job(1, b"f", b"", created_us=50_000_000, attempt=1), None),  # back in its place since nobody knows when
    ],
)
def test_a_wait_is_counted_since_the_job_was_due(job: Job, seconds: float | None) -> None:
    success = rules.succeeded(job, b"", 100_000_000, 100_000_000)
    loss = ended(b"f", Outcome.LOST)
    loss.waited_us = waited_us(job, 100_000_000)
    for settlement in (success, loss):
        figures = Attempts()
        figures.ended([settlement])
        distribution = next(figures.figures(0)).waited_counts
        one = (sum(distribution.counts), distribution.total_us / 1_000_000)
        assert one == ((0, 0.0) if seconds is None else (1, seconds))


def test_of_very_many_functions_most_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_COUNTED", 3)
    monkeypatch.setattr(attempts, "MAX_MEASURED", 2)
    figures = Attempts()
    figures.ended([ended(b"%d" % number) for number in range(5)] + [ended(OTHER), ended(b"1")])
    assert counted(figures) == {
        (b"0", "succeeded"): 1, (b"1", "succeeded"): 2, (b"2", "succeeded"): 1, (OTHER, "succeeded"): 3,
    }  # fmt: skip
    assert measured(figures) == {b"0": 1, b"1": 2, OTHER: 4}


def test_the_busiest_have_distributions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_MEASURED", 1)
    figures = Attempts()
    figures.ended([ended(b"f")])
    assert measured(figures, 0) == {b"f": 1, OTHER: 0}
    figures.ended([ended(b"g")] * 10)
    assert measured(figures, RANK_INTERVAL - 1) == {b"f": 1, OTHER: 10}
    assert measured(figures, RANK_INTERVAL) == {b"g": 0, OTHER: 10}
    figures.ended([ended(b"f"), *[ended(b"g")] * 2])
    assert measured(figures, RANK_INTERVAL + 1) == {b"g": 2, OTHER: 11}
    figures.ended([ended(b"f")] * 40)
    assert measured(figures, 2 * RANK_INTERVAL) == {b"f": 1, OTHER: 51}, "it goes on where it was"
    figures.ended([ended(b"g")] * 30)
    assert measured(figures, 3 * RANK_INTERVAL) == {b"f": 1, OTHER: 81}, "not for a little more"


def test_no_figure_ever_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_COUNTED", 30)
    monkeypatch.setattr(attempts, "MAX_MEASURED", 5)
    chance, figures, now = Random(7), Attempts(), 0.0
    before: dict[tuple[bytes, str], int] = {}
    total = 0
    for _ in range(200):
        busy = chance.sample(range(50), 8)
        batch = [ended(b"%d" % chance.choice(busy), chance.choice(list(Outcome))) for _ in range(chance.randrange(60))]
        for one in batch:
            one.job.created_us, one.started_us, one.waited_us = 1, 2, 1
        figures.ended(batch)
        total += len(batch)
        now += chance.choice([1, RANK_INTERVAL])
        after = counted(figures, now)
        assert sum(after.values()) == total, "each attempt is counted once"
        for figure in figures.figures(now):
            if figure.measured:
                after[figure.name, "ran"] = sum(figure.ran_counts.counts)
                after[figure.name, "waited"] = sum(figure.waited_counts.counts)
        assert all(after[key] >= number for key, number in before.items() if key in after)
        before |= after

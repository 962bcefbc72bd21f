from mainspring.log_limit import KeyedLogLimit, LogLimit


def test_lines_within_the_time_are_left_out_and_counted() -> None:
    limit = LogLimit(5.0)
    assert [limit.left_out(now) for now in (100.0, 100.5, 104.9)] == [0, None, None]
    assert [limit.left_out(now) for now in (105.0, 105.1, 200.0, 300.0)] == [2, None, 1, 0]


def test_the_first_line_is_always_allowed() -> None:
    assert LogLimit(5.0).left_out(0.0) == 0


def test_each_key_has_a_number_of_lines_per_second() -> None:
    limit = KeyedLogLimit(lines=3)
    assert [limit.allows("f", now) for now in (5.0, 5.1, 5.2, 5.3, 5.9)] == [True, True, True, False, False]
    assert limit.allows("g", 5.5)
    assert limit.next_end == 6.0
    assert limit.left_out(5.95) == []
    assert limit.allows("f", 6.0)
    assert limit.left_out(6.0) == [("f", 2)]
    assert limit.left_out(9.0) == []
    assert limit.next_end is None


def test_ended_spans_are_removed_and_surplus_keys_share_a_limit() -> None:
    limit = KeyedLogLimit(lines=2, keys=100)
    allowed = [limit.allows(f"f{at}", 1.0) for at in range(10_000)]
    assert allowed.count(True) == 102
    assert len(limit._spans) <= 101  # noqa: SLF001 - its memory use is not visible otherwise
    assert limit.left_out(2.0) == [("", 9_898)]
    assert not limit._spans  # noqa: SLF001 - its memory use is not visible otherwise


def test_each_second_has_its_own_count() -> None:
    limit = KeyedLogLimit(lines=1)
    for at in range(100):
        limit.allows("f", at / 10)
    left_out = limit.left_out(11.0)
    assert sum(number for _, number in left_out) == 90
    assert len(left_out) == 10


def test_a_span_may_be_longer_than_a_second() -> None:
    limit = KeyedLogLimit(lines=1, seconds=60.0)
    assert [limit.allows("full", now) for now in (0.0, 1.5, 59.9, 60.0, 61.0)] == [True, False, False, True, False]
    assert limit.left_out(60.0) == [("full", 2)]

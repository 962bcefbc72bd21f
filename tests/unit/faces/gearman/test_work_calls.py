"""The calls of workers that watch work in other systems: what they may send."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.faces.gearman.work_calls import RecordsWork


def read(meta: str) -> RecordsWork:
    return msgspec.json.decode(msgspec.json.encode({"works": [("H:n:1", "t", 1, meta)]}), type=RecordsWork)


def test_an_answer_is_json() -> None:
    assert read('{"id":"x"}').works[0].meta == '{"id":"x"}'


@pytest.mark.parametrize("meta", ["x", "[1", "[1] 2", "[" * 60_000])
def test_an_answer_that_is_not_json_is_refused(meta: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="is not JSON"):
        read(meta)

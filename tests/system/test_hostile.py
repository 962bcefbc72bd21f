"""A server under each attack that is known to have hurt: who has nothing to do with it is served as before.

The short form has small sizes; the long one those with which the attacks were found, and a server for each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from .hostile import hoarding, naming, swapping
from .hostile.watching import MIB
from .servers import Server, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


FILES = 400
"""How many files the shared server may have open."""

SHORT: dict[str, Callable[[Server], None]] = {
    "client ids": partial(hoarding.client_ids, connections=10, size=4 * MIB),
    "abilities": partial(naming.abilities, workers=10, count=10_000),
    "empty function": naming.empty_function,
    "second node": swapping.second_node,
    "foreground jobs": partial(hoarding.foreground_jobs, count=40_000, left=24 * MIB),
}
LONG: dict[str, Callable[[Server], None]] = {
    "client ids": partial(hoarding.client_ids, connections=20, size=60 * MIB),
    "abilities": partial(naming.abilities, workers=30, count=10_000, growth=320 * MIB),
}


def limited(files: int) -> tuple[str, ...]:
    """Return a program that starts another one, which may have so many open files."""
    return ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh")


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("victim")
    with serving(directory, "--http", "127.0.0.1:0", tracer=limited(FILES)) as server:
        yield server


@pytest.mark.parametrize("attack", SHORT)
def test_an_attack_harms_nobody_else(victim: Server, attack: str) -> None:
    SHORT[attack](victim)
    victim.assert_calm()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", LONG)
def test_a_large_attack_harms_nobody_else(tmp_path: Path, attack: str) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0") as server:
        LONG[attack](server)
        server.assert_calm()


def test_files_are_for_their_owner(tmp_path: Path) -> None:
    swapping.readable_files(tmp_path)


def test_links_in_the_way_are_not_followed(tmp_path: Path) -> None:
    swapping.links_in_the_way(tmp_path)

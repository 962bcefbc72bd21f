"""The documentation is correct: its commands run as shown, and its links lead to existing places."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import find_program

from .pages import DOCS, ROOT, Block, anchors, blocks, links, pages
from .running import reader

if TYPE_CHECKING:
    from pathlib import Path

RUNNABLE_PAGES = [
    page for page in pages() if any(one.language == "console" or one.flagged("run") for one in blocks(page))
]

MOST_OF_PICTURE = 100 << 10
"""Bytes: pictures show whole pages."""
"""Bytes."""


def name(value: object) -> str:
    return str(value.relative_to(ROOT)) if hasattr(value, "relative_to") else str(value)


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUNNABLE_PAGES, ids=name)
def test_the_commands_of_a_page_run_as_shown(page: Path, tmp_path: Path) -> None:
    page_blocks = blocks(page)
    for block in page_blocks:
        word, _, program = block.text.partition(" ")
        if block.language == "test" and word == "needs":
            find_program(program)
        elif block.language == "test" and word == "likes" and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    with reader(tmp_path) as page_reader:
        for block in page_blocks:
            page_reader.follow(block)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_python_compiles_and_shell_parses(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, str(block), "exec", dont_inherit=True)
        elif block.language == "sh":
            done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
            assert not done.stderr, f"{block}: {done.stderr}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_to_existing_places(page: Path) -> None:
    for target in links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        place, _, anchor = target.partition("#")
        found = (page.parent / place).resolve() if place else page
        assert found.exists(), f"{name(page)} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(page)} links to {target}"


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in links(index)}
    assert {page for page in DOCS.rglob("*.md") if page != index} <= linked


def test_each_picture_is_small_and_shown() -> None:
    """``pytest tests/browser/test_screenshots.py --screenshots`` makes them anew."""
    pictures = {picture: picture.stat().st_size for picture in (DOCS / "images").rglob("*.png")}
    assert {picture.name: size for picture, size in pictures.items() if size > MOST_OF_PICTURE} == {}
    assert set(pictures) <= {(page.parent / target).resolve() for page in pages() for target in links(page)}


def test_every_block_has_a_language() -> None:
    def without_language(block: Block) -> bool:
        return not block.language

    assert [str(block) for page in pages() for block in blocks(page) if without_language(block)] == []

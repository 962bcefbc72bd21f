"""The pages of the documentation, with their blocks, links and headings.

A block's info string (```` ```console background ````) has these meanings:

==========================  ==========================================================================
``console``                 commands after ``$``, run in order; other lines are the expected output
``console background``      one command that keeps running; the lines are its output until it is ready
``python title="FILE"``     written to a file; other languages also
``python run``              run as a program in the page's directory
``python``                  compiled only
``sh``                      checked for its syntax only
==========================  ==========================================================================

Comments for the tests: ``<!-- test: stop -->`` ends the newest background command as Ctrl-C does, ``stop TEXT`` the newest one
whose command contains this text; ``needs PROGRAM`` names a program that `make test` installs; ``likes PROGRAM`` names one that it
does not install, and without which the page is skipped; ``with NAME`` runs a preparation; ``without VARIABLE`` removes a variable
from the reader's environment, which all other pages have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>\S.*)?$")
_COMMENT = re.compile(r"^<!-- test: (?P<text>.+) -->$")
_TITLE = re.compile(r'\btitle="(?P<title>[^"]+)"')
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block, or a comment for the tests (its language is ``test``)."""

    page: Path
    line: int
    language: str
    info: str
    text: str

    @property
    def title(self) -> str | None:
        found = _TITLE.search(self.info)
        return found["title"] if found else None

    def flagged(self, word: str) -> bool:
        return word in self.info.split()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return all pages for people."""
    tops = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*tops, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            start, indent, info = opened
            if fence is not None and not fence["info"]:
                language, _, rest = info.partition(" ")
                found.append(Block(page, start, language, rest, "".join(f"{one}\n" for one in lines)))
                opened, lines = None, []
            else:
                lines.append(line.removeprefix(indent))
        elif fence is not None:
            opened = (number, fence["indent"], fence["info"] or "")
        elif comment := _COMMENT.match(line):
            found.append(Block(page, number, "test", "", comment["text"]))
    assert opened is None, f"{page}: the block {opened} does not end"
    return found


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures outside of blocks."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return [found["target"] for found in _LINK.finditer(re.sub(r"`[^`\n]*`", "", prose))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}

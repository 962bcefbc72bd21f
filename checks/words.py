"""Refuses the identifiers and phrases in ``checks/words.toml``, and prints the reason and a better word for each use.

``python -m checks.words FILE|DIRECTORY…`` reads Python and Markdown files. It checks identifiers at their definitions, and
phrases in comments, texts and names of tests. It exits with 1 if it finds any.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LIST = Path(__file__).with_name("words.toml")
PROSE = re.compile(
    r"""\#(?P<comment>[^\n]*)
      | (?P<three>\"\"\"|\'\'\')(?:\\.|[^\\])*?(?P=three)
      | (?P<one>["'])(?:\\.|[^\\\n])*?(?P=one)""",
    re.VERBOSE | re.DOTALL,
)
"""A comment or a string: a search for them takes a twentieth of the time of ``tokenize``."""


@dataclass(frozen=True)
class Finding:
    """One use of a listed word; ``line`` counts from 1."""

    line: int
    text: str
    reason: str
    instead: str

    def __str__(self) -> str:
        """Return the finding as one line of output."""
        return f"{self.line}: {self.text!r}: {self.reason}; better: {self.instead}"


class Words:
    """The list of refused words. Raises KeyError or re.error if the file is malformed."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._names = {name: (row["reason"], row["instead"]) for row in table["identifiers"] for name in row["names"]}
        self._phrases = [
            (_compile(row["pattern"], case=row.get("case", False)), row["reason"], row["instead"])
            for row in table["phrases"]
        ]
        flagged = (f"({'?i' if one.flags & re.IGNORECASE else '?'}:{one.pattern})" for one, *_ in self._phrases)
        self._any_phrase = re.compile("|".join(flagged))
        self._excepted: list[str] = table["except"]

    def excepts(self, path: str) -> bool:
        """Return whether a file may use the words."""
        return any(fnmatch(path, pattern) for pattern in self._excepted)

    def in_prose(self, text: str, line: int = 1) -> Iterator[Finding]:
        """Find phrases in a text whose first line has a number. A line break counts as a space."""
        flat = re.sub(r"\s", " ", text)
        for pattern, reason, instead in self._phrases:
            for match in pattern.finditer(flat):
                yield Finding(line + text.count("\n", 0, match.start()), match.group().strip(), reason, instead)

    def in_python(self, source: str) -> Iterator[Finding]:
        """Find names and phrases in a module. Raises SyntaxError if it is malformed and uses one of the names."""
        code, texts = _split(source)
        if not self._names.keys().isdisjoint(word.strip("_").lower() for word in set(re.findall(r"\w+", code))):
            for name, line in _find_definitions(ast.parse(source)):
                if (entry := self._names.get(name.strip("_").lower())) is not None:
                    yield Finding(line, name, *entry)
        for match in re.finditer(r"\bdef test_(\w+)", code):
            texts.append((match[1].replace("_", " "), code.count("\n", 0, match.start()) + 1))
        if self._any_phrase.search(re.sub(r"\s", " ", " . ".join(["", *(text for text, _ in texts)]))) is None:
            return
        for text, line in texts:
            yield from self.in_prose(text, line)

    def in_file(self, path: Path) -> list[Finding]:
        """Find names and phrases in a file. Raises OSError, or SyntaxError if a module is malformed."""
        source = path.read_text("utf-8")
        found = list(self.in_python(source) if path.suffix == ".py" else self.in_prose(source))
        if path.suffix == ".py" and (entry := self._names.get(path.stem.removeprefix("test_"))) is not None:
            found.append(Finding(1, path.name, *entry))
        return sorted(found, key=lambda finding: finding.line)


def _compile(pattern: str, *, case: bool) -> re.Pattern[str]:
    return re.compile(pattern) if case else re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


def _find_definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Find the names that a module defines; names of other projects' modules are not checked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def _split(source: str) -> tuple[str, list[tuple[str, int]]]:
    """Return the code of a module, on the lines where it is, and its prose with the lines.

    Prose is comments, with adjacent lines as one text, and strings of more than one word, with replacement fields.
    """
    code: list[str] = []
    strings: list[tuple[str, int]] = []
    comments: list[tuple[str, int]] = []
    line = 1
    end = 0
    for match in PROSE.finditer(source):
        code.append(source[end : match.start()])
        line += code[-1].count("\n")
        if match["comment"] is None:
            if " " in match.group():
                strings.append((match.group().strip("\"'"), line))
        elif comments and comments[-1][1] + comments[-1][0].count("\n") + 1 == line:
            text, first = comments.pop()
            comments.append((f"{text}\n{match['comment'].lstrip('#: ')}", first))
        else:
            comments.append((match["comment"].lstrip("#: "), line))
        end = match.end()
        code.append("\n" * match.group().count("\n"))
        line += len(code[-1])
    return "".join([*code, source[end:]]), strings + comments


def _find_files(roots: Iterable[Path]) -> Iterator[Path]:
    """Find Python and Markdown files; skip directories of tools (``.venv``, ``node_modules``)."""
    for root in roots:
        if root.is_file():
            yield root
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            inside = path.relative_to(root).parts
            if path.suffix in {".py", ".md"} and not any(
                part.startswith(".") or part == "node_modules" for part in inside
            ):
                yield path


def main(roots: list[str]) -> int:
    """Check files and directories, print the findings, and return the exit code."""
    words = Words(tomllib.loads(LIST.read_text("utf-8")))
    count = 0
    for path in _find_files(map(Path, roots)):
        if not words.excepts(path.as_posix()):
            for finding in words.in_file(path):
                count += 1
                sys.stdout.write(f"{path}:{finding}\n")
    if count:
        sys.stdout.write(f"{count} uses of words that checks/words.toml lists\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

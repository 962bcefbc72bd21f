"""Records golden histories: ``python -m tests.goldens.record NAME…``, or without names those of all new workflows."""

from __future__ import annotations

import sys

from .programs import GOLDENS
from .recorded import DIRECTORY, record


def main() -> None:
    """Record the named workflows."""
    new = [name for name in GOLDENS if not list(DIRECTORY.glob(f"{name}-*.json"))]
    for name in sys.argv[1:] or new:
        for file in record(name):
            print(file)  # noqa: T201


if __name__ == "__main__":
    main()

"""A migration that is made for tests: there may be no present one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.sqlite import store_file

if TYPE_CHECKING:
    from collections.abc import Callable

    MonkeyPatch = pytest.MonkeyPatch

NEXT = """
ALTER TABLE jobs ADD COLUMN more INTEGER NOT NULL DEFAULT 7;
CREATE INDEX more ON jobs (more) WHERE state = 1;
"""


@pytest.fixture
def upgrade(tmp_path_factory: pytest.TempPathFactory, monkeypatch: MonkeyPatch) -> Callable[[], int]:
    """Return what makes this version the next one, with one more migration, and returns the number of its schema."""

    def upgrade() -> int:
        directory = tmp_path_factory.mktemp("migrations")
        for file in store_file.MIGRATIONS.iterdir():
            directory.joinpath(file.name).write_bytes(file.read_bytes())
        number = store_file.SCHEMA_VERSION + 1
        directory.joinpath(f"{number:04}.sql").write_text(NEXT)
        monkeypatch.setattr(store_file, "MIGRATIONS", directory)
        monkeypatch.setattr(store_file, "SCHEMA_VERSION", number)
        return number

    return upgrade

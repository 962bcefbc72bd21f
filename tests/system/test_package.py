"""The distributions: the archive of the sources, and the wheel that is built from it."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .packaging import ROOT, build, install, run

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both; the wheel is built from the archive, so the archive must be complete."""
    return build(tmp_path_factory.mktemp("dist")).parent


def test_the_archive_has_all_tracked_files(dist: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so the list of tracked files is not available")
    tracked = run("git", "-C", ROOT, "ls-files", "-z").rstrip("\0").split("\0")
    there = {name for name in tracked if (ROOT / name).exists()}
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    assert there - packed == set()


def test_the_wheel_has_exactly_the_package(dist: Path) -> None:
    package = ROOT / "src" / "mainspring"
    files = {f"mainspring/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    (wheel,) = dist.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_the_wheel_gives_the_command(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    place = install(wheel, tmp_path / "installed")
    used = run(sys.executable, "-c", "import mainspring; print(mainspring.__file__)", PYTHONPATH=str(place))
    assert Path(used.strip()).is_relative_to(place), "the installed one, not that of the checkout"
    command = place / "bin" / "mainspring"
    assert run(command, "--version", PYTHONPATH=str(place)).strip()
    store = tmp_path / "jobs.db"
    run(command, "migrate", "--store", f"sqlite:///{store}", PYTHONPATH=str(place))
    assert store.exists(), "the wheel includes its SQL"

"""The build's own step: compiles the hot core with mypyc, where ``MAINSPRING_COMPILE=1`` asks for it.

The modules are named in ``pyproject.toml``; their sources stay in the wheel, for whoever reads a traceback. Without the variable
nothing is compiled, and nothing more than hatchling is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOOLS = ["mypy>=2.1,<3", "setuptools>=77"]
OPTIONS = ["--config-file=", "--follow-imports=silent", "--no-site-packages", "--ignore-missing-imports"]
"""What is compiled depends on the project's own types alone, and not on those of whatever version of a package there is; ``make
types`` is the strict check."""


class CompileHotCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds compiled modules to the wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs: the compiler."""
        return TOOLS if _is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the results packed beside their sources."""
        if not _is_asked_for():
            return
        if version == "editable":
            self.app.display_warning(
                "MAINSPRING_COMPILE has no effect on an editable installation: its sources may change"
            )
            return
        self._directory = tempfile.TemporaryDirectory(prefix="mainspring-compiled-")
        place = Path(self._directory.name)
        source = Path(self.root, "src")
        # In a process of its own: mypycify takes modules' names from the current directory, and ends its process on an error.
        command = [sys.executable, str(Path(__file__).resolve()), str(place), *self.config["modules"]]
        done = subprocess.run(  # noqa: S603 - this file, and modules that pyproject.toml names
            command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"the hot core could not be compiled; without MAINSPRING_COMPILE it is not:\n{done.stdout}"
            )
        for library in sorted((place / "lib").rglob("*.so")):
            build_data["force_include"][str(library)] = str(library.relative_to(place / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the compiler has made."""
        del version, build_data, artifact_path
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def _is_asked_for() -> bool:
    return os.environ.get("MAINSPRING_COMPILE", "0") not in {"", "0"}


def compile_modules(place: str, modules: list[str]) -> None:
    """Compile modules of the current directory into ``place/lib``."""
    from mypyc.build import mypycify  # noqa: PLC0415 - installed only where it is asked for
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    level = os.environ.get("MYPYC_OPT_LEVEL", "2")  # as mypyc's own command has it
    options = [*OPTIONS, f"--cache-dir={place}/cache"]
    extensions = mypycify([*options, *modules], opt_level=level, debug_level="0", target_dir=f"{place}/c")
    for extension in extensions:
        # Nobody repairs what mypyc writes, and gcc needs three times as long to look for warnings in it as to compile it.
        extension.extra_compile_args.append("-Wno-all")
    command = build_ext(Distribution({"name": "mainspring", "ext_modules": extensions}))
    command.build_lib, command.build_temp = f"{place}/lib", f"{place}/objects"
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    compile_modules(sys.argv[1], sys.argv[2:])

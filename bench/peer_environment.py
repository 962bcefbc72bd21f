"""Installs the peers: their Python packages into bench/.venv, and Restate's server with npm."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from measure import NotMeasured

PEERS = Path(__file__).resolve().parent / "peers"
ENVIRONMENT = PEERS.parent / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
NODE = PEERS / "node"
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


def install_python() -> None:
    """Install the pinned versions if necessary. Raises NotMeasured if that fails."""
    requirements, installed = PEERS / "requirements.txt", ENVIRONMENT / "installed.txt"
    if _same(requirements, installed):
        return
    print("  installing bench/peers/requirements.txt into bench/.venv", file=sys.stderr, flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
        subprocess.run(install, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotMeasured(f"bench/peers/requirements.txt could not be installed: {error}") from None
    shutil.copyfile(requirements, installed)


def install_restate() -> Path:
    """Install Restate's server if necessary, and return the program. Raises NotMeasured if that fails."""
    lock, installed = NODE / "package-lock.json", NODE / "node_modules" / "installed.json"
    if not _same(lock, installed):
        print("  installing Restate's server into bench/peers/node", file=sys.stderr, flush=True)
        try:
            install = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(install, cwd=NODE, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotMeasured(f"bench/peers/node could not be installed: {error}") from None
        shutil.copyfile(lock, installed)
    package = f"restate-server-linux-{ARCHITECTURES.get(platform.machine(), platform.machine())}"
    program = NODE / "node_modules" / "@restatedev" / package / "bin" / "restate-server"
    if not program.exists():
        raise NotMeasured(f"npm has no {package}")
    return program


def _same(required: Path, installed: Path) -> bool:
    return installed.exists() and installed.read_bytes() == required.read_bytes()

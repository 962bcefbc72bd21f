"""Two networks of this machine with a cable between them, which can be pulled: packets are lost, and nobody is notified."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_CLONE_NEWNET: Final = 0x40000000
_numbers: Final = itertools.count(1)


class Network:
    """A network namespace with an address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @property
    def run(self) -> tuple[str, ...]:
        """The words before a command that runs it in this network."""
        return ("ip", "netns", "exec", self.name)

    def within(self, connect: Callable[[], T]) -> T:
        """Call a function that makes sockets in this network; they stay there."""
        results: list[T] = []

        def enter() -> None:
            with open(f"/var/run/netns/{self.name}") as file:  # noqa: PTH123 - its descriptor is used
                assert not ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET), ctypes.get_errno()
            results.append(connect())

        thread = threading.Thread(target=enter)  # only this thread changes its network
        thread.start()
        thread.join()
        (result,) = results
        return result


class Cable:
    """The connection of two networks; ``pull`` ends it."""

    def __init__(self, near: Network, far: Network) -> None:
        self.near = near
        self.far = far

    def pull(self) -> None:
        """Lose all packets between the networks from now on."""
        _ip("-n", self.far.name, "link", "set", "cable", "down")


@contextlib.contextmanager
def two_networks() -> Iterator[Cable]:
    """Make two networks with a cable; skip the test where that is not permitted."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("only root may make networks, with the program ip")
    number = f"{os.getpid()}-{next(_numbers)}"
    near, far = Network(f"near-{number}", "10.77.0.1"), Network(f"far-{number}", "10.77.0.2")
    added = subprocess.run(["ip", "netns", "add", near.name], capture_output=True, text=True, check=False)
    if added.returncode:
        pytest.skip(f"cannot make a network here ({added.stderr.strip()})")
    try:
        _ip("netns", "add", far.name)
        _ip(
            "link", "add", "cable", "netns", near.name, "type", "veth", "peer", "name", "cable", "netns", far.name
        )  # fmt: skip
        for network in (near, far):
            _ip("-n", network.name, "addr", "add", f"{network.address}/30", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", network.name, "link", "set", link, "up")
        yield Cable(near, far)
    finally:
        for network in (near, far):
            subprocess.run(["ip", "netns", "del", network.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)

"""`SIGKILL` at random points: no acknowledged job is lost, no settled job runs again."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind, packet_of

from .chaos import SINGLE_SERVER, SINGLE_SERVER_WITH_CREW, Chaos, Findings, Scenario, crash, endure
from .extension import ExtensionKind
from .servers import serving
from .stores import StoreRoute

if TYPE_CHECKING:
    from pathlib import Path

    from .fleet import ForkServer

SEEDS = 12
LONG_SEEDS = 500
KILLS = 8
CREW_SECONDS = 8.0
"""Seconds of the disturbances of a run with worker processes."""
LONG_CREW_SECONDS = 60.0
PARALLEL_SEEDS = 4
"""Seeds that run in parallel: a run mostly waits for the disk."""


def survive(
    fork_server: ForkServer,
    directory: Path,
    seed: int,
    *,
    plant: str | None = None,
    scenario: Scenario = SINGLE_SERVER,
    seconds: float = 0.0,
) -> Findings:
    """Run one seed in its own directory."""
    own = directory / str(seed)
    own.mkdir()
    store = StoreRoute("sqlite:///jobs.db")
    return Chaos(fork_server, own, [store], seed, scenario=scenario, plant=plant).run(crash, KILLS, seconds)


def check(fork_server: ForkServer, directory: Path, seeds: range) -> None:
    """Run seeds, the first one with worker processes and workflows, and assert that none of them broke a promise."""

    def run(seed: int) -> Findings:
        if seed == seeds[0]:
            crew = SINGLE_SERVER_WITH_CREW
            return survive(fork_server, directory, seed, scenario=crew, seconds=CREW_SECONDS)
        return survive(fork_server, directory, seed)

    with ThreadPoolExecutor(PARALLEL_SEEDS) as pool:
        findings = dict(zip(seeds, pool.map(run, seeds), strict=True))
    broken = {seed: found for seed, found in findings.items() if found.broken(overlap=math.inf)}
    assert not broken, "\n".join(f"seed {seed}: {one}" for seed, one in broken.items())
    assert sum(found.acknowledged for found in findings.values()) > 20 * len(seeds)


def test_kills_lose_nothing_and_run_nothing_again(fork_server: ForkServer, tmp_path: Path) -> None:
    check(fork_server, tmp_path, range(SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_kills_lose_nothing_and_run_nothing_again(fork_server: ForkServer, tmp_path: Path) -> None:
    check(fork_server, tmp_path, range(SEEDS, SEEDS + LONG_SEEDS))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_minutes_of_everything_lose_nothing_and_leave_nothing(
    fork_server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def run(seed: int) -> Findings:
        crew = SINGLE_SERVER_WITH_CREW
        return survive(fork_server, tmp_path, seed, scenario=crew, seconds=LONG_CREW_SECONDS)

    endure(request.config.getoption("--minutes"), run, overlap=math.inf)


# The check must fail if a server makes promises before it commits; otherwise it proves nothing.


def test_an_early_acknowledgement_is_found(fork_server: ForkServer, tmp_path: Path) -> None:
    assert any(survive(fork_server, tmp_path, seed, plant="acknowledgement").lost for seed in range(3 * SEEDS))


def test_an_early_confirmation_is_found(fork_server: ForkServer, tmp_path: Path) -> None:
    findings = (survive(fork_server, tmp_path, seed, plant="confirmation") for seed in range(3 * SEEDS))
    assert any("ran again" in violation for found in findings for violation in found.violations)


def test_a_restarted_server_assigns_its_leased_jobs_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.extended()
        handles = [client.submit_new(b"f", b"%d" % number, b"u%d" % number) for number in range(4)]
        worker = server.worker(b"f", places=2)
        assert [worker.job().handle, worker.job().handle] == handles[:2]
        server.kill()
        client.close()
        worker.close()
    with serving(tmp_path) as server:
        client, worker = server.extended(), server.worker(b"f", places=4)
        # No lease must end first: the jobs arrive within the socket's time-out.
        worker.socket.settimeout(2)
        assert [worker.job().handle for _ in range(4)] == handles
        client.request(b"f", b"again", b"u0")
        assert client.expect(ExtensionKind.SUBMITTED) == (handles[0], b"1")
        client.close()
        worker.close()


def test_a_completion_that_an_echo_has_confirmed_survives(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.peer() as peer:
        peer.can_do(b"f")
        handles = [peer.submit(b"f", b"", b"%d" % number, Kind.SUBMIT_JOB_BG) for number in range(20)]
        for handle in handles[:10]:
            assert peer.grab_assigned()[0] == handle
            peer.send(Kind.WORK_COMPLETE, handle, b"result of " + handle)
        peer.sync()
        server.kill()
    with serving(tmp_path) as server, server.extended() as peer:
        for handle in handles[:10]:
            assert peer.outcome(handle).data == b"result of " + handle
        peer.can_do(b"f")
        assert [peer.grab_assigned()[0] for _ in range(10)] == handles[10:]
        assert peer.grab() == packet_of(Kind.NO_JOB)

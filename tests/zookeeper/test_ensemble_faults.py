"""The client of an ensemble of three when members fail; ``test_faults`` has the tests that take one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from mainspring.engines.zookeeper.ensemble_client import check_versions
from mainspring.engines.zookeeper.tree import Create, Done
from mainspring.errors import StoreUnavailableError
from mainspring.stores import parse_zookeeper

from .server import Ensemble
from .test_faults import Watched, do, insist, run, session

if TYPE_CHECKING:
    from pathlib import Path


def test_ensembles_are_of_a_release_that_keeps_acknowledged_writes(ensemble: Ensemble) -> None:
    """Otherwise the tests that kill a leader could fail for ZooKeeper's sake."""
    with structlog.testing.capture_logs() as logs:
        run(check_versions(parse_zookeeper(ensemble.url())))
    assert logs == []


def test_an_ensemble_that_loses_its_leader(ensemble: Ensemble, chroot: str) -> None:
    async def test() -> None:
        async with session(ensemble.url(chroot), 4.0) as tree:
            first = tree.session
            await tree.commit([Create("/alive", ephemeral=True)])
            await do(lambda: ensemble.kill(ensemble.leader()))
            assert isinstance(await insist(tree, [Create("/written")]), (Done, tuple))
            assert tree.session == first
            assert await tree.get("/alive") is not None

    try:
        run(test())
    finally:
        ensemble.heal()


def test_an_ensemble_without_a_majority(ensemble: Ensemble, chroot: str) -> None:
    async def test() -> None:
        async with session(ensemble.url(chroot), 4.0, request_timeout=0.5) as tree:
            await tree.commit([Create("/before")])
            ended = [index for index in range(3) if index != ensemble.leader()]
            for index in ended:
                await do(ensemble.kill, index)
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):  # unknown, if it was sent before the leader noticed
                    await tree.commit([Create("/lost", ephemeral=True)])
            with pytest.raises(StoreUnavailableError):
                await tree.get("/before")
            await do(ensemble.heal)
            assert isinstance(await insist(tree, [Create("/after")]), (Done, tuple))
            assert await tree.get("/before") is not None

    try:
        run(test())
    finally:
        ensemble.heal()


def test_a_read_only_member_is_treated_as_unreachable(ensemble_program: str, chroot: str, tmp_path: Path) -> None:
    with Ensemble(3, parent=tmp_path, java=["-Dreadonlymode.enabled=true"]) as ensemble:

        async def test() -> None:
            async with session(ensemble.url(chroot), 6.0, request_timeout=1.0) as tree:
                changed = Watched()
                tree.on_session(changed)
                first = tree.session
                for index in (1, 2):
                    await do(ensemble.kill, index)
                await do(ensemble.await_mode, 0, "read-only")
                with pytest.raises(StoreUnavailableError):
                    await tree.get("/")
                with pytest.raises(StoreUnavailableError, match=r"zookeeper://127"):
                    async with session(ensemble.url(chroot), 6.0, request_timeout=1.0):
                        pass
                await do(ensemble.heal)
                assert isinstance(await insist(tree, [Create("/after")]), Done)
                assert tree.session == first

        with structlog.testing.capture_logs() as logs:
            run(test())
        assert any("read only" in line["event"] for line in logs)


def test_an_ensemble_has_another_leader_when_its_own_dies(ensemble: Ensemble) -> None:
    first = ensemble.leader()
    assert sorted(ensemble.mode(index) for index in range(3)) == ["follower", "follower", "leader"]
    ensemble.kill(first)
    assert ensemble.leader() != first
    ensemble.heal()
    assert ensemble.mode(first) == "follower"

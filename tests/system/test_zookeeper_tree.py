"""The tree as a person reads it with ZooKeeper's own tools, and the permissions of its parts."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError
from tests.interop.packets import Kind
from tests.postgres.server import memory_directory
from tests.zookeeper.server import Ensemble

from mainspring.features import Feature

from .extension import ExtensionKind, FaultError
from .fleet import Fleet
from .processes import mainspring
from .servers import eventually
from .stores import ZOOKEEPER, place_of
from .zookeeper_tree import TreeReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from .fleet import ForkServer
    from .stores import Store

RECEIVE_TIMEOUT = 30.0
on_zookeeper = pytest.mark.parametrize("store", [ZOOKEEPER], indirect=True)
PAYLOAD_LIMIT = 480 * 1024


@pytest.fixture
def tree(store: Store, fleet: Fleet) -> Iterator[TreeReader]:
    with TreeReader(store.url) as tree:
        yield tree
    del fleet


@on_zookeeper
def test_the_tree_shows_the_life_of_a_task(fleet: Fleet, tree: TreeReader, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client = stack.enter_context(n1.extended())
    handle = client.submit_new(b"resize", b"a.jpg", b"pictures/a b").decode()
    task = "resize:pictures%2Fa%20b"
    bucket = f"{zlib.crc32(task.encode()) & 0xFF:02x}"
    assert tree.names(f"/pending_tasks/{bucket}") == [task]
    record = tree.record(f"/pending_tasks/{bucket}/{task}")
    expected = {
        "handle": handle,
        "state": "pending",
        "function": "resize",
        "unique": "pictures/a b",
        "payload": "a.jpg",
    }
    assert record.items() >= expected.items()
    assert tree.record(f"/names/{bucket}/{task}")["handle"] == handle
    (block,) = tree.names("/results")
    assert tree.names(f"/results/{block}") == [handle]
    assert tree.record(f"/results/{block}/{handle}")["task"] == task

    worker = stack.enter_context(n2.worker(b"resize"))
    job = worker.job()
    worker_name = f"n2-{n2.term}"
    assert tree.names("/workers") == sorted([f"n1-{n1.term}", worker_name])
    assert tree.names(f"/queues/{worker_name}") == [task]
    assert not tree.tasks("/pending_tasks")
    assert tree.record(f"/running_tasks/{bucket}/{task}").items() >= {**expected, "state": "leased"}.items()
    eventually(lambda: tree.record(f"/queues/{worker_name}/{task}")["state"] == "running", "it is listed as running")

    assert worker.settle_as(job, b"succeeded", b"done") == b"recorded"
    eventually(lambda: not tree.tasks("/completed_tasks"), "the task is published")
    for root in ("/running_tasks", "/names", "/queues"):
        assert not tree.tasks(root)
    result = tree.record(f"/results/{block}/{handle}")
    assert (result["state"], result["result"], result["worker"]) == ("succeeded", "done", worker_name)
    assert tree.master() in {f"n1-{n1.term}", worker_name}


@on_zookeeper
def test_a_long_name_is_cut_and_still_unique(fleet: Fleet, tree: TreeReader, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    one, other = (stack.enter_context(node.extended()) for node in (n1, n2))
    function = b"\xff" * 500
    handle = one.submit_new(function, b"payload", b"\xfe/" * 30)
    other.request(function, b"another", b"\xfe/" * 30)
    assert other.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    (task,) = tree.tasks("/pending_tasks")
    assert len(task) <= 200
    with n2.worker(function) as worker:
        assert worker.job().function == function


@on_zookeeper
def test_stopped_nodes_leave_nothing_behind(fleet: Fleet, tree: TreeReader) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    with n1.extended() as client, n2.worker(b"f") as worker:
        handle = client.submit_new(b"f")
        assert worker.settle_as(worker.job(), b"succeeded", b"done") == b"recorded"
        assert client.outcome(handle).data == b"done"
    eventually(lambda: not tree.tasks("/completed_tasks"), "the task is published")
    n1.stop()
    n2.stop()
    for root in ("/workers", "/queues", "/wants", "/mail"):
        assert tree.names(root) == []
    assert tree.master() == ""
    assert not any(path.startswith(("/names/", "/running_tasks/")) and path.count("/") > 2 for path in tree.all_paths())


# ---- limits of this store


@on_zookeeper
def test_a_payload_above_the_limit_is_refused_with_the_limit_and_the_remedy(fleet: Fleet, stack: ExitStack) -> None:
    n1 = fleet.start("n1")
    client, worker = stack.enter_context(n1.extended()), stack.enter_context(n1.worker(b"f"))
    worker.socket.settimeout(RECEIVE_TIMEOUT)
    client.request(b"f", b"x" * (PAYLOAD_LIMIT + 1))
    code, message = client.expect(Kind.ERROR)
    assert code == b"ARGUMENT_TOO_LARGE"
    assert b"%d" % PAYLOAD_LIMIT in message
    assert b"store larger data elsewhere, and submit its location" in message
    # At the limit, also for bytes that JSON escapes, and with a result of the same size.
    for sign in (b'"', b"\n", b"\0", b"\xff"):
        handle = client.submit_new(b"f", sign * PAYLOAD_LIMIT)
        job = worker.job()
        assert job.payload == sign * PAYLOAD_LIMIT
        assert worker.settle_as(job, b"succeeded", sign * PAYLOAD_LIMIT) == b"recorded"
        assert client.outcome(handle).data == sign * PAYLOAD_LIMIT
        worker.ready()
    handle = client.submit_new(b"f")
    assert worker.settle_as(worker.job(), b"succeeded", b"x" * (PAYLOAD_LIMIT + 1)) == b"recorded"
    outcome = client.outcome(handle)
    assert (outcome.state, outcome.error["type"]) == (b"failed", "ResultTooLarge")


@on_zookeeper
def test_limits_pauses_and_keys_are_refused_by_their_names(fleet: Fleet, tmp_path: Path) -> None:
    n1 = fleet.start("n1")
    for order in (("pause", "f", "--create"), ("limit", "f", "--concurrency", "2", "--create")):
        refused = mainspring("functions", *order, "--server", n1.address, cwd=tmp_path)
        assert refused.returncode == 2
        assert Feature.LIMITS.refusal.encode() in refused.stderr
    with n1.extended() as client:
        client.request(b"f", options={"concurrency_key": "k"})
        code, message = client.expect(Kind.ERROR)
        assert code == b"UNSUPPORTED"
        assert b"keeps no limits" in message
        with pytest.raises(FaultError):
            client.call("functions.pause", function="f")


@on_zookeeper
def test_commands_print_the_same_as_on_other_stores(fleet: Fleet, tmp_path: Path, stack: ExitStack) -> None:
    n1, n2 = fleet.start_many("n1", "n2")
    client, worker = stack.enter_context(n1.extended()), stack.enter_context(n2.worker(b"f"))
    handle = client.submit_new(b"f", b"payload", b"u")
    worker.job()
    client.submit_new(b"waits")

    def run_command(*command: str) -> list[list[str]]:
        for _ in range(20):  # on a busy machine, a node with a short lease may be between two terms
            done = mainspring(*command, "--server", n1.address, cwd=tmp_path)
            if b"next term has not started" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.decode().splitlines()]

    def listed() -> list[list[str]]:
        return [row[:4] for row in run_command("jobs", "list", "--function", "f")[1:]]

    # The node that holds the job stores that it runs after about a second.
    eventually(lambda: listed() == [[handle.decode(), "f", "u", "running"]], "it is listed as running")
    assert ["state:", "running"] in run_command("jobs", "show", handle.decode())
    assert {(row[0], row[2]) for row in run_command("nodes", "list")[1:]} == {("n1", "live"), ("n2", "live")}
    assert ["functions:", "f"] in run_command("nodes", "show", "n2") or ["functions:", "-"] in run_command(
        "nodes", "show", "n2"
    )
    assert ["total", "running", "waiting"] in run_command("status")


# ---- permissions


@pytest.fixture(scope="module")
def secured(ensemble_program: str) -> Iterator[Ensemble]:
    """Return an ensemble for trees with credentials; it becomes read-only without a majority."""
    del ensemble_program
    with Ensemble(3, parent=memory_directory(), java=["-Dreadonlymode.enabled=true"]) as ensemble:
        yield ensemble


def with_credentials(url: str, credentials: str) -> str:
    return url.replace("zookeeper://", f"zookeeper://{credentials}@")


def test_a_tree_with_credentials_is_closed_to_other_clients(
    fork_server: ForkServer, secured: Ensemble, tmp_path: Path
) -> None:
    url = place_of(secured).url
    with Fleet(fork_server, tmp_path, with_credentials(url, "me:right")) as fleet:
        n1, n2 = fleet.start_many("n1", "n2")
        with n1.extended() as client, n2.worker(b"f") as worker:
            handle = client.submit_new(b"f", b"secret")
            job = worker.job()
            assert worker.settle_as(job, b"succeeded", b"done") == b"recorded"
            assert client.outcome(handle).data == b"done"
            client.submit_new(b"g", b"secret", b"u")
            with TreeReader(url, auth_data=[("digest", "me:right")]) as owner:
                paths = []
                requests = [
                    (path, owner.client.get_acls_async(owner.chroot + path)) for path in ("", *owner.all_paths())
                ]
                for path, answer in requests:
                    with suppress(NoNodeError):  # nodes delete unneeded entries in the meantime
                        for acl in answer.get(timeout=RECEIVE_TIMEOUT)[0]:
                            assert (acl.id.scheme, acl.id.id.partition(":")[0]) == ("digest", "me"), path
                        paths.append(path)
                assert {"", "/workers", "/pending_tasks", "/completed_tasks"} <= set(paths)
            with TreeReader(url) as other, TreeReader(url, auth_data=[("digest", "me:wrong")]) as guessing:
                for stranger in (other, guessing):
                    client_of, attempts = stranger.client, []
                    for path in paths:
                        full = stranger.chroot + path
                        attempts += [
                            (full, client_of.get_async(full)),
                            (full, client_of.get_children_async(full)),
                            (full, client_of.set_async(full, b"mine")),
                            (full, client_of.create_async(f"{full}/mine")),
                        ]
                        if path:
                            attempts.append((full, client_of.delete_async(full)))
                    for full, attempt in attempts:
                        with pytest.raises((NoAuthError, NoNodeError)):
                            pytest.fail(f"{full}: {attempt.get(timeout=RECEIVE_TIMEOUT)}")
    logs = "".join(node.log_text() for node in fleet.nodes)
    assert "right" not in logs


@pytest.mark.parametrize("credentials", ["me:wrong@", "you:right@", ""])
def test_a_node_without_the_credentials_is_refused(secured: Ensemble, tmp_path: Path, credentials: str) -> None:
    url = place_of(secured).url
    assert mainspring("migrate", "--store", with_credentials(url, "me:right"), cwd=tmp_path).returncode == 0
    wrong = url.replace("zookeeper://", f"zookeeper://{credentials}")
    for command in (("migrate",), ("serve", "--name", "n1", "--gearman", "127.0.0.1:0")):
        refused = mainspring(*command, "--store", wrong, cwd=tmp_path)
        assert refused.returncode == 2
        assert b"permission" in refused.stderr or b"credentials" in refused.stderr
        assert b"wrong" not in refused.stderr
        assert b"Traceback" not in refused.stderr


def test_a_read_only_member_counts_as_unavailable(fork_server: ForkServer, secured: Ensemble, tmp_path: Path) -> None:
    with Fleet(fork_server, tmp_path, place_of(secured).url) as fleet:
        n1 = fleet.start("n1")
        with n1.extended() as client:
            client.socket.settimeout(RECEIVE_TIMEOUT)
            before = client.submit_new(b"f", b"before")
            left = (secured.leader() + 1) % 3
            for index in {0, 1, 2} - {left}:
                secured.kill(index)
            eventually(
                lambda: secured.mode(left) == "read-only", "the last member is read-only", timeout=RECEIVE_TIMEOUT
            )
            client.request(b"f", b"while nobody may write")
            eventually(lambda: "read only" in n1.log_text(), "the node logs it", timeout=RECEIVE_TIMEOUT)
            secured.heal()
            client.next()  # acknowledged or refused

            def has_term() -> bool:
                """Return whether the node has a term; between two terms it reports that the store is unavailable."""
                try:
                    return bool(client.show(before)["state"] == "pending")
                except FaultError as fault:
                    if fault.code != "unavailable":
                        raise
                    return False

            eventually(has_term, "the node has a term", timeout=RECEIVE_TIMEOUT)
            with n1.worker(b"f", places=3) as worker:
                worker.socket.settimeout(RECEIVE_TIMEOUT)
                assert worker.job().handle == before

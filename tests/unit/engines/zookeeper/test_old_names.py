"""Jobs that an older version has stored under names with U+001F, which separates namespaces from names today."""

from __future__ import annotations

from base64 import b64encode

from mainspring import namespaces
from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import total
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State

from .a_session import NOW, one_node, run

OLD = b"team\x1ff"
KEY = b"default\x1fteam\x1ff"
COUNTS = {(KEY, State.PENDING, Priority.NORMAL): 1}


def test_a_job_under_an_old_name_is_reachable_by_its_handle_alone() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(function=KEY)
            task = f"team%1Ff:~{job.id}"
            stored = await node.tree.get(f"{paths.PENDING}/{paths.bucket(task)}/{task}")
            assert stored is not None, "it is where the older version has stored it"
            assert records.decode(stored.data)["function_base64"] == b64encode(OLD).decode()
            journal = await node.tree.get(paths.journal(node.session.who))
            assert journal is not None
            assert records.decode(journal.data)["counts"] == [["team%1Ff", State.PENDING, Priority.NORMAL, 1]]
            assert (await node.counts(), total([journal.data])) == (COUNTS, COUNTS)
            found = await node.present(job.id)
            assert paths.function_of(task) == found.function == KEY
            assert namespaces.namespace_of(found.function) == namespaces.DEFAULT
            assert (await node.one(ops.Cancel(job.id, b"", NOW))).before == State.PENDING
            assert await node.state(job.id) == State.CANCELLED

    run(check())


def test_a_job_with_a_unique_is_found_under_an_old_name() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(function=KEY, unique=b"u")
            keys: list[tuple[bytes | ops.InNamespace, bytes]] = [
                (ops.InNamespace(namespaces.DEFAULT), b"u"),
                (KEY, b"u"),
                (OLD, b"u"),
            ]
            by_namespace, by_key, of_another = await node.one(ops.FindUnique(keys))
            assert [by_namespace.id, by_key.id, of_another] == [job.id, job.id, None]

    run(check())

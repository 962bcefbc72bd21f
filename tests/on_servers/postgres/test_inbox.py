"""Submissions of users' own transactions, from the inbox into the queue."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.faces.rest.a_server import whole_node

from mainspring import App, namespaces
from mainspring.api.nodes import ShowStatus
from mainspring.client import inbox
from mainspring.engines.postgres import submitting
from mainspring.events import Pending, Settled
from mainspring.faces.web import Measure
from mainspring.jobs import store as ops
from mainspring.jobs.model import MOST_DEPTH, Options, Priority, Retry, State, encode_options
from mainspring.jobs.rules import Event, Settlement

from .a_fleet import NOW, Node, node, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.api.nodes import SetAsideStatus

NEVER = NOW + 90 * 365 * 86_400_000_000


async def insert(other: asyncpg.Connection[asyncpg.Record], **columns: object) -> int:
    """Submit as users do, and return the id."""
    columns = {"function": b"f", "payload": b"p", **columns}
    names, values = ", ".join(columns), ", ".join(f"${at}" for at in range(1, len(columns) + 1))
    found: int = await other.fetchval(f"INSERT INTO inbox ({names}) VALUES ({values}) RETURNING id", *columns.values())
    return found


async def take(one: Node, limit: int = 1000) -> ops.DrainedInbox:
    (taken,) = await one.group(ops.DrainInbox(limit))
    assert isinstance(taken, ops.DrainedInbox)
    return taken


async def state(one: Node, job_id: int) -> State | None:
    found = (await one.find(job_id)).get(job_id)
    return None if found is None else State(found.state)


async def cancel(one: Node, job_id: int) -> ops.Cancelled:
    (cancelled,) = await one.group(ops.Cancel(job_id, b"{}", NOW))
    assert isinstance(cancelled, ops.Cancelled)
    return cancelled


def test_a_submission_becomes_the_job_that_it_describes(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            options = Options(timeout=5.0)
            job_id = await insert(
                other,
                function=b"resize",
                uniq=b"cat",
                priority=Priority.HIGH,
                created_us=NOW,
                expires_us=NEVER,
                options=msgspec.msgpack.encode(options),
            )
            assert await take(one) == ({(b"resize", Priority.HIGH): 1}, 0, False)
            assert await take(one) == ({}, 0, False)
            ((claimed,),) = (await one.group(one.claim(function=b"resize")))[0]
            assert (claimed.id, claimed.payload, claimed.unique, claimed.options) == (job_id, b"p", b"cat", options)
            assert (claimed.created_us, claimed.expires_us, claimed.input_size) == (NOW, NEVER, 1)
            assert one.nodes[job_id // 10**12] == "inbox"
            assert await one.counts() == {(b"resize", State.LEASED, Priority.HIGH): 1}

    asyncio.run(test())


def _key(payload: bytes) -> str:
    return f"k{payload.decode()}"


def test_a_submission_has_the_key_of_the_client(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            function = App().function("f").options(concurrency_key=_key, timeout=5)
            for payload in (b"1", b"2"):
                request = function._request((payload,), {})  # noqa: SLF001 - what a user submits, without a session
                values = inbox._values(request, function._options, "default")  # noqa: SLF001 - the row itself is looked at
                await insert(other, payload=payload, options=values[-1])
            await take(one)
            want = ops.ClaimRequest(b"f", 9)
            (claimed,) = await one.group(ops.ClaimByKey(one.term, want, 9, (None, None, None), frozenset({b"k1"})))
            assert [(job.key, job.options, job.payload) for job in claimed.jobs] == [
                (b"k2", Options(timeout=5.0), b"2")
            ]

    asyncio.run(test())


@pytest.mark.parametrize("options", [b"\xff", b"\x81\xa8schedule\xa1\xff"], ids=["broken", "no-text"])
def test_unreadable_options_delay_no_other_submission(database: str, options: bytes) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await insert(other, options=options)
            await insert(other)
            assert await take(one) == ({(b"f", Priority.NORMAL): 2}, 0, False)

    asyncio.run(test())


def test_submissions_have_tags_and_invalid_ones_are_left_out(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            tagged = await insert(other, options=encode_options(Options(timeout=5.0, tags=("b", "a", "b"))))
            await insert(other, options=encode_options(Options(tags=("a\x1fb",))))
            assert (await take(one))[0] == {(b"f", Priority.NORMAL): 2}
            assert (await one.find(tagged))[tagged].options == Options(timeout=5.0, tags=("a", "b"))
            rows = await other.fetch("SELECT namespace, tag, job FROM tags ORDER BY 2")
            assert [tuple(row) for row in rows] == [("default", "a", tagged), ("default", "b", tagged)]

    asyncio.run(test())


def test_a_submission_with_a_later_due_time_is_scheduled(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            later, now = await insert(other, due_us=NEVER), await insert(other, due_us=NOW)
            assert await take(one) == ({(b"f", Priority.NORMAL): 1}, NEVER, False)
            assert [await state(one, job_id) for job_id in (later, now)] == [State.SCHEDULED, State.PENDING]

    asyncio.run(test())


def test_a_submission_exists_only_after_its_transaction_commits(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as third:
            transaction = other.transaction()
            await transaction.start()
            open_id = await insert(other, uniq=b"u")
            rolled_back = third.transaction()
            await rolled_back.start()
            gone = await insert(third, uniq=b"u")
            await rolled_back.rollback()
            # The open transaction delays no other submission, even of the same unique.
            job_id = await insert(third, uniq=b"u")
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): 1}
            assert await one.group(one.submit(one.job()), one.claim()) is not None
            assert [await state(one, each) for each in (open_id, gone, job_id)] == [None, None, State.LEASED]
            await transaction.commit()
            assert (await one.find(open_id))[open_id].state == State.PENDING
            assert await take(one) == ({}, 0, False), "the submission joined the job"
            assert (await one.find(open_id))[open_id].id == job_id

    asyncio.run(test())


def test_a_submission_in_the_inbox_can_be_found_waited_for_and_cancelled(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            ids = [await insert(other, due_us=due) for due in (0, NEVER, 0, 0)]
            assert [await state(one, job_id) for job_id in ids[:2]] == [State.PENDING, State.SCHEDULED]
            assert (await one.find(ids[0]))[ids[0]].payload == b""
            cancelled, before = await cancel(one, ids[2])
            assert cancelled is not None
            assert (cancelled.id, cancelled.state, before) == (ids[2], State.CANCELLED, State.PENDING)
            (found,) = await one.group(ops.Subscribe(one.term, [ids[3]]))
            assert found[ids[3]].state == State.PENDING
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): 1}
            assert await other.fetchval("SELECT count(*) FROM inbox") == 0
            assert [await state(one, job_id) for job_id in ids[2:]] == [State.CANCELLED, State.PENDING]

    asyncio.run(test())


def test_the_id_of_a_joined_submission_leads_to_the_job(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            (live,) = await one.submitted(unique=b"u")
            alias = await insert(other, uniq=b"u")
            assert await take(one) == ({}, 0, False)
            (found,) = await two.group(ops.Subscribe(two.term, [alias]))
            assert (found[alias].id, found[alias].state) == (live.id, State.PENDING)
            (job,) = (await one.group(one.claim()))[0][0]
            await one.group(ops.Settle([Settlement(job, Event.FAIL, 1, ended_us=NOW)]))
            await two.wait_for(lambda heard: Settled([live.id, alias]) in heard)
            cancelled, before = await cancel(one, alias)
            assert cancelled is not None
            assert (cancelled.id, before) == (live.id, State.FAILED)
            (redriven,) = await one.group(ops.Redrive(alias))
            assert redriven.redriven
            assert redriven.job.id == live.id
            assert (await cancel(one, alias)).before == State.PENDING
            assert await state(one, alias) is State.CANCELLED

    asyncio.run(test())


def test_the_second_submission_of_a_unique_joins_the_first(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            ids = [await insert(other, uniq=b"u") for _ in range(3)]
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): 1}
            found = await one.find(*ids)
            assert {job_id: job.id for job_id, job in found.items()} == dict.fromkeys(ids, ids[0])

    asyncio.run(test())


def test_concurrent_nodes_move_each_submission_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            ids = [await insert(other) for _ in range(100)]
            number = 0
            while True:
                outcomes = await asyncio.gather(take(one, 15), take(two, 15))
                number += sum(sum(taken.pending.values()) for taken in outcomes)
                if not any(taken.more for taken in outcomes):
                    break
            assert number == 100
            (((*claimed,),),) = await one.group(one.claim())
            assert sorted(job.id for job in claimed) == ids
            await two.wait_for(lambda heard: any(isinstance(message, Pending) for message in heard))

    asyncio.run(test())


def test_aliases_are_forgotten_after_the_job_they_lead_to(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            live = await insert(other, uniq=b"u", created_us=NOW)
            alias = await insert(other, uniq=b"u", created_us=NOW)
            await take(one)
            sweep = ops.Sweep(NOW + 1, NOW + 1)
            await one.group(sweep)
            assert (await one.find(alias))[alias].id == live, "the alias of a live job stays"
            await cancel(one, live)
            await one.group(ops.Sweep(NOW, NOW))
            await one.group(sweep)
            assert await one.find(alias, live) == {}
            assert await other.fetchval("SELECT count(*) FROM aliases") == 0

    asyncio.run(test())


def test_no_submission_delays_the_others(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            odd = await insert(other, options=b"\x01")
            long_name = random.Random(1).randbytes(8192).replace(b"\x1f", b"x")  # which no compression makes short
            long = await insert(other, function=long_name)
            long_key = namespaces.key("default", long_name)  # it contains U+001F
            assert (await take(one)).pending.keys() == {(b"f", Priority.NORMAL), (long_key, Priority.NORMAL)}
            assert [await state(one, job_id) for job_id in (odd, long)] == [State.PENDING, State.PENDING]
            for columns in ({"function": b"x" * 8193}, {"function": b""}, {"uniq": b"u" * 65}, {"uniq": b""}):
                with pytest.raises(asyncpg.CheckViolationError):
                    await insert(other, **columns)

    asyncio.run(test())


def test_a_submission_is_in_its_namespace(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            handle = await other.fetchval("SELECT submit('f', 'p', 'u', namespace => 'team')")
            job_id = int(handle.rpartition(":")[2])
            # Nodes of the version before ignore the namespace of a row: the function has it, too.
            assert tuple(await other.fetchrow("SELECT namespace, function FROM inbox") or ()) == ("team", b"team\x1ff")
            for _ in ("in the inbox", "in the queue"):
                found = [
                    await one.group(ops.Find([job_id], 0, namespace)) for namespace in ("team", "default", "teams")
                ]
                assert [len(jobs) for (jobs,) in found] == [1, 0, 0]
                await take(one)
            assert await one.counts() == {(b"team\x1ff", State.PENDING, Priority.NORMAL): 1}
            await other.fetchval("SELECT submit('f', 'p', 'u')")
            assert await take(one) == ({(b"f", Priority.NORMAL): 1}, 0, False), "it joins no job of another namespace"
            ((default,),) = (await one.group(one.claim(function=b"f")))[0]
            ((team,),) = (await one.group(one.claim(function=b"team\x1ff")))[0]
            assert (default.id == job_id, team.id == job_id) == (False, True)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'team\x1ff'", r"the function's name team\\x1ff contains the character U\+001F"),
        ("'b\x1ff', namespace => 'a'", r"name b\\x1ff contains the character U\+001F"),
        ("'f', namespace => E'a\\x1fb'", "is no namespace: use 1 to 63 of the characters"),
        ("'f', namespace => 'Team'", "'Team' is no namespace"),
        ("'f', namespace => E'team\\n'", "is no namespace"),
        ("'f', namespace => ''", "'' is no namespace"),
        ("'f', namespace => NULL", "NULL is no namespace"),
        ("'f', namespace => repeat('a', 64)", "is no namespace"),
        ("'', namespace => 'team'", "a function's name has 1 to 8187 bytes in the namespace team"),
        ("repeat('f', 8188)::bytea, namespace => 'team'", "1 to 8187 bytes in the namespace team"),
        ("repeat('f', 8193)::bytea", "1 to 8192 bytes in the namespace default"),
    ],
)
def test_wrong_names_and_namespaces_are_refused(database: str, arguments: str, words: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            with pytest.raises(asyncpg.InvalidParameterValueError, match=words):
                await other.fetchval(f"SELECT submit({arguments})")
            longest = "SELECT submit(repeat('f', 8187)::bytea, namespace => 'team'), submit('f', namespace => repeat('a', 63))"
            assert len(await other.fetchrow(longest) or ()) == 2

    asyncio.run(test())


@contextlib.asynccontextmanager
async def as_user(other: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[None]:
    """Use a session as a role that may insert rows. The owner of the store may store any row, as one of an earlier version."""
    role = f"user_{await other.fetchval('SELECT current_database()')}"
    await other.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA mainspring TO {role}")
    await other.execute(f"GRANT INSERT, SELECT (id) ON inbox TO {role}; GRANT USAGE ON SEQUENCE inbox_ids TO {role}")
    await other.execute(f"SET ROLE {role}")
    try:
        yield
    finally:
        await other.execute("RESET ROLE")


def test_no_row_becomes_a_delivery_of_a_webhook(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            ids = [await insert(other, namespace=name, function=b"webhook:crm") for name in ("default", "team")]
            kept = await insert(other, function=b"webhooks")
            await take(one)
            found = await other.fetch("SELECT id FROM refused_submissions WHERE reason LIKE '%node''s own' ORDER BY id")
            assert [row["id"] for row in found] == ids
            assert list(await one.find(*ids, kept)) == [kept]

    asyncio.run(test())


def test_no_inserted_row_reaches_another_namespace(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            decisions = b"\x1fd\x1fdefault\x1fw"
            rows = [
                ("a", b"b\x1ff", b"a\x1fb\x1ff"),
                ("default", b"b\x1ff", b"default\x1fb\x1ff"),
                ("default", decisions, b""),
                ("a\x1fb", b"f", b"default\x1fa\x1fb\x1ff"),
                ("", b"b\x1ff", b"default\x1f\x1fb\x1ff"),
            ]
            ids = [await insert(other, namespace="b", function=function) for function in (b"f", b"b\x1ff")]
            async with as_user(other):
                for namespace, function, _ in rows:
                    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"U\+001F|is no namespace"):
                        await insert(other, namespace=namespace, function=function)
            for at, (namespace, function, _) in enumerate(rows, 101):
                ids.append(await insert(other, id=at, namespace=namespace, function=function))
            await take(one)
            refused = ids.pop(4)
            assert (
                await other.fetchval("SELECT id FROM refused_submissions WHERE reason LIKE '%node''s own'") == refused
            )
            (found,) = await one.group(ops.Find(ids, 0, namespaces.ANY))
            expected = [b"b\x1ff", b"b\x1ff", *(key for *_, key in rows if key)]
            assert [found[job_id].function for job_id in ids] == expected
            ((*claimed,),) = (await one.group(one.claim(function=b"b\x1ff")))[0]
            assert [job.id for job in claimed] == ids[:2]
            for job_id in ids[3:]:
                (seen,) = await one.group(ops.Find([job_id], 0, "default"))
                assert job_id in seen, "it is reachable by its handle"

    asyncio.run(test())


def test_a_row_that_cannot_become_a_job_is_refused_alone(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            (await insert(other), await take(one))
            good = [await insert(other, function=b"g", uniq=b"%d" % at) for at in range(3)]
            bad: dict[int, dict[str, object]] = {
                1: {"uniq": b"x"},  # the id of another job
                10**12: {},
                101: {"created_us": 2**63 - 1},
                102: {"due_us": 2**63 - 1},
                103: {"expires_us": -1},
            }
            for job_id, columns in bad.items():
                await insert(other, id=job_id, **columns)
            last = await insert(other, function=b"g")
            assert await take(one) == ({(b"g", Priority.NORMAL): 4}, 0, False)
            assert await take(one) == ({}, 0, False)
            assert [await state(one, job_id) for job_id in (*good, last)] == [State.PENDING] * 4
            rows = await other.fetch("SELECT id, reason FROM refused_submissions ORDER BY id")
            assert [row[0] for row in rows] == sorted(bad)
            assert "duplicate key" in rows[0][1]
            counts = {(b"f", State.PENDING, Priority.NORMAL): 1, (b"g", State.PENDING, Priority.NORMAL): 4}
            assert await one.counts() == counts
            await insert(other, id=104, created_us=2**63 - 1)
            assert await one.find(104) == {}, "nor does a look at it fail"
            assert (await cancel(one, 104)).job is None

    asyncio.run(test())


def test_refused_rows_are_shown_until_somebody_deletes_them(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "REFUSED_INTERVAL", 0.0)

    async def test() -> None:
        async with whole_node(database) as (_, built), session(database) as other:

            async def shown(number: int) -> SetAsideStatus | None:
                async with asyncio.timeout(60):
                    while True:
                        found = (await built.api.call(ShowStatus())).set_aside
                        (measure,) = [one for one in built.metrics.figures() if one.name == "mainspring_set_aside"]
                        assert isinstance(measure, Measure)
                        if ({"kind": "submission"}, number) in measure.samples:
                            return found[0] if found else None
                        await asyncio.sleep(0.05)

            for job_id, created_us in ((7, -1), (8, 2**63 - 1)):
                await insert(other, id=job_id, created_us=created_us)
            entry = await shown(2)
            assert entry is not None
            assert (entry.kind, entry.name) == ("submission", "refused_submissions")
            assert entry.fault.startswith("2 submissions in SQL became no jobs; the last one: a time lies before 1970")
            assert await other.execute("DELETE FROM refused_submissions") == "DELETE 2"
            assert await shown(0) is None
            await insert(other, id=9, created_us=-1)
            await shown(1)
            age = "UPDATE refused_submissions SET at_us = at_us - 31::bigint * 86400000000"
            assert await other.execute(age) == "UPDATE 1"
            await shown(0)
            assert await other.fetchval("SELECT count(*) FROM refused_submissions") == 0

    asyncio.run(test())


def test_a_user_chooses_neither_the_id_nor_a_time_to_come(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            async with as_user(other):
                assert await insert(other, id=77, created_us=2**63 - 1) == 1
                for columns in ({"due_us": 2**60}, {"expires_us": 2**63 - 1}, {"due_us": -1}, {"options": bytes(8193)}):
                    with pytest.raises(asyncpg.InvalidParameterValueError, match="mainspring: "):
                        await insert(other, **columns)
            assert 0 < await other.fetchval("SELECT created_us FROM inbox") < NEVER
            with pytest.raises(asyncpg.InvalidParameterValueError, match="options have 8193 bytes"):
                await other.fetchval("SELECT submit('f', options => repeat('x', 8193)::bytea)")
            for time in ("run_at => 'infinity'", "delay => 'NaN'", "expires => 4e9", "run_at => 1e300"):
                with pytest.raises(asyncpg.InvalidParameterValueError, match="more than a century"):
                    await other.fetchval(f"SELECT submit('f', {time})")

    asyncio.run(test())


def test_a_submission_has_the_depth_of_its_code_within_limits(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            depths = {-1: 0, 3: 3, 99: MOST_DEPTH}
            ids = {given: await insert(other, options=encode_options(Options(depth=given))) for given in depths}
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): len(depths)}
            for given, depth in depths.items():
                options = (await one.find(ids[given]))[ids[given]].options
                assert (0 if options is None else options.depth) == depth

    asyncio.run(test())


@pytest.mark.parametrize(
    "forged",
    [
        Options(run=(5, 1), ref=3),
        Options(schedule="nightly", fire_us=1),
        Options(owner=("bulk", "1")),
        Options(reducer=b"r", forget=True),
    ],
    ids=["run", "schedule", "owner", "others"],
)
def test_a_submission_cannot_pretend_to_be_made_by_a_node(database: str, forged: Options) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            job_id = await insert(other, options=encode_options(replace(forged, timeout=5.0)))
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): 1}
            assert (await one.find(job_id))[job_id].options == Options(timeout=5.0)

    asyncio.run(test())


@pytest.mark.parametrize(
    "options",
    [
        Options(timeout=float("nan")),
        Options(keep_unique=float("inf")),
        Options(heartbeat=-1.0),
        Options(retry=Retry(max_attempts=2**40)),
        Options(key=b"\xff"),
        Options(key=bytes(256)),
        Options(version="a@b"),
        Options(version="2" * 600),
    ],
    ids=["nan", "inf", "negative", "attempts", "text", "long", "version", "long version"],
)
def test_invalid_options_are_left_out(database: str, options: Options) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            job_id = await insert(other, uniq=b"u", options=encode_options(options))
            assert (await take(one)).pending == {(b"f", Priority.NORMAL): 1}
            assert (await one.find(job_id))[job_id].options is None

    asyncio.run(test())


def test_a_portion_of_the_inbox_has_a_limit_in_bytes(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            monkeypatch.setattr(submitting, "PORTION_BYTES", 1000)
            for size in (2000, 400, 400, 400):
                await insert(other, payload=bytes(size))
            for number, more in ((1, True), (2, True), (1, False)):
                assert await take(one) == ({(b"f", Priority.NORMAL): number}, 0, more)

    asyncio.run(test())


CALL = (
    "submit(CAST($1 AS bytea), CAST($2 AS bytea), CAST($3 AS bytea), CAST($4 AS int), CAST($5 AS float8), CAST($6 AS float8),"
    " CAST($7 AS float8), CAST($8 AS bytea))"
)
"""The call of clients for the default namespace."""


def test_calls_without_a_namespace(database: str) -> None:
    async def test() -> None:
        async with session(database) as web:
            await web.execute("CREATE VIEW later AS SELECT submit_1('f', 'p') AS handle")
            await web.fetchval(f"SELECT {CALL}", b"f", b"p", b"", 1, None, None, None, None)
            await web.fetchval("SELECT submit('f', '[6]', uniq => 'order-6', priority => 0)")
            await web.fetchval("SELECT handle FROM later")
            rows = await web.fetch("SELECT namespace, function FROM inbox")
            assert [tuple(row) for row in rows] == [("default", b"f")] * 3

    asyncio.run(test())

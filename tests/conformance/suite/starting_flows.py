"""Starts of runs of workflows: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.access.audit import ListActs
from mainspring.access.caller import Act
from mainspring.access.idempotency import KeptReply, Reservation
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Options, Priority, State
from mainspring.workflows import store as ops
from mainspring.workflows.definitions import CountOpen, RemoveDefinition
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import CompleteWorkflowExecution, Signal
from tests.conformance.suite.flows import DECISIONS, SECOND
from tests.conformance.suite.replying import once

if TYPE_CHECKING:
    from mainspring.storage.engine import Operation
    from tests.conformance.suite.flows import Flows


class StartingFlows:
    """Tests of starts."""

    def test_a_start_stores_a_root_job_a_run_and_a_decision_task(self, flows: Flows) -> None:
        job = flows.new(payload=b"[17]", priority=Priority.HIGH)
        (begun,) = flows.group(flows.starting(job))
        assert begun == ops.Begun({}, {})
        row = flows.row(job.id)
        assert (row.id, row.root, row.type, row.version, row.status) == (job.id, job.id, "order", "1", Status.OPEN)
        assert (row.workflow_id, row.started_us, row.input_size) == (f"H:n1:{job.id}", flows.now_us, 4)
        (started, _) = flows.history(job.id)
        assert (started.run, started.root, started.input) == (job.id, job.id, b"[17]")  # type: ignore[attr-defined]
        assert flows.root(job.id).state == State.RUNNING
        assert flows.store.lifecycle.begun_roots == [job.id]
        (task,) = flows.tasks()
        assert (task.id, task.function, task.priority) == (row.decision, DECISIONS, Priority.HIGH)
        assert task.options == Options(run=(job.id, row.slot), ref=2, forget=True)

    def test_a_start_of_a_live_unique_joins(self, flows: Flows) -> None:
        run = flows.start(unique=b"order-17")
        job = flows.new(unique=b"order-17")
        (begun,) = flows.group(flows.starting(job))
        assert {at: found.id for at, found in begun.joined.items()} == {job.id: run}
        assert flows.list() == [run]
        assert flows.row(run).workflow_id == "order-17"

    def test_names_with_a_nul_name_no_run_and_a_unique_with_one_is_shown_without(self, flows: Flows) -> None:
        run = flows.start(unique=b"a\0b")
        assert flows.row(run).workflow_id == "a\\x00b"
        assert flows.show(Key(workflow_id="a\\x00b")) == flows.shown(run)
        assert flows.show(Key(workflow_id="a\0b")) is None
        (reached,) = flows.signal(Signal(Key(workflow_id="a\0b"), "s", b""))
        assert reached.verdict == "unknown"
        assert flows.list(workflow_id="a\0b") == flows.list(type="or\0der") == []
        waiting = flows.new(b"or\0der")
        flows.group(job_ops.Submit([waiting]))
        (reached,) = flows.signal(Signal(Key(job=waiting.id), "s", b""))
        assert reached.verdict == "recorded", "stored beside the job, which may become a run"

    def test_a_unique_is_free_once_its_run_has_closed(self, flows: Flows) -> None:
        first = flows.start(unique=b"u")
        flows.running(first, flows.close())
        second = flows.start(unique=b"u")
        assert flows.list(workflow_id="u") == [second, first]
        assert flows.show(Key(workflow_id="u")) == flows.shown(second)

    def test_two_workflows_with_one_unique_clash(self, flows: Flows) -> None:
        flows.define(Definition("refund"))
        run = flows.start(unique=b"u")
        at_once, waiting = (flows.new(b"refund", payload=b"in", unique=b"u") for _ in range(2))
        assert flows.group(flows.starting(at_once)) == [ops.Begun({}, {})]
        flows.store.submit(waiting)
        assert flows.begin_waiting(function=b"refund") == 1
        assert flows.list() == [run]
        for job in (at_once, waiting):
            failed = flows.store.present(job.id)
            assert (failed.state, failed.term) == (State.FAILED, 0)
            assert b"WorkflowAlreadyRunning" in failed.error
            assert f"H:n1:{run}".encode() in failed.error
            assert job.id in flows.store.lifecycle.ended_roots
        flows.running(run, flows.close())
        for job in (at_once, waiting):
            assert flows.store.redrive(job.id).redriven
            assert flows.begin_waiting(function=b"refund") == 1
            assert flows.history(job.id)[0].input == b"in"  # type: ignore[attr-defined]
            flows.terminate(Key(run=job.id))

    def test_a_workflow_id_is_free_within_the_group_that_closes_its_run(self, flows: Flows) -> None:
        flows.define(Definition("refund"))
        run = flows.start(unique=b"u")
        job = flows.new(b"refund", unique=b"u")
        flows.group(ops.TerminateRun(Key(run=run), "", flows.now_us), flows.starting(job))
        assert flows.list(workflow_id="u", status=(Status.OPEN,)) == [job.id]

    def test_a_start_with_a_key_is_done_once_with_the_jobs_of_its_request(self, flows: Flows) -> None:
        def requested() -> list[Operation]:
            submission = once(flows.store.job())
            return [submission, ops.BeginRuns([ops.Start(flows.new())], flows.now_us, submission.keyed_act)]

        begun = ops.Begun({}, {})
        assert flows.group(*requested()) == [{}, begun]
        kept = Reservation(b"r", 100, KeptReply(201, {}, repr([{}, begun]).encode()))
        assert flows.group(*requested(), flows.starting(flows.new())) == [kept, kept, begun]
        assert len(flows.list()) == 2
        assert len(flows.store.claim()) == 1

    def test_an_unregistered_workflow_or_version_is_refused(self, flows: Flows) -> None:
        first, second = flows.new(b"unknown"), flows.new()
        (begun,) = flows.group(ops.BeginRuns([ops.Start(first), ops.Start(second, "2")], flows.now_us))
        assert "unknown" in begun.refused[first.id]
        assert "version 2" in begun.refused[second.id]
        assert "registered: 1" in begun.refused[second.id]
        assert (flows.store.find(first.id), flows.store.find(second.id)) == (None, None)

    def test_a_run_moves_to_another_version_before_its_code_has_recorded_anything(self, flows: Flows) -> None:
        flows.now_us += 1
        flows.define(Definition("order", "2"))
        first, second = flows.start(unique=b"order-17"), flows.start()
        assert flows.row(first).version == "2"
        flows.signal(Signal(Key(workflow_id="order-17"), "paid", b"5"))
        flows.cancel(Key(run=first), "enough")

        def move(run: int, version: str) -> ops.Moved:
            (moved,) = flows.group(ops.MoveRun(Key(run=run), version, flows.now_us))
            assert isinstance(moved, ops.Moved)
            return moved

        assert move(first, "3") == ops.Moved("unregistered", first, first, versions=("1", "2"))
        assert move(first, "2").verdict == "same"
        assert move(999, "2").verdict == "unknown"
        task = flows.task(first)  # a worker has it: its report is refused
        moved = move(first, "1")
        assert (moved.verdict, moved.root) == ("moved", first)
        assert flows.row(moved.run).version == "1"
        assert flows.row(moved.run).workflow_id == "order-17"
        assert flows.kinds(moved.run)[:3] == [
            "WorkflowExecutionStarted",
            "WorkflowExecutionSignaled",
            "WorkflowExecutionCancelRequested",
        ]
        assert flows.history(moved.run)[0].input == flows.history(first)[0].input == b"[17]"  # type: ignore[attr-defined]
        assert flows.decide(first, task).verdict == "stale"
        assert move(first, "1").verdict == "closed"
        flows.decide(second, flows.task(second))
        assert move(second, "1").verdict == "recorded"
        flows.decide(moved.run, flows.task(moved.run), CompleteWorkflowExecution(1))

    def test_a_version_that_is_gone_gets_no_new_runs_until_it_has_workers(self, flows: Flows) -> None:
        old, new = ("default", "order", "1"), ("default", "order", "2")
        flows.now_us += 1
        flows.define(Definition("order", "2"))
        flows.group(ops.SaveDefinitions([], flows.now_us, seen={old}, gone={new, ("default", "other", "1")}))
        assert flows.row(flows.start()).version == "1"
        flows.now_us += 1
        flows.define(Definition("order", "2"))
        assert flows.row(flows.start()).version == "2"

    def test_a_start_without_a_version_gets_the_newest_one_with_workers(self, flows: Flows) -> None:
        both = {("default", "order", "1"), ("default", "order", "2")}
        flows.now_us += 1
        flows.define(Definition("order", "2"))
        assert flows.row(flows.start()).version == "2"
        flows.now_us += 1
        found = {one.version: one for one in flows.define(Definition("order", "1"))}
        assert (found["1"].first_seen_us, found["1"].last_seen_us) == (flows.now_us - 2, flows.now_us)
        assert flows.row(flows.start()).version == "2", "workers of an old version may reconnect"
        flows.wait(90 * SECOND)
        (stored,) = flows.group(ops.SaveDefinitions([], flows.now_us, seen={*both, ("default", "other", "1")}))
        seen = [
            (one.version, one.first_seen_us == found[one.version].first_seen_us, one.last_seen_us) for one in stored
        ]
        assert sorted(seen) == [("1", True, flows.now_us), ("2", True, flows.now_us)]
        for version in ("2", "1"):
            flows.wait(60 * SECOND)
            flows.group(ops.SaveDefinitions([], flows.now_us, seen={("default", "order", "1")}))
            job = flows.new()
            flows.store.submit(job)
            assert flows.begin_waiting() == 1
            assert flows.row(job.id).version == version
        assert flows.row(flows.start()).version == "1", "the workers of the new version are gone"
        job = flows.new()
        flows.group(flows.starting(job, version="2"))
        assert flows.row(job.id).version == "2"
        assert flows.store.read(ops.FindDefinitions()) == flows.define()

    def test_versions_that_come_at_once_are_new_in_their_order(self, flows: Flows) -> None:
        assert flows.row(flows.start()).version == "1"
        flows.define(Definition("order", "9"), Definition("order", "10"), Definition("order", "2"))
        assert flows.row(flows.start()).version == "2", "the last one is the newest, also at the time of an earlier one"
        flows.now_us -= 50 * SECOND
        flows.define(Definition("order", "b"))
        flows.define(Definition("order", "a"))
        assert flows.row(flows.start()).version == "a", "also after a step of the clock"

    def test_a_version_that_was_seen_while_the_clock_was_ahead_gives_way_to_a_new_one(self, flows: Flows) -> None:
        flows.now_us += 86_400 * SECOND
        flows.define(Definition("order", "1"))
        flows.now_us -= 86_400 * SECOND
        flows.define(Definition("order", "2"))
        assert flows.row(flows.start()).version == "2"
        flows.wait(101 * SECOND)
        flows.define(Definition("order", "1"))
        assert flows.row(flows.start()).version == "1", "the workers of the new version are gone"

    def test_a_version_is_removed_once_nothing_needs_it(self, flows: Flows) -> None:
        def remove(version: str, *before: Operation) -> str:
            act = Act("workflows.remove", "ann", f"order@{version}")
            removed = flows.group(*before, RemoveDefinition("default", "order", version, act=act))[-1]
            assert sorted(removed.definitions, key=str) == sorted(flows.store.read(ops.FindDefinitions()), key=str)
            return str(removed.problem)

        first = flows.start()
        flows.now_us += 1
        flows.define(Definition("order", "2"), Definition("refund", "1"))
        second = flows.start()
        assert flows.store.read(CountOpen()) == {("default", "order", "1"): 1, ("default", "order", "2"): 1}
        assert [remove(version) for version in ("1", "2", "3")] == ["open", "open", "unknown"]
        flows.terminate(Key(run=first))
        flows.terminate(Key(run=second))
        assert flows.store.read(CountOpen()) == {}
        starting = flows.starting(flows.new(), version="1")
        assert remove("1", starting) == "open", "a run of the same group is open, too"
        assert remove("2") == "newest"
        flows.terminate(Key(run=starting.starts[0].job.id))
        assert remove("1") == ""
        assert remove("1") == "unknown"
        assert [recorded.act.object for recorded in flows.store.all_of(ListActs(limit=10))] == ["order@1"]
        (begun,) = flows.group(flows.starting(flows.new(), version="1"))
        assert [why for why in begun.refused.values() if "registered: 2" in why]
        assert [(one.name, one.version) for one in flows.define()] == [("order", "2"), ("refund", "1")]

    def test_a_job_that_waits_keeps_the_version_of_its_submit(self, flows: Flows) -> None:
        flows.now_us += 1
        flows.define(Definition("order", "2", timeout=100.0))
        assert flows.row(flows.start(options=Options(version="1"))).version == "1"
        named = flows.new(options=Options(version="1"), unique=b"u")
        due = [flows.new(options=Options(version=version)) for version in ("1", "", "7")]
        flows.store.submit(named, *due)
        flows.signal(Signal(Key(workflow_id="u"), "go", b""))
        assert flows.row(named.id).version == "1"
        assert flows.begin_waiting() == 3
        assert [flows.row(job.id).version for job in due] == ["1", "2", "7"]
        found = {one.version: one for one in flows.store.read(ops.FindDefinitions())}
        assert (found["7"].first_seen_us, found["7"].timeout) == (0, found["1"].timeout), "it waits for its workers"
        assert flows.row(flows.start()).version == "2"
        flows.now_us += 1
        flows.define(Definition("order", "7"))
        assert flows.row(flows.start()).version == "7"

    def test_waiting_jobs_begin_in_the_order_of_a_claim(self, flows: Flows) -> None:
        jobs = [flows.new(payload=b"%d" % number) for number in range(3)]
        urgent = flows.new(priority=Priority.HIGH)
        later = flows.new(state=State.SCHEDULED, due_us=flows.now_us + SECOND)
        flows.store.submit(*jobs, urgent, later)
        assert flows.begin_waiting(2) == 2
        assert flows.list() == [urgent.id, jobs[0].id]
        assert flows.begin_waiting(5) == 2
        assert flows.store.state(later.id) is State.SCHEDULED
        assert flows.history(jobs[2].id)[0].input == b"2"  # type: ignore[attr-defined]
        assert flows.begin_waiting(function=b"unknown") == 0

    def test_the_timeout_is_that_of_the_start_or_the_job_or_the_definition(self, flows: Flows) -> None:
        stated, option, default = flows.new(), flows.new(options=Options(timeout=20.0)), flows.new()
        starts = [ops.Start(stated, timeout=10.0), ops.Start(option), ops.Start(default)]
        flows.group(ops.BeginRuns(starts, flows.now_us))
        due = [flows.row(job.id).due_us - flows.now_us for job in (stated, option, default)]
        assert due == [10 * SECOND, 20 * SECOND, 86_400 * SECOND]

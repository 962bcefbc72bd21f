from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tests.system.processes import is_alive

from mainspring.wire.gearman_protocol import Type
from mainspring.worker import places, runtime
from mainspring.worker.executors import process
from mainspring.worker.executors.child import Ended, Run, Unframer, decode_to_child, decode_to_parent, frame
from mainspring.worker.selector import load

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from tests.unit.client.extension_server import ExtensionServer
    from tests.unit.worker.conftest import Running

    from mainspring import App

SELECTOR = str(Path(__file__).with_name("app_of_processes.py"))


def the_app() -> App:
    return cast("App", load(SELECTOR))


def test_frames_may_be_split_at_any_byte() -> None:
    runs = [Run("f", b"h", b"", b"", b"x" * n) for n in (0, 1, 300)]
    messages = [*map(frame, runs), frame(Ended(b"o", b"", b"", 1))]
    stream = b"".join(messages)
    unframer = Unframer()
    bodies = [body for n in range(len(stream)) for body in unframer.feed(stream[n : n + 1])]
    assert [decode_to_child(body) for body in bodies[:3]] == runs
    assert isinstance(decode_to_parent(bodies[3]), Ended)


def test_functions_run_in_reused_processes(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=2)
    jobs = [server.add("square", b"[%d]" % n) for n in range(20)] + [server.add("pid") for _ in range(10)]
    server.wait_for(lambda: all(job.ended for job in jobs), 20)
    assert [job.data for job in jobs[:20]] == [b"%d" % (n * n) for n in range(20)]
    pids = {int(job.data) for job in jobs[20:]}
    assert len(pids) <= 2
    assert os.getpid() not in pids


def test_the_first_job_of_a_process_begins_when_this_is_ready(
    server: ExtensionServer, run: Callable[..., Running]
) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    jobs = [server.add("pid") for _ in range(3)]
    server.wait_for(lambda: all(job.ended for job in jobs), 20)
    calls = [args for kind, args in server.seen if kind == Type.CALL]
    reports = [json.loads(args[2]) for args in calls if args[1] == b"worker.prepares"]
    first = [[jobs[0].handle.decode(), jobs[0].token.decode()]]
    assert reports == [{"deliveries": first, "ready": False}, {"deliveries": first, "ready": True}]


def test_functions_in_processes_read_and_report_like_others(
    server: ExtensionServer, run: Callable[..., Running]
) -> None:
    server.answered = {"worker.logs", "progress.texts"}
    run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("telling", unique="u")
    failed = server.add("refuse")
    unfit = server.add("square", b'["x"]')
    server.wait_for(lambda: job.ended and failed.ended and unfit.ended, 20)
    assert job.data == b'"%b 1 u"' % job.handle
    assert {kind for kind, _ in job.reports} == {12, 28, 29}
    assert server.seen_of(Type.PROGRESS_TEXT) == [[job.handle, b"half"]]
    ((lines,),) = server.seen_of(Type.LOG)
    assert b"said" in lines
    assert b"SystemExit" in failed.error
    assert b"parameter 'x'" in unfit.error
    assert unfit.options["final"]


def test_a_crash_fails_only_its_own_job(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=2)
    crash, leave, good = server.add("crash"), server.add("leave"), server.add("square", b"[3]")
    server.wait_for(lambda: crash.ended and leave.ended and good.ended, 20)
    assert b"was killed by SIGSEGV" in crash.error
    assert b"ended by itself with exit code 7" in leave.error
    assert good.data == b"9"


def test_isolated_jobs_run_in_processes_for_all_executors(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=3)
    jobs = [server.add("thread_pid", alone=True), server.add("thread_pid")]
    jobs += [server.add("coroutine_pid", alone=True), server.add("crash_in_a_thread", alone=True)]
    server.wait_for(lambda: all(job.ended for job in jobs), 20)
    pids = [int(job.data) for job in jobs[:3]]
    assert pids[1] == os.getpid()
    assert os.getpid() not in {pids[0], pids[2]}
    assert b"was killed by SIGSEGV" in jobs[3].error


def test_an_isolated_coroutine_can_be_cancelled(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("coroutine_for_ever", alone=True)
    server.wait_for(lambda: job.reports, 20)
    server.stop(job, "cancelled")
    server.wait_for(lambda: job.ended, 20)
    assert job.state == "cancelled"
    assert [data for _, data in job.reports] == [[b"begun"], [b"over"]]
    second = server.add("coroutine_pid", alone=True)
    server.wait_for(lambda: second.ended, 20)
    assert second.state == "succeeded"


def test_stuck_functions_are_killed(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    stuck = server.add("stuck")
    server.wait_for(lambda: stuck.reports, 20)
    server.stop(stuck, "timeout")
    after = server.add("listening")
    server.wait_for(lambda: after.reports, 20)
    server.stop(after, "cancelled")
    server.wait_for(lambda: after.ended, 20)
    assert after.state == "cancelled"
    assert stuck.outcomes == []


def test_a_function_that_does_not_stop_on_its_cancel_is_killed_after_a_grace(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CANCEL_GRACE", 0.05)
    run(the_app(), selector=SELECTOR, concurrency=1)
    stuck = server.add("stuck")
    server.wait_for(lambda: stuck.reports, 20)
    server.stop(stuck, "cancelled")
    server.wait_for(lambda: stuck.ended, 20)
    assert stuck.state == "cancelled"


def test_a_process_that_uses_too_much_memory_ends_after_its_job(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "resident_bytes", lambda: 0)  # the worker itself stays
    run(the_app(), selector=SELECTOR, concurrency=1, max_rss=1)
    first = server.add("pid")
    server.wait_for(lambda: first.ended, 20)
    second = server.add("pid")
    server.wait_for(lambda: second.ended, 20)
    assert first.data != second.data


def test_processes_end_with_their_worker(server: ExtensionServer, run: Callable[..., Running]) -> None:
    worker = run(the_app(), selector=SELECTOR, concurrency=1, grace=0.0)
    pid = server.add("pid")
    stuck = server.add("stuck")
    server.wait_for(lambda: stuck.reports, 20)
    worker.stop()
    worker.ended()
    assert stuck.outcomes == [b"released"]
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid.data.decode()}").exists() and time.monotonic() < deadline:
        os.sched_yield()
    assert not Path(f"/proc/{pid.data.decode()}").exists()


def test_programs_and_forks_can_be_terminated(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    jobs = [server.add("terminates", b'["sleep","60"]'), server.add("terminates_a_fork")]
    server.wait_for(lambda: all(job.ended for job in jobs), 60)
    assert [job.data for job in jobs] == [b"-15", b"-15"]


def test_a_fork_that_returns_from_the_function_reports_nothing(
    server: ExtensionServer, run: Callable[..., Running]
) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    twice, after = server.add("comes_back_twice"), server.add("crash")
    server.wait_for(lambda: twice.ended and after.ended, 20)
    assert twice.data == b'"parent"'
    assert b"was killed by SIGSEGV" in after.error


def test_processes_of_a_killed_function_are_killed_with_it(
    server: ExtensionServer, run: Callable[..., Running]
) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("stuck_in_others")
    server.wait_for(lambda: job.reports, 20)
    pids = [int(pid) for pid in job.reports[0][1][-1].split()]
    server.stop(job, "timeout")
    after = server.add("square", b"[3]")
    server.wait_for(lambda: after.ended and not any(is_alive(pid) for pid in pids), 20)
    assert after.data == b"9"


def test_a_fork_does_not_hide_the_end_of_its_process(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("dies_before_its_fork")
    try:
        server.wait_for(lambda: job.ended, 20)
    finally:
        os.kill(int(job.reports[0][1][-1]), signal.SIGKILL)
    assert b"ended by itself with exit code 7" in job.error


def test_an_app_that_a_process_cannot_import_is_an_error(server: ExtensionServer, run: Callable[..., Running]) -> None:
    run(the_app(), selector=None)
    job = server.add("square", b"[1]")
    server.wait_for(lambda: job.ended)
    assert b"not loaded from a file or module" in job.error


def test_a_waiting_function_gives_its_place_to_the_awaited_job(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))
    running = run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("waits", b"[4]")
    server.wait_for(lambda: job.ended, 30)
    assert job.data == b"16"
    assert running.worker.jobs_done == 2


def test_the_wait_of_a_function_is_refused_at_the_limit(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))
    run(the_app(), selector=SELECTOR, concurrency=1, waiting_places=0)
    job = server.add("waits", b"[4]")
    server.wait_for(lambda: job.ended, 30)
    assert b"WorkerFullError" in job.error


def test_a_function_that_is_cancelled_while_it_waits_stops_by_itself(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))
    run(the_app(), selector=SELECTOR, concurrency=2)
    job = server.add("waits_elsewhere")
    server.wait_for(lambda: server.seen_of(Type.WAIT), 30)
    server.stop(job, "cancelled")
    server.wait_for(lambda: job.ended, 30)
    assert job.state == "cancelled"
    same = server.add("pid")  # by the same process: it was not killed
    server.wait_for(lambda: same.ended, 30)
    assert same.data == server.jobs[job.handle].reports[0][1][0]


def test_processes_that_only_extra_places_needed_end(
    server: ExtensionServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))
    monkeypatch.setattr(places, "IDLE_TIMEOUT", 0.05)
    run(the_app(), selector=SELECTOR, concurrency=1)
    job = server.add("waits_for_pid")
    server.wait_for(lambda: job.ended, 30)
    pids = [int(pid) for pid in job.data.strip(b"[]").split(b",")]
    assert len(set(pids)) == 2
    while all(is_alive(pid) for pid in pids):
        time.sleep(0.01)
    after = server.add("pid")
    server.wait_for(lambda: after.ended, 30)
    assert int(after.data) in pids  # the other process is kept

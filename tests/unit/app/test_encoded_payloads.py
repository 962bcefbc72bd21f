"""An App with a codec: the store has no plain payload, replays compare plain ones, and a lost key parks a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring import (
    App,
    CodecError,
    Data,
    Done,
    JobFailed,
    LostKeyError,
    Retry,
    Running,
    Zlib,
    current_job,
    workflow,
)
from mainspring.testing import in_memory
from mainspring.worker.workflows.replay_checks import ReplayChecks
from mainspring.worker.workflows.run_payloads import RunPayloads
from mainspring.worker.workflows.turns import Turns
from mainspring.workflows.carrying import Choice, arguments_digest, marker_attributes, plan_rerun
from mainspring.workflows.history import ActivityTaskScheduled, MarkerRecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring import PayloadContext
    from mainspring.testing.app import InMemory

SECRET = "4711-0815"


class Masking:
    """Encodes with a random mask: the same data in another way each time."""

    name = "mask"

    def __init__(self, key: str = "k1", *, strict: bool = False) -> None:
        self.key = key
        self.keys = {key}
        self.strict = strict
        self.seen: set[tuple[str, str]] = set()

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        self.seen.add((context.kind, context.name))
        mask = bytes(range(128, 136)) if context.repeatable else bytes(128 | one for one in os.urandom(8))
        return mask + bytes(one ^ mask[place % 8] for place, one in enumerate(data))

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        if context.key not in self.keys:
            raise LostKeyError(context.key)
        return bytes(one ^ data[place % 8] for place, one in enumerate(data[8:]))


codec = Masking()
app = App(codec=codec)
cards = app.signal("card", str)
tokens: list[str] = []


@app.task
def charge(card: str) -> str:
    current_job().publish("card", card)
    return f"paid by {card}"


@app.task
async def refund(card: str) -> str:
    return f"refunded {card}"


@app.task
def stream(card: str) -> None:
    current_job().data(card.encode())


@app.task
def wait(card: str) -> str:
    tokens.append(current_job().completion_token())
    return card


@app.task(retry=Retry(max_attempts=3, initial=60))
def fail(card: str) -> None:
    raise ValueError("no")


class Moving:
    async def submit(self, card: str, key: str) -> str:
        assert card == SECRET
        return key

    async def status(self, meta: str) -> Running | Done[str]:
        return Done(f"moved {SECRET}")

    async def cancel(self, meta: str) -> None: ...


Transfer: Any = app.external(every="1s", name="Transfer")(Moving)


@app.workflow
async def child(card: str) -> str:
    return f"child of {card}"


@app.workflow
async def order(card: str, round: int = 1) -> list[str]:  # noqa: A002 - a name for this test
    workflow.publish("stage", {"card": card})
    found = [await workflow.step(charge_here, card), workflow.side_effect(lambda: f"chosen {card}")]
    found.append(await charge.submit(card))
    found += await workflow.map(refund, [card, card])
    found.append(await child.submit(card))
    found.append(await cards.receive())
    if round == 1:
        raise workflow.continue_as_new(card, 2)
    return found


@app.workflow
async def move(card: str) -> str:
    moved: str = await Transfer.submit(card)
    return moved


def charge_here(card: str) -> str:
    return f"stepped {card}"


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    codec.key, codec.keys = "k1", {"k1"}
    with in_memory(app) as fleet:
        yield fleet
        assert SECRET not in stored(fleet)


def stored(fleet: InMemory) -> str:
    """Return everything that the store has."""
    return repr({name: _inside(value) for name, value in vars(fleet._tables()).items()})  # noqa: SLF001 - the store


def events_of(fleet: InMemory, name: str) -> list[Any]:
    """Return the events of the run of a workflow as they are stored."""
    row = next(one for one in fleet._tables().workflows.values() if one.type == name)  # noqa: SLF001 - the store
    return fleet._history_file(row).events  # noqa: SLF001 - as it is stored


def _inside(value: Any) -> Any:
    if hasattr(value, "__slots__") or hasattr(value, "__dict__"):
        fields = getattr(value, "__struct_fields__", None) or getattr(value, "__slots__", None) or vars(value)
        return repr(value) + repr([getattr(value, name, None) for name in fields])
    return value


def test_the_scan_of_the_store_finds_plain_payloads() -> None:
    plain = App()

    @plain.task
    def charge(card: str) -> str:
        return card

    with in_memory(plain) as fleet:
        fleet.result(charge.submit(SECRET))
        assert SECRET in stored(fleet)


def test_a_job_and_its_result_are_encoded(fleet: InMemory) -> None:
    job = charge.submit(SECRET)
    assert fleet.result(job) == f"paid by {SECRET}"
    assert job.value("card") == job.values()["card"].value == job.wait_value("card", 1) == SECRET
    assert app.results([job]).__next__() == f"paid by {SECRET}"
    assert app.job(job.handle).result() == f'"paid by {SECRET}"'.encode()
    shown = app.jobs.get(job.handle)
    assert shown.arguments().encoded == "encoded (codec mask, key k1, 21 bytes)"


def test_everything_of_a_run_is_encoded_and_replays_agree(fleet: InMemory) -> None:
    run = order.options(id="o-1").submit(SECRET)
    run.signal(cards, f"first {SECRET}")
    run.signal("card", f"second {SECRET}")
    assert fleet.result(run) == [
        f"stepped {SECRET}",
        f"chosen {SECRET}",
        f"paid by {SECRET}",
        f"refunded {SECRET}",
        f"refunded {SECRET}",
        f"child of {SECRET}",
        f"second {SECRET}",
    ]
    assert run.value("stage") == {"card": SECRET}
    fleet.crash_worker()
    fleet.check()
    assert {kind for kind, _ in codec.seen} >= {"arguments", "result", "signal", "value", "step", "side effect"}


def test_a_rerun_finds_the_calls_with_the_same_plain_arguments(fleet: InMemory) -> None:
    run = order.submit(SECRET, 2)
    run.signal(cards, SECRET)
    fleet.result(run)
    carried = plan_rerun(events_of(fleet, "order"), Choice(), 100).carried
    arguments = msgspec.json.encode([SECRET])
    digests = {one.function: one.digest for one in carried}
    assert digests["charge"] == arguments_digest(b"charge", arguments)
    assert digests["child"] == arguments_digest(b"child", arguments)
    markers = [MarkerRecorded(number, 0, **marker_attributes(one)) for number, one in enumerate(carried, 2)]
    plain = {one.function: one.details for one in RunPayloads(app.registry.codecs).plain(markers)}  # type: ignore[attr-defined] # markers
    assert plain["charge"] == msgspec.json.encode(f"paid by {SECRET}")
    assert plain["charge_here"] == msgspec.json.encode(f"stepped {SECRET}")


def test_a_run_goes_on_after_a_crash_of_its_worker(fleet: InMemory) -> None:
    run = order.submit(SECRET, 2)
    fleet.advance("1m")
    fleet.crash_worker()
    run.signal(cards, SECRET)
    assert fleet.result(run)[-1] == SECRET


@app.workflow
async def charge_often(card: str) -> list[str]:
    return [await refund.submit(f"{card} {number}") for number in range(5)]


def test_the_code_gets_plain_results_of_its_workers_own_activities(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that is checked by a replay is not fused with the end of an activity: here none is checked."""
    fused = []
    decide_fused = Turns.decide_fused

    def count(self: Turns, run: Any, now_us: int) -> None:
        fused.append(run)
        decide_fused(self, run, now_us)

    monkeypatch.setattr(Turns, "decide_fused", count)
    monkeypatch.setattr("mainspring.testing.app.GrowingChecks", lambda: ReplayChecks(each=False, chance=lambda: 1.0))
    codec.key, codec.keys = "k1", {"k1"}
    with in_memory(app) as fleet:
        assert fleet.result(charge_often.submit(SECRET)) == [f"refunded {SECRET} {number}" for number in range(5)]
        assert SECRET not in stored(fleet)
    assert fused


def test_work_elsewhere_is_encoded_and_stays_json(fleet: InMemory) -> None:
    run, job = move.submit(SECRET), Transfer.submit(SECRET)
    assert run.result(30) == job.result(30) == f"moved {SECRET}"
    payloads = [one.payload for one in fleet._tables().jobs.values() if one.function == b"Transfer"]  # noqa: SLF001 - the store
    payloads += [one.input for one in events_of(fleet, "move") if isinstance(one, ActivityTaskScheduled)]
    assert len(payloads) >= 2
    assert all(not payload or payload.startswith(b'{"mainspring:encoded"') for payload in payloads)


def test_parts_of_a_result_are_encoded(fleet: InMemory) -> None:
    job = stream.submit(SECRET)
    events = list(job.stream(timeout=30))
    assert events in ([Data(SECRET.encode())], [])  # none, if it has ended before
    fleet.result(job)


def test_a_completion_is_encoded_and_may_be_repeated(fleet: InMemory) -> None:
    tokens.clear()
    job = wait.submit(SECRET)
    fleet.advance("1m")
    app.completions.complete(tokens[0], f"answer {SECRET}")
    assert app.completions.complete(tokens[0], f"answer {SECRET}").repeated
    assert fleet.result(job) == f"answer {SECRET}"


def test_a_request_key_counts_the_same_call_once(fleet: InMemory) -> None:
    first, second = (charge.options(request_key="r-1").submit(SECRET) for _ in range(2))
    assert first.handle == second.handle
    fleet.result(first)


def test_a_unique_of_the_payload_joins_the_same_call(fleet: InMemory) -> None:
    first, second, third = (
        charge.options(unique="-", delay="1m").submit(card) for card in (SECRET, SECRET, f"other {SECRET}")
    )
    assert first.handle == second.handle != third.handle


def test_plain_payloads_are_taken(fleet: InMemory) -> None:
    plain = App(app._server)  # noqa: SLF001 - the fleet's
    assert fleet.result(app.job(plain.function("charge").submit(["public"]).handle)) == b'"paid by public"'
    plain.close()


def test_a_lost_key_parks_a_run_and_names_the_key(fleet: InMemory) -> None:
    run = order.options(id="o-2").submit(SECRET, 2)
    fleet.advance("1m")
    fleet.crash_worker()
    codec.key, codec.keys = "k2", {"k2"}
    run.signal(cards, SECRET)
    fleet.advance("1m")
    shown = run.details()
    assert shown["status"] == "open"
    assert "key 'k1' of codec 'mask'" in str(shown["parked"])
    codec.keys = {"k1", "k2"}
    run.unpark()
    assert fleet.result(run)[-1] == SECRET


def test_a_lost_key_parks_a_run_in_memory_when_an_activity_was_encoded_by_another_key(fleet: InMemory) -> None:
    run = order.options(id="o-3").submit(SECRET, 2)
    fleet.advance("1m")
    stranger = App(app._server, codec=Masking("k9"))  # noqa: SLF001 - the fleet's
    stranger.function("nothing")
    order_there = stranger.workflow(name="order")(order.function.code.call)
    order_there.get("o-3").signal("card", SECRET)
    stranger.close()
    fleet.advance("1m")
    assert "key 'k9' of codec 'mask'" in str(run.details()["parked"])
    codec.keys = {"k1", "k9"}
    run.unpark()
    assert fleet.result(run)[-1] == SECRET


def test_a_job_with_a_lost_key_is_tried_again_by_its_policy(fleet: InMemory) -> None:
    job = fail.submit(SECRET)
    codec.keys = set()
    fleet.advance("30s")
    assert job.info()["state"] == "scheduled"
    fleet.advance("1h")
    with pytest.raises(JobFailed, match="key 'k1' of codec 'mask', which does not have it") as failed:
        job.result(5)
    assert (failed.value.type_name, failed.value.attempt) == ("LostKeyError", 3)
    codec.keys = {"k1"}
    job.retry()
    with pytest.raises(JobFailed, match="no"):
        fleet.result(job)


def test_a_client_without_the_key_gets_an_error(fleet: InMemory) -> None:
    job = charge.submit(SECRET)
    fleet.result(job)
    codec.keys = set()
    with pytest.raises(LostKeyError, match="key 'k1'"):
        app.job(job.handle).result()


def test_a_result_that_cannot_be_encoded_fails_its_job(fleet: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    job = charge.options(delay="1m").submit(SECRET)

    def refuse(data: bytes, context: PayloadContext) -> bytes:
        del data, context
        raise OSError("no entropy")

    monkeypatch.setattr(codec, "encode", refuse)
    with pytest.raises((JobFailed, CodecError), match="no entropy"):
        fleet.result(job)


def test_a_worker_without_a_codec_runs_nothing_on_encoded_bytes() -> None:
    plain = App()
    ran: list[bytes] = []

    @plain.task(retry=Retry(max_attempts=2, initial=1))
    def raw(data: bytes) -> None:
        ran.append(data)

    @plain.workflow
    async def run_raw(data: Any) -> None:
        ran.append(data)

    with in_memory(plain) as fleet:
        encoding = App(plain._server, codec=Masking())  # noqa: SLF001 - the fleet's
        job = encoding.function("raw").submit(SECRET.encode())
        with pytest.raises(JobFailed, match="the App has no codec"):
            fleet.result(plain.job(job.handle))
        there = encoding.workflow(name="run_raw")(run_raw.function.code.call)
        run = run_raw.get(there.options(id="r-1").submit(SECRET).key)
        fleet.advance("1m")
        assert "the App has no codec" in str(run.details()["parked"])
        encoding.close()
    assert not ran


def strict_app() -> tuple[App, Callable[..., Any]]:
    strict = App(codec=Masking(strict=True))

    @strict.task
    def charge(card: str) -> str:
        return card

    return strict, charge


def test_a_strict_codec_refuses_plain_payloads() -> None:
    strict, task = strict_app()
    with in_memory(strict) as fleet:
        submit: Any = task
        assert fleet.result(submit.submit(SECRET)) == SECRET
        plain = App(strict._server)  # noqa: SLF001 - the fleet's
        with pytest.raises(JobFailed, match="not encoded, and the App's codec is strict"):
            fleet.result(strict.job(plain.function("charge").submit(["x"]).handle))
        plain.close()


def test_zlib_makes_large_arguments_small() -> None:
    small = App(codec=Zlib())

    @small.task
    def measure(text: str) -> str:
        return text

    with in_memory(small) as fleet:
        job = measure.submit("a" * 100_000)
        assert fleet.result(job) == "a" * 100_000
        assert app_info(job)["input_size"] < 1_000


def app_info(job: Any) -> dict[str, Any]:
    found: dict[str, Any] = job.info()
    return found

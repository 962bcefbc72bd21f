"""Definitions of work that runs elsewhere: which classes it takes, and what it makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Done, Failed, Running, Throttled, UsageError, WorkflowUsageError, ZooKeeper
from mainspring.errors import PayloadError
from mainspring.worker.external_work import MAX_META


@dataclass
class Step:
    name: str
    seconds: float = 1.0


@dataclass
class Cluster:
    id: str


class Work:
    """A step on a cluster."""

    async def submit(self, args: Step, key: str) -> Cluster:
        return Cluster(f"{args.name} {key}")

    async def status(self, meta: Cluster) -> Running | Done[int] | Failed:
        return Done(len(meta.id))

    async def cancel(self, meta: Cluster) -> None: ...


def define(kind: Any, name: str | None = None, **options: Any) -> Any:
    return App("nowhere:1").external(**{"every": "1s", "name": name, **options})(kind)


def test_a_class_becomes_two_functions() -> None:
    app = App("nowhere:1")
    step = app.external(every="30s", timeout="2h", on_timeout="leave", retry=None)(Work)
    assert [one.name for one in app.registry] == ["Work", "Work.cancel"]
    function = app.registry.get("Work")
    assert function is not None
    assert json.loads(function.registration()) == {"timeout": 7200.0, "elsewhere": "leave"}
    assert function.elsewhere is not None
    assert function.elsewhere.every == 30
    assert step.__doc__ == "A step on a cluster."
    assert function.signature.encode((Step("a", 2.0),), {}) == b'[{"name":"a","seconds":2.0}]'
    assert function.signature.decode(b'[{"name":"a"}]') == ((Step("a"),), {})
    assert function.signature.decode_result(b"17") == 17
    with pytest.raises(PayloadError, match="parameter 'args'"):
        function.signature.decode(b'[{"name":1}]')
    with pytest.raises(PayloadError):
        function.signature.encode_result("text")


def test_the_answer_of_submit_has_its_type() -> None:
    elsewhere = define(Work).function.elsewhere
    assert elsewhere.encode_meta(Cluster("c-1")) == '{"id":"c-1"}'
    assert elsewhere.decode_meta(b'{"id":"c-1"}') == Cluster("c-1")
    with pytest.raises(PayloadError, match=f"at most {MAX_META} are recorded"):
        elsewhere.encode_meta(Cluster("x" * MAX_META))
    with pytest.raises(PayloadError):
        elsewhere.decode_meta(b"5")


class Refusing(Work):
    async def submit(self, args: Step, key: str) -> Cluster | Failed:  # type: ignore[override]
        return Failed(f"{args.name} {key}")


def test_submit_may_return_a_failure() -> None:
    elsewhere = define(Refusing).function.elsewhere
    assert elsewhere.decode_meta(b'{"id":"c-1"}') == Cluster("c-1")


def test_an_object_needs_a_name() -> None:
    work = Work()
    assert define(work, "step").function.elsewhere.work is work
    with pytest.raises(UsageError, match=r"app.external\(name=…\)"):
        define(work)


class WithoutStatus:
    async def submit(self, args: str, key: str) -> None: ...

    async def cancel(self, meta: None) -> None: ...


class WithPlainStatus(Work):
    def status(self, meta: Cluster) -> Running:  # type: ignore[override]
        return Running()


class WithPlainLogs(Work):
    def logs(self, meta: Cluster) -> str:
        return ""


class WithTwo(Work):
    async def submit(self, args: Step, more: int, key: str) -> Cluster:  # type: ignore[override]
        return Cluster("")


class WithoutKey(Work):
    async def submit(self, args: Step) -> Cluster:  # type: ignore[override]
        return Cluster("")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WithoutStatus, "no method status"),
        (WithPlainStatus, "write `async def status`"),
        (WithPlainLogs, "write `async def logs`"),
        (WithTwo, "one argument and the key"),
        (WithoutKey, "one argument and the key"),
    ],
)
def test_other_classes_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        define(kind)


@pytest.mark.parametrize("options", [{"every": "10ms"}, {"every": "2d"}, {"on_timeout": "stop"}, {"timeout": -1}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        define(Work, **options)


def test_it_is_no_step_and_no_call() -> None:
    step = define(Work)
    with pytest.raises(WorkflowUsageError, match="it is no step"):
        step.step(Step("a"))
    with pytest.raises(UsageError, match=r"write Work.submit\(…\)"):
        step(Step("a"))


def test_zookeeper_has_none() -> None:
    app = App("nowhere:1", store=ZooKeeper("zookeeper://nowhere:2181"))
    with pytest.raises(UsageError, match="no work that runs elsewhere"):
        app.external(every="1s")(Work)


def test_values_of_status_are_checked() -> None:
    for progress in (-0.1, 1.1, True, "half"):
        with pytest.raises(UsageError):
            Running(progress)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Running(text="x" * 300)
    with pytest.raises(UsageError):
        Failed(None)  # type: ignore[arg-type]
    for pause in (0, "2h"):
        with pytest.raises(UsageError):
            Throttled(pause)

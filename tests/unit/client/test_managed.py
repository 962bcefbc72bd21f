"""Classes of managed resources: what is accepted, what is refused, and the functions that workers run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring import App, Resource, Retry, Status, UsageError, current_job
from mainspring.client.managed import Kind
from mainspring.client.resources import HeldSlots
from mainspring.errors import PayloadError
from mainspring.resources.managed import MAX_FIELDS_BYTES
from mainspring.testing import in_memory


class Cluster(msgspec.Struct):
    """The meta."""

    id: str


class Spark(Resource):
    """A cluster."""

    size: int
    zone: str = "a"

    async def create(self, key: str) -> Cluster:
        return Cluster(f"{key} of {self.size}")

    async def release(self, meta: Cluster) -> None:
        assert meta.id


class NoRelease(Resource):
    async def create(self, key: str) -> None: ...


class Blocking(Resource):
    def create(self, key: str) -> None: ...
    async def release(self, meta: None) -> None: ...


class NoMeta(Resource):
    async def create(self, key: str) -> None: ...
    async def release(self) -> None: ...


def test_a_resource_has_its_fields_as_labels() -> None:
    spark = App().resource(
        "spark", Spark(size=4), max=3, labels={"emr"}, idle=None, retry=Retry(2, initial=1, maximum=9)
    )
    assert spark.spec.managed is not None
    assert spark.spec.managed.fields == {"size": 4, "zone": "a"}
    assert (spark.spec.managed.idle, spark.spec.managed.retry.maximum) == (None, 9)
    assert spark.spec.managed.check is None, "the class has none"
    assert spark.where(size=4, zone="a").labels == ("size=4", "zone=a")
    with pytest.raises(UsageError, match="no field 'size' can be looked for"):
        spark.where(size=[4])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (NoRelease(), {}, "async def release"),
        (Blocking(), {}, "async def create"),
        (NoMeta(), {}, "takes one argument, the meta"),
        ("spark", {}, "mainspring.Resource"),
        (Spark(size=4), {"max": 1, "min": 2}, "0 <= min <= max"),
        (Spark(size=4), {"max": 1000}, "max"),
        (Spark(size=4), {"slots": 0}, "slots"),
        (Spark(size=4), {"idle": 0.1}, "idle"),
        (Spark(size=4), {"total": 3}, "a total, or items, or a class"),
        (Spark(size=4, zone="x" * MAX_FIELDS_BYTES), {}, "bytes of JSON"),
    ],
)
def test_definitions_are_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        App().resource("spark", given, **options)


def test_the_names_of_the_steps_are_those_of_tasks() -> None:
    app = App()
    app.resource("spark", Spark(size=4))
    assert app.registry.names() == ["spark.create", "spark.release"]
    with pytest.raises(UsageError, match="already"):
        app.resource("spark", total=1)


def test_fields_and_metas_are_read_by_their_types() -> None:
    kind = Kind(Spark(size=4))
    assert kind.instance({"size": 8, "zone": "b"}) == Spark(8, "b")
    with pytest.raises(PayloadError, match="cannot have the fields"):
        kind.instance({"size": "large"})
    assert kind.meta({"id": "j"}) == Cluster("j")
    with pytest.raises(PayloadError, match="cannot be read"):
        kind.meta({"id": 7})


def test_slots_without_a_meta_say_so() -> None:
    with pytest.raises(UsageError, match="no meta"):
        HeldSlots({"": 1}, 1, "licence").meta.id  # noqa: B018


def test_a_status_has_a_text() -> None:
    assert Status.healthy() == Status("healthy", "")
    assert Status.broken("no disk") == Status("broken", "no disk")
    assert Status.gone() == Status("gone", "")


def test_a_failed_creation_is_found_and_not_repeated() -> None:
    app = App()
    keys: list[str] = []

    class Found(Resource):
        async def create(self, key: str) -> Cluster:
            keys.append(key)
            raise OSError("the answer was lost")

        async def find(self, key: str) -> Cluster | None:
            return Cluster(key) if key in keys else None

        async def release(self, meta: Cluster) -> None: ...

    found = app.resource("found", Found(), retry=Retry(3, initial=1, jitter=0))

    @app.task(uses={found: 1})
    def use() -> str:
        meta: Cluster = current_job().resource(found).meta
        return meta.id

    with in_memory(app) as fleet:
        job = use.submit()
        fleet.advance("5s")
        assert job.result(timeout=30) == keys[0]
    assert len(keys) == 1

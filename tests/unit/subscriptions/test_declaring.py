"""The changes that an App's code makes to stored listeners."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.api.listeners import DeclaredListener
from mainspring.event_log.interests import Interest
from mainspring.event_log.types import types_of
from mainspring.subscriptions import declaring
from mainspring.subscriptions.declaring import Kind
from mainspring.subscriptions.model import Subscription, Target


def listener(name: str = "tell", app: str = "", *, types: str = "job.failed", **values: Any) -> Subscription:
    return Subscription(
        target=Target.LISTENER,
        namespace="default",
        name=name,
        interest=Interest(types_of([types]), "default"),
        function=name,
        app=app,
        **values,
    )


def changes(declared: list[Subscription], *stored: Subscription, **more: Any) -> list[tuple[Kind, str]]:
    found = declaring.compare("shop", declared, {one.name: one for one in stored}, **more)
    return [(one.kind, one.name) for one in found]


def test_new_ones_are_added_and_equal_ones_stay() -> None:
    assert changes([listener(), listener("other")], listener(app="shop")) == [(Kind.ADDED, "other")]


def test_a_change_keeps_the_pause() -> None:
    before = listener(app="shop", paused="not now", missed=3, created_us=5)
    (change,) = declaring.compare("shop", [listener(types="job.*")], {"tell": before})
    assert change.kind is Kind.CHANGED
    assert change.after == listener(app="shop", types="job.*", paused="not now", missed=3, created_us=5)


def test_a_pause_alone_is_no_change() -> None:
    assert changes([listener()], listener(app="shop", paused="not now")) == []


def test_only_those_of_the_app_are_removed() -> None:
    assert changes([], listener(app="shop"), listener("other", "else")) == [(Kind.REMOVED, "tell")]


def test_those_of_functions_that_the_worker_leaves_out_stay() -> None:
    assert changes([listener()], listener("old", "shop"), left_out=["tell", "old"]) == []


@pytest.mark.parametrize(("live", "kind"), [([], Kind.ADOPTED), (["else"], Kind.LEFT)])
def test_one_of_another_app_is_taken_over_once_that_runs_no_more(live: list[str], kind: Kind) -> None:
    assert changes([listener()], listener(app="else"), live_apps=live) == [(kind, "tell")]


def test_a_default_name_that_other_code_has_gets_a_number() -> None:
    stored = [listener(app="app")]
    assert declaring.name_of("app", ["tell"], stored) == "app"
    assert declaring.name_of("app", ["else"], stored) == "app (2)"
    stored.append(listener("else", "app (2)"))
    assert declaring.name_of("app", ["else", "more"], stored) == "app (2)"
    assert declaring.name_of("app", ["third"], stored) == "app (3)"
    assert declaring.name_of("new", ["third"], stored) == "new"


def test_the_digest_does_not_depend_on_the_order() -> None:
    one, two = (DeclaredListener(name=name, types=["job.*"]) for name in ("a", "b"))
    assert declaring.digest([one, two]) == declaring.digest([two, one])
    assert declaring.digest([one]) != declaring.digest([two]) != declaring.digest([])

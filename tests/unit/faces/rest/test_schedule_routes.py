"""Routes about schedules: created, changed by version, previewed."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from tests.unit.api.a_node import run

from mainspring.access.service import AccessService

from .a_client import serving
from .a_server import whole_node
from .test_operation_routes import ended, unchanged

if TYPE_CHECKING:
    import pytest

SCHEDULES = "/api/v1/namespaces/default/schedules"


def test_a_schedule_is_created_changed_by_version_and_removed() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = {"name": "a/b", "function": "f", "at": "2030-01-01T00:00:00Z", "args": {"full": True}}
            body["tags"] = ["nightly"]
            created = await client.send("POST", SCHEDULES, body, token="developer")
            assert (created.status, created.headers["location"]) == (201, f"{SCHEDULES}/a%2Fb")
            assert (await client.send("POST", SCHEDULES, body)).problem == "conflict"
            path = created.headers["location"]
            shown = await client.get(path)
            assert shown.json["tags"] == ["nightly"]
            assert shown.json["at"] == "2030-01-01T00:00:00.000000Z"
            assert base64.b64decode(shown.json["payload"]) == b'{"full":true}'
            assert (await client.send("PATCH", path, {"jitter": 1.5})).status == 428
            tag = [("If-Match", shown.headers["etag"])]
            assert (await client.send("PATCH", path, {"jitter": 1.5}, headers=tag)).status == 200
            assert (await client.send("PATCH", path, {"jitter": 2.5}, headers=tag)).status == 412
            tag = [("If-Match", (await client.get(path)).headers["etag"])]
            put = await client.send("PUT", path, {"every": 60, "function": "g"}, headers=tag)
            assert (put.json["when"], put.json["function"]) == ("every 1m", "g")
            assert (await client.get(path)).json["jitter"] == 0.0
            assert (await client.send("DELETE", path, headers=tag)).status == 412
            given = await client.send("POST", f"{path}/adopt", {"app": "shop"}, token="developer")
            assert (given.json["app"], given.json["origin"]) == ("shop", "code")
            await client.send("POST", SCHEDULES, {"name": "after", "parents": ["a/b"]})
            assert (await client.send("DELETE", path, headers=[("If-Match", "*")])).status == 422
            gone = await client.send("DELETE", f"{path}?children=true", headers=[("If-Match", "*")])
            assert (gone.status, (await client.get(SCHEDULES)).json["items"]) == (200, [])
            assert (await client.get(path)).problem == "schedule-not-found"

    run(test())


def test_a_schedule_is_paused_resumed_and_triggered() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            await client.send("POST", SCHEDULES, {"name": "a", "every": 60})
            tag = (await client.get(f"{SCHEDULES}/a")).headers["etag"]
            fired = await client.send("POST", f"{SCHEDULES}/a/trigger", token="operator")
            assert fired.json["state"] == "fired"
            edited = await client.send("PATCH", f"{SCHEDULES}/a", {"jitter": 1}, headers=[("If-Match", tag)])
            assert edited.status == 200, "a fire time is no other version"
            assert (await client.send("POST", f"{SCHEDULES}/a/pause")).json["state"] == "paused"
            assert (await client.get(f"{SCHEDULES}/a/next?count=1")).json["times"] == []
            assert (await client.send("POST", f"{SCHEDULES}/a/resume")).json["state"] == "active"
            listed = await client.get(SCHEDULES, token="viewer")
            assert [one["name"] for one in listed.json["items"]] == ["a"]

    run(test())


def test_a_preview_saves_nothing() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = {"name": "a", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "count": 1}
            shown = await client.send("POST", f"{SCHEDULES}/preview", body, token="viewer")
            assert shown.json["times"] == [
                {"at": "2023-11-15T01:30:00.000000Z", "local": "2023-11-15T02:30:00+01:00", "note": None}
            ]
            assert (await client.get(SCHEDULES)).json["items"] == []
            both = await client.send("POST", f"{SCHEDULES}/preview", body | {"args": 1, "payload": "AA=="})
            assert both.problem == "invalid"

    run(test())


def test_fire_times_are_listed_and_counted() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for name in ("a", "b"):
                await client.send("POST", SCHEDULES, {"name": name, "every": 3600})
                await client.send("POST", f"{SCHEDULES}/{name}/trigger")
            fires = SCHEDULES.replace("schedules", "fires")
            first = await client.get(f"{fires}?limit=1&since=2023-11-14T00:00:00Z")
            second = await client.get(f"{fires}?limit=1&since=2023-11-14T00:00:00Z&cursor={first.json['next']}")
            assert [one["schedule"] for one in first.json["items"] + second.json["items"]] == ["a", "b"]
            own = await client.get(f"{fires}?schedule=b&state=fired")
            assert [one["schedule"] for one in own.json["items"]] == ["b"]
            assert (await client.get(f"{fires}?schedule=c")).problem == "schedule-not-found"
            assert (await client.get(f"{fires}/outcomes?schedules=a&schedules=b")).json["items"] == []
            await client.send(
                "POST", f"{SCHEDULES.replace('schedules', 'jobs')}/{own.json['items'][0]['handle']}/cancel"
            )
            ended = (await client.get(f"{fires}/outcomes?schedules=a&schedules=b")).json["items"]
            assert [(one["schedule"], one["outcome"]) for one in ended] == [("b", "cancelled")]
            assert (await client.get(f"{fires}/outcomes")).status == 422
            day = await client.get(f"{fires}/timeline?since=2023-11-14T12:00:00Z&step=3600")
            assert [(one["schedule"], one["buckets"][0]["fired"]) for one in day.json["items"]] == [
                ("a", 1),
                ("b", 1),
            ]
            some = await client.get(f"{fires}/timeline?schedules=b&schedules=none")
            assert [one["schedule"] for one in some.json["items"]] == ["b"]

    run(test())


def test_past_times_are_run_by_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessService, "current", unchanged)

    async def test() -> None:
        async with whole_node() as (client, _):
            await client.send("POST", SCHEDULES, {"name": "a", "every": 86400})
            past = {"from": "2024-01-01T00:00:00Z", "to": "2024-01-03T00:00:00Z"}
            path = f"{SCHEDULES}/a/backfill"
            dry = await client.send("POST", path, past | {"dry_run": True}, token="operator")
            assert (dry.status, dry.json["id"], len(dry.json["times"])) == (200, None, 3)
            assert (await client.send("POST", path, past | {"max": 2}, token="operator")).problem == "conflict"
            assert (await client.send("POST", path, {}, token="operator")).problem == "invalid"
            assert (await client.send("POST", path, past, token="viewer")).status == 403
            begun = await client.send("POST", path, past, token="operator")
            assert (begun.status, begun.json["matched"]) == (202, 3)
            shown = await ended(client, begun.headers["location"])
            assert (shown["outcomes"], shown["schedule"], shown["from"]) == (
                {"fired": 3},
                "a",
                "2024-01-01T00:00:00.000000Z",
            )

    run(test())

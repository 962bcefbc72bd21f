"""Routes about functions: limits by version, pauses, series."""

from __future__ import annotations

from tests.unit.api.a_node import run

from mainspring.api.handlers.namespaces import SeriesCalls

from .a_client import serving

FUNCTIONS = "/api/v1/namespaces/default/functions"


def test_limits_are_set_for_a_version_and_taken_back() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            await node.submit(b"a/b")
            path = f"{FUNCTIONS}/a%2Fb"
            shown = await client.get(path)
            assert (shown.json["function"], shown.json["waiting"], shown.json["concurrency"]) == ("a/b", 1, None)
            body = {"concurrency": 5, "rate": {"number": 9, "per": 60}}
            assert (await client.send("PUT", f"{path}/limits", body)).problem == "precondition-required"
            tag = shown.headers["etag"]
            put = await client.send("PUT", f"{path}/limits", body, headers=[("If-Match", tag)])
            assert (put.status, put.json["concurrency"], put.json["rate"]["burst"]) == (200, 5, 9)
            late = await client.send("PUT", f"{path}/limits", {}, headers=[("If-Match", tag)])
            assert (late.status, late.problem) == (412, "changed")
            fewer = await client.send("PUT", f"{path}/limits", {"concurrency": 6}, headers=[("If-Match", "*")])
            assert (fewer.json["concurrency"], fewer.json["rate"]) == (6, None)
            gone = await client.send("DELETE", f"{path}/limits", headers=[("If-Match", fewer.headers["etag"])])
            assert (gone.status, gone.json["source"]) == (200, None)

    run(test())


def test_a_version_is_that_of_the_limits_and_a_read_sees_new_counts() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            await node.submit()
            tag = (await client.get(f"{FUNCTIONS}/f")).headers["etag"]
            assert (await client.get(f"{FUNCTIONS}/f", headers=[("If-None-Match", tag)])).status == 304
            await node.submit()
            assert (await client.get(f"{FUNCTIONS}/f", headers=[("If-None-Match", tag)])).json["waiting"] == 2
            put = await client.send("PUT", f"{FUNCTIONS}/f/limits", {"concurrency": 1}, headers=[("If-Match", tag)])
            assert put.status == 200, "another job is no other version of the limits"

    run(test())


def test_functions_are_listed_in_pages() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            for name in (b"a", b"b", b"c"):
                await node.submit(name)
            first = await client.get(f"{FUNCTIONS}?limit=2")
            assert 'rel="next"' in first.headers["link"]
            second = await client.get(f"{FUNCTIONS}?limit=2&cursor={first.json['next']}")
            assert [one["function"] for one in first.json["items"] + second.json["items"]] == ["a", "b", "c"]
            assert (await client.get(f"{FUNCTIONS}/none")).problem == "function-not-found"

    run(test())


def test_a_pause_has_a_reason_and_a_time() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            await node.submit()
            body = {"reason": "the bank is down", "until": "2023-11-14T23:00:00Z"}
            paused = await client.send("POST", f"{FUNCTIONS}/f/pause", body, token="operator")
            assert (paused.json["paused"], paused.json["pause_reason"]) == (True, "the bank is down")
            assert paused.json["paused_until"] == "2023-11-14T23:00:00.000000Z"
            bad = await client.send("POST", f"{FUNCTIONS}/f/pause", {"until": "2023-11-14T23:00:00"})
            assert (bad.status, bad.json["errors"][0]["pointer"]) == (422, "/until")
            resumed = await client.send("POST", f"{FUNCTIONS}/f/resume", token="operator")
            assert resumed.json["paused"] is False
            assert (await client.send("POST", f"{FUNCTIONS}/f/resume", token="viewer")).status == 403

    run(test())


def test_series_and_errors_are_shown() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            node.api.add(SeriesCalls(node.reads, node.service.handles, node.clock).handlers)
            series = await client.get(f"{FUNCTIONS}/f/series?step=half_hour&since=2023-11-14T21:00:00Z")
            assert (series.json["step"], len(series.json["buckets"])) == (1800, 3)
            assert (await client.get(f"{FUNCTIONS}/f/errors")).json["errors"] == []
            assert (await client.get(f"{FUNCTIONS}/f/series?step=year")).status == 422

    run(test())

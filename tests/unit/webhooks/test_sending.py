"""Messages are sent to the checked address alone, and no receiver costs more than the limits."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import threading
import time
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook
from tests.unit.server.certificates import Pair, self_signed, signed

from mainspring.errors import UsageError
from mainspring.webhooks.answer import Answer, Cause, SendError
from mainspring.webhooks.bodies import Message, make_body
from mainspring.webhooks.sending import LIMITS, Exchange, Limits, Resolver, Sender, check_headers
from mainspring.webhooks.signing import make_secret, signed_headers
from mainspring.webhooks.targets import Policy, Target, parse_target

from .a_receiver import LOOPBACK, OK, Names, receiving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

HEADERS = {"content-type": "application/json", "webhook-id": "evt_1"}
BODY = b'{"type":"job.failed"}'
QUICK = Limits(total=0.3, connect=0.2)


@pytest.fixture(autouse=True, params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "run", request.param)


def send(
    answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]], limits: Limits = LIMITS, path: str = "/hook"
) -> Answer:
    """Send one message to a receiver, and check that the connection ends."""

    async def test() -> Answer:
        async with receiving(answer) as receiver:
            found = await Sender(LOOPBACK, limits).send(receiver.target(path), HEADERS, BODY)
            await asyncio.wait_for(receiver.closed.wait(), 20)
            return found

    return asyncio.run(test())


def failed(running: Coroutine[object, object, object]) -> SendError:
    with pytest.raises(SendError) as caught:
        asyncio.run(running)
    gc.collect()  # an open transport would warn
    return caught.value


def test_a_message_arrives_as_it_was_given() -> None:
    async def test() -> None:
        async with receiving(b"HTTP/1.1 202 Accepted\r\ncontent-length: 5\r\n\r\nhello") as receiver:
            sender = Sender(LOOPBACK, resolve=Names(["127.0.0.1"]))
            target = parse_target(f"http://hooks.example.com:{receiver.port}/a?b=c")
            answer = await sender.send(target, {**HEADERS, "X-Custom": "one"}, BODY)
            assert answer[0] == 202
            assert answer.is_success
            assert answer.excerpt == "hello"
            assert answer.seconds >= 0
            ((head, body),) = receiver.requests
            assert body == BODY
            assert head[0] == "POST /a?b=c HTTP/1.1"
            assert {line.lower() for line in head[1:]} == {
                f"host: hooks.example.com:{receiver.port}",
                f"content-length: {len(BODY)}",
                "connection: close",
                "user-agent: mainspring",
                "accept: */*",
                "accept-encoding: identity",
                "content-type: application/json",
                "webhook-id: evt_1",
                "x-custom: one",
            }

    asyncio.run(test())


def test_a_receiver_verifies_with_the_standards_library() -> None:
    async def test() -> None:
        async with receiving() as receiver:
            secret, message = (
                make_secret(),
                Message(number=7, type="job.failed", at_us=0, namespace="default", job="H:a:1"),
            )
            body = make_body(message)
            headers = signed_headers([secret], message.id, time.time_ns() // 1000, body.content)
            await Sender(LOOPBACK).send(receiver.target(), {"content-type": body.content_type, **headers}, body.content)
            ((head, content),) = receiver.requests
            received = dict(line.split(": ", 1) for line in head[1:])
            assert Webhook(secret.text).verify(content, received)["data"]["job"] == "H:a:1"
            assert received["webhook-id"] == "evt_7"

    asyncio.run(test())


@pytest.mark.parametrize("status", [200, 299, 301, 302, 307, 308, 400, 404, 410, 429, 500, 503])
def test_each_status_is_an_answer(status: int) -> None:
    answer = send(b"HTTP/1.1 %d X\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n" % status)
    assert answer.status == status
    assert answer.retry_after == "7"
    assert answer.is_success == (status < 300)


def test_a_redirect_is_not_followed() -> None:
    async def test() -> None:
        async with receiving() as inside:
            answer = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:%d/secret\r\ncontent-length: 0\r\n\r\n"
            async with receiving(answer % inside.port) as receiver:
                found = await Sender(LOOPBACK).send(receiver.target(), HEADERS, BODY)
                assert found.status == 302
                assert not found.is_success
            assert inside.requests == []

    asyncio.run(test())


def test_the_checked_address_is_the_one_that_is_connected_to() -> None:
    async def test() -> None:
        async with receiving() as receiver:
            # The name has a permitted address for the check, and another one for each later question.
            names = Names(["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"])
            sender = Sender(LOOPBACK, resolve=names)
            target = receiver.target(host="rebinding.example.com")
            assert (await sender.send(target, HEADERS, BODY)).status == 204
            assert names.asked == [("rebinding.example.com", receiver.port)]
            with pytest.raises(SendError) as caught:
                await sender.send(target, HEADERS, BODY)
            assert caught.value.cause is Cause.REFUSED
            assert len(receiver.requests) == 1

    asyncio.run(test())


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["::ffff:127.0.0.1"],
        ["::1"],
        ["fe80::1%lo"],
        ["0.0.0.0"],
        ["::"],
        ["169.254.169.254"],
        [],
    ],
)
def test_a_name_with_an_inner_address_gets_no_connection(addresses: Sequence[str]) -> None:
    async def test() -> None:
        async with receiving() as receiver:
            sender = Sender(resolve=Names(addresses))
            try:
                await sender.send(receiver.target(host="hooks.example.com"), HEADERS, BODY)
            finally:
                assert receiver.requests == []

    error = failed(test())
    assert error.cause is Cause.REFUSED
    assert not any(one in str(error) for one in addresses)


def test_an_address_in_the_url_is_checked_without_a_resolver() -> None:
    names = Names(["8.8.8.8"])
    error = failed(Sender(resolve=names).send(Target("http", "127.0.0.1", 8080, "/"), HEADERS, BODY))
    assert error.cause is Cause.REFUSED
    assert names.asked == []


def test_a_port_that_was_permitted_once_is_checked_at_each_attempt() -> None:
    names = Names(["8.8.8.8"])
    error = failed(Sender(resolve=names).send(Target("http", "hooks.example.com", 25, "/"), HEADERS, BODY))
    assert error.cause is Cause.REFUSED
    assert names.asked == []


def test_a_name_without_an_address_is_an_error() -> None:
    error = failed(
        Sender(resolve=Names(socket.gaierror(-2, "x"))).send(Target("http", "none.example.com", 80, "/"), {}, b"")
    )
    assert error.cause is Cause.HOST
    assert "none.example.com" in str(error)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert send(OK).status == 204


def test_the_next_address_is_tried_if_one_refuses() -> None:
    async def test() -> None:
        async with receiving() as receiver:
            sender = Sender(LOOPBACK, resolve=Names(["127.0.0.2", "127.0.0.1"]))
            assert (await sender.send(receiver.target(host="two.example.com"), HEADERS, BODY)).status == 204

    asyncio.run(test())


def test_a_refused_connection_is_an_error_without_an_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        sender = Sender(LOOPBACK, resolve=Names(["127.0.0.1"]))
        error = failed(sender.send(Target("http", "hooks.example.com", port, "/"), HEADERS, BODY))
    assert error.cause is Cause.CONNECTION
    assert "refused" in str(error)
    assert "127.0.0.1" not in str(error)


def drip(first: bytes, each: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Return an answer that never ends: a first part, and then a little at a time."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(each)
            await writer.drain()
            await asyncio.sleep(0.01)

    return answer


async def silence(_: asyncio.StreamWriter) -> None:
    """Answer nothing."""


def leave(part: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Return an answer that ends with the connection."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(part)
        writer.close()
        await writer.wait_closed()

    return answer


@pytest.mark.parametrize(
    "answer",
    [silence, drip(b"", b"H"), drip(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), drip(b"", b"HTTP/1.1 100 C\r\n\r\n")],
)
def test_a_receiver_that_never_answers_costs_the_time_limit(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
) -> None:
    async def test() -> None:
        async with receiving(answer) as receiver:
            try:
                await Sender(LOOPBACK, QUICK).send(receiver.target(), HEADERS, BODY)
            finally:
                await asyncio.wait_for(receiver.closed.wait(), 20)

    error = failed(test())
    assert error.cause in {Cause.TIMEOUT, Cause.PROTOCOL}
    assert error.seconds > 0


def test_an_attempt_has_a_time_limit() -> None:
    async def test() -> None:
        async with receiving(silence) as receiver, asyncio.timeout(20):
            await Sender(LOOPBACK, QUICK).send(receiver.target(), HEADERS, BODY)

    assert failed(test()).cause is Cause.TIMEOUT


def test_a_connection_that_nobody_accepts_costs_its_own_limit() -> None:
    async def test() -> None:
        listener = socket.socket()
        fillers: list[socket.socket] = []
        with listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(4):  # the queue of connections is full, so the next one waits
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
                fillers.append(filler)
            try:
                target = Target("http", "127.0.0.1", listener.getsockname()[1], "/")
                await Sender(LOOPBACK, Limits(total=300, connect=0.1)).send(target, HEADERS, BODY)
            finally:
                for filler in fillers:
                    filler.close()

    error = failed(test())
    assert error.cause is Cause.TIMEOUT
    assert "no connection" in str(error)


def test_a_status_counts_although_its_body_trickles() -> None:
    answer = send(drip(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"x"), Limits(total=1.5))
    assert answer.status == 200
    assert set(answer.excerpt) == {"x"}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 500 Error\r\n\r\n",
        b"HTTP/1.1 500 Error\r\ncontent-length: 999999999999\r\n\r\n",
        b"HTTP/1.1 500 Error\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
    ],
)
def test_a_huge_answer_is_not_read_to_its_end(head: bytes) -> None:
    sent = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(head)
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    found = send(answer)
    assert found.status == 500
    assert found.excerpt == "x" * 1024
    assert sent < 2**26, "the connection was closed behind the limit, not behind the answer"


def test_the_bytes_that_are_read_have_a_limit() -> None:
    exchange = Exchange(Target("http", "h.example.com", 80, "/"), HEADERS, BODY, LIMITS)
    assert not exchange.receive(b"HTTP/1.1 200 OK\r\n\r\n")
    assert not exchange.receive(b"x" * (exchange.left - 1))
    assert exchange.receive(b"x")
    assert exchange.left == 0


PARTS = [
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 C\r\n\r\n", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"),
    *(b"\r\n", b"hello", b"5\r\n", b"0\r\n\r\n"),
]


@given(st.lists(st.one_of(st.binary(max_size=50), st.sampled_from(PARTS))))
def test_any_bytes_are_an_answer_or_an_error(parts: list[bytes]) -> None:
    exchange = Exchange(Target("http", "h.example.com", 80, "/"), HEADERS, BODY, LIMITS)
    try:
        is_complete = any(exchange.receive(part) for part in parts if part) or exchange.receive(b"")
    except SendError:
        assert not exchange.status
    else:
        assert is_complete
        assert exchange.status >= 200
    assert len(exchange.excerpt) <= LIMITS.excerpt


def test_headers_without_an_end_are_an_error() -> None:
    exchange = Exchange(Target("http", "h.example.com", 80, "/"), HEADERS, BODY, LIMITS)
    head = b"HTTP/1.1 200 OK\r\nx: " + b"y" * (LIMITS.answer - 30)
    assert not exchange.receive(head)
    with pytest.raises(SendError) as caught:
        exchange.receive(b"y" * exchange.left)
    assert caught.value.cause is Cause.PROTOCOL


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nx"])
def test_a_connection_that_ends_before_the_answer_is_an_error(part: bytes) -> None:
    async def test() -> None:
        async with receiving(leave(part)) as receiver:
            await Sender(LOOPBACK).send(receiver.target(), HEADERS, BODY)

    assert failed(test()).cause is Cause.CONNECTION


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 100\r\n\r\nbegin",
        b"transfer-encoding: chunked\r\n\r\n5\r\nbegin\r\nzz\r\n",
        b"\r\nbegin",
    ],
)
def test_a_status_counts_although_its_body_is_broken(rest: bytes) -> None:
    answer = send(leave(b"HTTP/1.1 200 OK\r\n" + rest))
    assert answer.status == 200
    assert answer.excerpt == "begin"


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"-ERR unknown command 'POST'\r\n" * 3 + b"\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_other_protocols_are_no_answer(text: bytes) -> None:
    async def test() -> None:
        async with receiving(text) as receiver:
            await Sender(LOOPBACK).send(receiver.target(), HEADERS, BODY)

    error = failed(test())
    assert error.cause is Cause.PROTOCOL
    assert "SSH" not in str(error)


def test_informational_answers_come_before_the_answer() -> None:
    assert send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3 + OK).status == 204


def test_an_excerpt_is_text_that_changes_no_terminal() -> None:
    body = "a\r\nb\tc \x1b[31mred\x07 \u202eleft \u009b".encode() + b"\xff \xc3\xa9"
    answer = send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert answer.excerpt == "a\nb\tc �[31mred� �left �� é"


def test_an_excerpt_ends_with_a_whole_character() -> None:
    body = b"x" + "é".encode() * 1000
    answer = send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert answer.excerpt == "x" + "é" * 511


@pytest.mark.parametrize("retry_after", [b"9" * 41, b""])
def test_a_long_retry_after_is_left_out(retry_after: bytes) -> None:
    answer = send(b"HTTP/1.1 503 X\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % retry_after)
    assert answer.retry_after == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "other.example.com"},
        {"content-length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"connection": "keep-alive"},
        {"x y": "z"},
        {"": "z"},
        {"x:": "z"},
        {"x": "a\r\nb: c"},
        {"x": "a\nb"},
        {"x": "\x00"},
        {"x": " a"},
        {"x": "é"},
        {"x": "a" * 1025},
        {"x": "a", "X": "b"},
        {f"x-{number}": "a" for number in range(21)},
    ],
)
def test_headers_that_could_change_the_message_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        check_headers(headers)
    assert not any(len(value) > 3 and value in str(caught.value) for value in headers.values())
    with pytest.raises(UsageError):
        asyncio.run(Sender(LOOPBACK).send(Target("http", "127.0.0.1", 9, "/"), headers, b""))


# ---- TLS ----

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return self_signed(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def server_context(authority: Pair) -> ssl.SSLContext:
    pair = signed(authority.key.parent, "receiver", authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def client_context(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@needs_openssl
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls_has_the_name_of_the_host(authority: Pair, server_context: ssl.SSLContext, host: str) -> None:
    names: list[str | None] = []

    def note(_: ssl.SSLObject | ssl.SSLSocket, name: str | None, __: ssl.SSLContext) -> None:
        names.append(name)

    async def test() -> None:
        server_context.sni_callback = note
        async with receiving(OK, server_context) as receiver:
            sender = Sender(LOOPBACK, resolve=Names(["127.0.0.1"]), context=client_context(authority.certificate))
            answer = await sender.send(receiver.target(host=host, scheme="https"), HEADERS, BODY)
            assert answer.status == 204
            assert f"host: {host}:{receiver.port}" in [line.lower() for line in receiver.requests[0][0]]

    asyncio.run(test())
    assert names == ["localhost" if host == "localhost" else None]


@needs_openssl
@pytest.mark.parametrize("is_trusted", [True, False])
def test_the_certificate_of_another_host_or_authority_is_refused(
    authority: Pair, server_context: ssl.SSLContext, is_trusted: bool
) -> None:
    async def test() -> None:
        async with receiving(OK, server_context) as receiver:
            context = client_context(authority.certificate) if is_trusted else None
            sender = Sender(LOOPBACK, resolve=Names(["127.0.0.1"]), context=context)
            host = "other.example.com" if is_trusted else "localhost"
            try:
                await sender.send(receiver.target(host=host, scheme="https"), HEADERS, BODY)
            finally:
                assert receiver.requests == []

    error = failed(test())
    assert error.cause is Cause.TLS
    assert "certificate" in str(error)


def test_a_receiver_without_tls_is_an_error() -> None:
    async def test() -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await Sender(LOOPBACK).send(Target("https", "127.0.0.1", port, "/"), HEADERS, BODY)

    assert failed(test()).cause is Cause.TLS


def test_a_handshake_that_stops_costs_the_limit_of_the_connection() -> None:
    async def test() -> None:
        over = asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(4096):
                pass
            over.set()
            writer.close()

        server = await asyncio.start_server(wait, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                await Sender(LOOPBACK, QUICK).send(Target("https", "127.0.0.1", port, "/"), HEADERS, BODY)
            finally:
                await asyncio.wait_for(over.wait(), 20)

    assert failed(test()).cause is Cause.TIMEOUT


# ---- names ----


def test_a_name_server_that_does_not_answer_delays_no_other_name() -> None:
    free = threading.Event()
    asked: list[str] = []

    def look_up(host: str, _: int) -> Sequence[str]:
        asked.append(host)
        if host == "dead.example.com":
            free.wait(60)
        return ["127.0.0.1"]

    async def test() -> None:
        async with receiving() as receiver:
            resolver = Resolver(look_up)
            slow = Sender(LOOPBACK, QUICK, resolver)
            dead = [
                asyncio.create_task(slow.send(receiver.target(host="dead.example.com"), HEADERS, BODY))
                for _ in range(50)
            ]
            await asyncio.sleep(0)
            answer = await Sender(LOOPBACK, resolve=resolver).send(
                receiver.target(host="living.example.com"), HEADERS, BODY
            )
            assert answer.status == 204
            outcomes = await asyncio.gather(*dead, return_exceptions=True)
            assert {one.cause for one in outcomes if isinstance(one, SendError)} == {Cause.TIMEOUT}
            assert asked.count("dead.example.com") == 1, "a name is looked up once at a time"

    try:
        asyncio.run(test())
    finally:
        free.set()


def test_look_ups_have_a_limit() -> None:
    places = threading.Semaphore(3)
    free = threading.Event()
    surplus: list[str] = []

    def look_up(host: str, _: int) -> Sequence[str]:
        if not places.acquire(blocking=False):
            surplus.append(host)
        free.wait(60)
        places.release()
        return ["8.8.8.8"]

    async def test() -> None:
        resolver = Resolver(look_up, most=3)
        tasks = [asyncio.create_task(resolver(f"{number}.example.com", 80)) for number in range(20)]
        for _ in range(5):
            await asyncio.sleep(0)
        free.set()
        assert await asyncio.gather(*tasks) == [["8.8.8.8"]] * 20

    asyncio.run(test())
    assert surplus == []


def test_the_systems_names_are_looked_up() -> None:
    async def test() -> None:
        async with receiving() as receiver:
            allowed = Policy(allowed=(*LOOPBACK.allowed, ip_network("127.0.0.1/32")))
            answer = await Sender(allowed).send(receiver.target(host="localhost"), HEADERS, BODY)
            assert answer.status == 204

    asyncio.run(test())


def test_an_error_of_a_look_up_is_that_of_all_its_callers() -> None:
    def look_up(_: str, __: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    async def test() -> None:
        resolver = Resolver(look_up)
        outcomes = await asyncio.gather(*(resolver("x.example.com", 80) for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in outcomes] == [socket.gaierror] * 2
        with pytest.raises(socket.gaierror):
            await resolver("x.example.com", 80)

    asyncio.run(test())

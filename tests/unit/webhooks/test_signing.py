"""Signatures are those of Standard Webhooks: the standard's own library verifies them."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from mainspring.errors import UsageError
from mainspring.webhooks.signing import (
    LONGEST,
    MOST_SECRETS,
    SHORTEST,
    Secret,
    SecretSet,
    make_secret,
    parse_secret,
    signature,
    signed_headers,
)

KEYS = st.binary(min_size=SHORTEST, max_size=LONGEST)
IDS = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
FIRST, SECOND = Secret(bytes(range(32))), Secret(bytes(range(32, 64)))
DAY_US = 86_400_000_000


def now_us() -> int:
    return time.time_ns() // 1000  # the library compares with the machine's clock


def is_accepted(secret: Secret, headers: dict[str, str], body: bytes) -> bool:
    try:
        Webhook(secret.text).verify(body, headers, json_parse=False)
    except WebhookVerificationError:
        return False
    return True


@given(KEYS, IDS, st.text())
def test_the_standards_own_library_accepts_each_message(key: bytes, message_id: str, text: str) -> None:
    headers = signed_headers([Secret(key)], message_id, now_us(), text.encode())
    assert is_accepted(Secret(key), headers, text.encode())
    assert not is_accepted(Secret(key), headers, text.encode() + b" ")


@given(KEYS, KEYS, IDS)
def test_another_secret_or_another_id_is_not_accepted(key: bytes, other: bytes, message_id: str) -> None:
    headers = signed_headers([Secret(key)], message_id, now_us(), b"{}")
    assert is_accepted(Secret(other), headers, b"{}") == (key == other)
    assert not is_accepted(Secret(key), {**headers, "webhook-id": f"{message_id}x"}, b"{}")


def test_the_time_of_the_attempt_is_signed() -> None:
    headers = signed_headers([FIRST], "evt_1", now_us(), b"{}")
    later = str(int(headers["webhook-timestamp"]) + 1)
    assert not is_accepted(FIRST, {**headers, "webhook-timestamp": later}, b"{}")


def test_the_example_of_the_standard_has_its_signature() -> None:
    secret = parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    assert (
        signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_each_secret_signs_while_they_overlap() -> None:
    both = SecretSet(FIRST).rotate(SECOND, 0, DAY_US)
    headers = signed_headers(both.at(DAY_US - 1), "evt_1", now_us(), b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    assert is_accepted(FIRST, headers, b"{}")
    assert is_accepted(SECOND, headers, b"{}")
    assert both.at(DAY_US) == (SECOND,)


def test_a_rotation_without_an_overlap_ends_all_earlier_secrets() -> None:
    both = SecretSet(FIRST).rotate(SECOND, 0, DAY_US)
    assert both.rotate(make_secret(), 10, 0).old == ()


def test_a_rotation_never_prolongs_an_old_secret() -> None:
    third = make_secret()
    all_three = SecretSet(FIRST).rotate(SECOND, 0, 100).rotate(third, 50, DAY_US)
    assert all_three.at(99) == (third, SECOND, FIRST)
    assert all_three.at(100) == (third, SECOND)


def test_the_number_of_secrets_is_limited() -> None:
    some = SecretSet(make_secret())
    for _ in range(MOST_SECRETS - 1):
        some = some.rotate(make_secret(), 0, DAY_US)
    with pytest.raises(UsageError, match="wait until an old one ends"):
        some.rotate(make_secret(), 0, DAY_US)
    assert len(some.rotate(make_secret(), DAY_US, DAY_US).at(DAY_US)) == 2


@given(KEYS)
def test_a_secret_is_read_as_it_was_shown(key: bytes) -> None:
    assert parse_secret(Secret(key).text) == Secret(key)


def test_new_secrets_differ() -> None:
    assert make_secret() != make_secret()
    assert len(make_secret().key) == 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        base64.b64encode(bytes(32)).decode(),
        "whsec_" + base64.b64encode(bytes(SHORTEST - 1)).decode(),
        "whsec_" + base64.b64encode(bytes(LONGEST + 1)).decode(),
        "whsec_" + "A" * 31 + "!",
        "whsec_" + "A" * 33,
        "whsec_" + "ä" * 32,
        "WHSEC_" + base64.b64encode(bytes(32)).decode(),
    ],
)
def test_other_texts_are_no_secrets_and_are_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_secret(text)
    assert len(text) < 10 or text not in str(caught.value)


def test_a_secret_shows_itself_only_when_asked() -> None:
    assert "***" in repr(FIRST)
    for shown in (repr(FIRST), str(FIRST), f"{SecretSet(FIRST)}"):
        assert FIRST.text not in shown
        assert repr(FIRST.key) not in shown


@pytest.mark.parametrize("message_id", ["", "evt.1", "evt 1", "evt\r\nhost: other", "é", "x" * 129])
def test_ids_that_could_be_misread_are_refused(message_id: str) -> None:
    with pytest.raises(UsageError):
        signed_headers([FIRST], message_id, 0, b"")


def test_nothing_is_sent_without_a_signature() -> None:
    with pytest.raises(UsageError):
        signed_headers([], "evt_1", 0, b"")

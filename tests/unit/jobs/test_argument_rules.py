from __future__ import annotations

import json

import pytest

from mainspring.jobs import user_data
from mainspring.jobs.user_data import KEPT_ARGUMENTS, ArgumentRule, ArgumentRules

DEEP = b"[" * 30_000 + b"]" * 30_000
"""JSON with more levels than can be read."""


def test_small_payloads_are_kept_whole() -> None:
    rules = ArgumentRules().of(b"f")
    assert rules.kept(b"x" * KEPT_ARGUMENTS) is None
    assert rules.kept(b"x" * (KEPT_ARGUMENTS + 1)) == b""
    assert rules.kept(b"") is None
    assert rules.redact(b"x" * 5000) == (b"x" * 5000, False)


def test_the_last_size_that_matches_a_function_counts() -> None:
    rules = ArgumentRules([ArgumentRule("*", 10), ArgumentRule("pay*", 100), ArgumentRule("pay_in", 0)])
    assert [rules.of(name).limit for name in (b"mail", b"pay", b"pay_out", b"pay_in", b"xpay", b"\xff")] == [
        10, 100, 100, 0, 10, 10,
    ]  # fmt: skip
    assert rules.of(b"pay_in").kept(b"x") == b""
    assert rules.of(b"pay_in").kept(b"") is None


def test_values_of_matching_keys_are_replaced_at_any_depth() -> None:
    rules = ArgumentRules(
        [], [ArgumentRule("*", "*password*"), ArgumentRule("pay", "card"), ArgumentRule("mail", "to")]
    ).of(b"pay")
    payload = {"user": "a", "Password2": {"x": 1}, "inner": [{"card": 5, "cards": 6, "to": "b"}], "card": None}
    redacted, changed = rules.redact(json.dumps(payload).encode())
    assert changed
    assert redacted is not None
    assert json.loads(redacted) == {
        "user": "a",
        "Password2": "[redacted]",
        "inner": [{"card": "[redacted]", "cards": 6, "to": "b"}],
        "card": "[redacted]",
    }
    assert rules.kept(json.dumps(payload).encode()) == redacted


def test_positions_of_arguments_are_keys_too() -> None:
    rules = ArgumentRules([], [ArgumentRule("f", "1")]).of(b"f")
    assert rules.redact(b'["a","b",["c","d"],{"1":2}]') == (b'["a","[redacted]",["c","d"],{"1":"[redacted]"}]', True)


def test_the_only_argument_has_the_position_0() -> None:
    assert ArgumentRules([], [ArgumentRule("f", "0")]).of(b"f").redact(b"1234") == (b'"[redacted]"', True)
    assert ArgumentRules([], [ArgumentRule("f", "1")]).of(b"f").redact(b"1234") == (b"1234", False)


def test_a_payload_without_such_keys_stays_as_it_is() -> None:
    rules = ArgumentRules([], [ArgumentRule("*", "secret")]).of(b"f")
    payload = b'{ "a":1.0, "b":[ ] }'
    assert rules.redact(payload) == (payload, False)
    assert rules.kept(payload) is None


@pytest.mark.parametrize("payload", [b"password=x", b"\xff", b'{"secret": 1', b"[1,2]x", DEEP])
def test_a_payload_in_which_keys_cannot_be_found_is_withheld(payload: bytes) -> None:
    rules = ArgumentRules([ArgumentRule("*", len(DEEP))], [ArgumentRule("*", "secret")]).of(b"f")
    assert rules.redact(payload) == (None, True)
    assert rules.kept(payload) == b""


def test_the_rules_of_other_functions_do_not_apply() -> None:
    assert ArgumentRules([], [ArgumentRule("g*", "secret")]).of(b"f").redact(b'{"secret":1}') == (
        b'{"secret":1}',
        False,
    )


def test_the_cache_of_functions_is_bounded() -> None:
    rules = ArgumentRules()
    for number in range(10_001):
        rules.of(b"%d" % number)
    assert len(rules) == 1


def test_the_size_that_every_function_keeps_whole_is_the_least_of_all_rules() -> None:
    assert ArgumentRules().kept_whole == KEPT_ARGUMENTS
    assert ArgumentRules([ArgumentRule("*", 9000), ArgumentRule("a", 5000)]).kept_whole == KEPT_ARGUMENTS, (
        "a later function may have no rule"
    )
    assert ArgumentRules([ArgumentRule("*", 9000), ArgumentRule("a", 13)]).kept_whole == 13
    assert ArgumentRules([ArgumentRule("a", 13)], [ArgumentRule("b", "pin")]).kept_whole == -1
    rules = ArgumentRules()
    for declared, kept in ((7, 7), (9000, KEPT_ARGUMENTS), (None, KEPT_ARGUMENTS)):
        rules.declare(b"f", declared)
        assert rules.kept_whole == kept


def test_workers_declare_another_size_within_the_nodes_settings() -> None:
    rules = ArgumentRules([ArgumentRule("limited", 100), ArgumentRule("none*", 0)])
    for function, declared, kept in (
        (b"f", 5000, 5000),
        (b"f", 0, 0),
        (b"f", None, KEPT_ARGUMENTS),
        (b"limited", 5000, 100),
        (b"limited", 10, 10),
        (b"none", 10, 0),
        (b"shop\x1ff", 7, 7),
        (b"f", None, KEPT_ARGUMENTS),
    ):
        rules.declare(function, declared)
        assert rules.of(function).limit == kept, (function, declared)


def test_the_declarations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_data, "MAX_RULED_FUNCTIONS", 2)
    rules = ArgumentRules()
    for name in (b"a", b"b", b"c"):
        rules.declare(name, 1)
    assert [rules.of(name).limit for name in (b"a", b"b", b"c")] == [1, 1, KEPT_ARGUMENTS]


@pytest.mark.parametrize("pattern", ["pay\\xff", "pay\\xf*"])
def test_a_rule_for_a_byte_or_its_spelling_matches_both(pattern: str) -> None:
    rules = ArgumentRules([ArgumentRule(pattern, 7)], [ArgumentRule(pattern, "secret")])
    for function, matches in ((b"pay\xff", True), (b"pay\\xff", True), (b"pay", False)):
        assert rules.of(function).hides("secret") == matches
        assert (rules.of(function).limit == 7) == matches


def test_a_rule_may_name_the_text_by_which_a_function_is_shown() -> None:
    rules = ArgumentRules([], [ArgumentRule("pay\\\\xff", "secret")])
    assert [rules.of(name).hides("secret") for name in (b"pay\\xff", b"pay\xff")] == [True, False]

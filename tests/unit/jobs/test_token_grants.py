"""The tokens of a node from one pool, step by step; how nodes share pools is in the simulation."""

from __future__ import annotations

from mainspring.jobs.token_grants import ELSEWHERE_US, REVIEW_INTERVAL_US, GrantedAccount
from mainspring.resources.store import Grant, TokenRequest


def asked(account: GrantedAccount, running: int, more: int, now_us: int) -> TokenRequest:
    return account.ask(b"f", b"p", running, more, now_us)


def test_jobs_that_any_node_may_run_are_given_back_where_others_hold_all_tokens() -> None:
    account = GrantedAccount(2, None, 0)
    ask = account.ask(b"f", b"p", 0, 2, 0, waits=False)
    assert account.granted(ask, Grant(tokens=0, claimants=2), 0, 0)
    assert account.is_elsewhere(0)
    assert account.lacks(0, 1, 0), "for the next job it may request again at once"
    assert not account.is_elsewhere(ELSEWHERE_US)
    ask = account.ask(b"f", b"p", 0, 2, 0, waits=False)
    assert not account.granted(ask, Grant(tokens=1, claimants=2), 0, 0), "one can run, and the other one waits"
    assert not account.is_elsewhere(0)
    assert not account.lacks(0, 2, 0)


def test_a_node_that_leaves_its_token_to_others_still_needs_it() -> None:
    account = GrantedAccount(1, None, 0)
    account.granted(asked(account, 0, 1, 0), Grant(tokens=1), 0, 0)
    account.granted(asked(account, 1, 3, 0), Grant(tokens=1, claimants=2, short=True), 0, 0)
    assert not account.is_owed(1, idle=False), "a job runs on it"
    assert account.is_owed(0, idle=False)
    ask = asked(account, 0, 3, 0)
    assert (ask.tokens, ask.demand, ask.waits) == (0, 1, True)


def test_a_token_that_has_just_come_is_used_before_it_goes_on() -> None:
    """Where nodes are more than tokens, an even share is none: each would else pass on what it has got."""
    account = GrantedAccount(1, None, 0)
    first = asked(account, 0, 1, 0)
    account.granted(first, Grant(tokens=1, claimants=3, short=True), 0, 0)
    assert account.free(0, 0) == 1
    second = asked(account, 1, 0, REVIEW_INTERVAL_US)
    assert second.tokens == 1, "one runs on it"
    account.granted(second, Grant(tokens=1, claimants=3, short=True), REVIEW_INTERVAL_US, 0)
    assert account.free(0, REVIEW_INTERVAL_US) == 0, "it has been used, and others wait for it"
    assert asked(account, 0, 1, REVIEW_INTERVAL_US).tokens == 0

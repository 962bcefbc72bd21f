"""The tokens of a node from one pool, step by step; how nodes share pools is in the simulation."""

from __future__ import annotations

from mainspring.jobs.token_grants import REVIEW_INTERVAL_US, GrantedAccount
from mainspring.resources.store import Grant, TokenRequest


def asked(account: GrantedAccount, running: int, more: int, now_us: int) -> TokenRequest:
    return account.ask(b"f", b"p", running, more, now_us)


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

"""Webhooks of partners, who want to know what happens to the orders that they brought."""

from __future__ import annotations

from mainspring import Rate, Retry, Snooze
from shop.app import app


class PartnerBusyError(Exception):
    """The partner asks to be called later, after some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@app.task(
    name="partners.notify",
    retry=Retry(max_attempts=12, initial="10s", maximum="6h"),
    expires="3d",
    rate_per_key=Rate(5, per="1s"),
    concurrency_key=lambda partner, *_: partner,
)
def notify(partner: str, number: int, event: str) -> None:
    """Call a partner's webhook. Five calls a second for each partner, so that one cannot delay the others."""
    try:
        call(partner, {"order": number, "event": event})
    except PartnerBusyError as busy:
        raise Snooze(busy.seconds) from None  # is no failed attempt


def call(partner: str, body: dict[str, object]) -> None:
    """Send a request to a partner; here only to the log."""
    print(partner, body)

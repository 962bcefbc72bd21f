"""The pages of webhooks: their list, and a webhook with its deliveries. A secret is shown once, in the answer to its form."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.jobs import JobInfo
from mainspring.api.webhooks import (
    EditWebhook,
    PauseWebhook,
    RedeliverWebhook,
    RemoveWebhook,
    ResumeWebhook,
    TryWebhook,
    WebhookInfo,
    WebhookSecret,
)
from mainspring.faces.dashboard.actions import Field, FormError, act, read_field
from mainspring.faces.dashboard.calls import NONE, Items, Problem, RefusedError
from mainspring.faces.dashboard.rendering import curl
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 100
DELIVERIES: Final = 20
WEBHOOKS: Final = f"{N}/webhooks"
WEBHOOK: Final = f"{WEBHOOKS}/{{name}}"
ROTATED: Final = f"{WEBHOOK}/rotate"
FIELDS: Final = (
    Field(name="name", label="Name", required=True, longest=100),
    Field(name="url", label="URL", required=True),
    Field(name="types", label="Types of events", kind="names", required=True, hint="such as job.failed or job.*"),
    Field(name="functions", label="Functions", kind="names", hint="names or patterns such as pay*; empty: all"),
    Field(name="template", label="Template", hint="slack, discord, teams, or a text; empty: Standard Webhooks"),
)
PAUSE: Final = act(
    PauseWebhook, label="Pause", done="The webhook is paused: its events wait.", needs="events", fields=("reason",)
)
RESUME: Final = act(
    ResumeWebhook, label="Resume", done="The webhook goes on, with the events of the pause.", needs="events"
)
TEST: Final = act(
    TryWebhook,
    label="Send a test",
    done="The receiver has not taken the message: mainspring webhooks test shows why.",
    outcomes={"True": "The receiver has taken the message."},
    outcome_key="succeeded",
    needs="events",
)
REDELIVER: Final = act(
    RedeliverWebhook,
    label="Deliver again",
    done="The events are delivered once more, with their ids.",
    needs="events",
    fields=("since", "until"),
)
EDIT: Final = act(
    EditWebhook,
    label="Change",
    done="The webhook is changed.",
    needs="events",
    fields=("url", "types", "functions", "tags", "format", "template", "content"),
)
REMOVE: Final = act(
    RemoveWebhook,
    label="Remove",
    done="The webhook is removed.",
    needs="events",
    then=lambda visit, _, __: visit.url("/webhooks"),
    warning="Its deliveries that wait are cancelled.",
)
ACTIONS: Final = tuple(replace(one, of_all_functions=True) for one in (PAUSE, RESUME, TEST, REDELIVER, EDIT, REMOVE))
_PAUSE, _RESUME, _TEST, _REDELIVER, _EDIT, _REMOVE = ACTIONS


def may_administer(visit: Visit) -> bool:
    """Return whether to show the forms with secrets."""
    return visit.offers(_REMOVE)


async def webhooks(visit: Visit) -> Response:
    """Show all webhooks."""
    return await _list(visit)


async def add(visit: Visit, form: Mapping[str, str]) -> Response:
    """Add a webhook, and show its secret. A refused form is shown again."""
    try:
        values = {one.name: read_field(one, form.get(one.name, "")) for one in FIELDS}
        body = {name: value for name, value in values.items() if value}
        answer = await visit.calls.send("POST", WEBHOOKS, body=body)
    except FormError as error:
        return await _list(visit, form=form, fault=str(error), fields={error.field: str(error)})
    except RefusedError as refused:
        if refused.status not in {409, 422}:
            raise
        return await _list(visit, form=form, fault=refused.problem.detail, fields=refused.problem.fields)
    return await _list(visit, msgspec.json.decode(answer.body, type=WebhookSecret))


async def _list(
    visit: Visit,
    created: WebhookSecret | None = None,
    *,
    form: Mapping[str, str] = NONE,
    fault: str = "",
    fields: Mapping[str, str] = NONE,
) -> Response:
    query = {"cursor": visit.field("cursor"), "limit": ROWS}
    listed = await visit.calls.get(Items[WebhookInfo], WEBHOOKS, query=query)
    example = {"name": "NAME", "url": "https://crm.example.com/events", "types": ["job.failed"]}
    return visit.render(
        "webhooks.html",
        code=422 if fault else 200,
        listed=listed,
        rows=ROWS,
        fields=FIELDS if may_administer(visit) else (),
        form=form,
        fault=fault,
        faults=fields,
        created=created,
        curl=curl("POST", visit.api_address(WEBHOOKS), example),
    )


async def webhook(visit: Visit) -> Response:
    """Show a webhook with its newest deliveries."""
    return await _one(visit)


async def rotate(visit: Visit, form: Mapping[str, str]) -> Response:
    """Give a webhook a new secret, and show it."""
    del form
    answer = await visit.calls.send("POST", ROTATED, dict(visit.parameters), body={})
    return await _one(visit, msgspec.json.decode(answer.body, type=WebhookSecret))


async def _one(visit: Visit, created: WebhookSecret | None = None) -> Response:
    parameters = dict(visit.parameters)
    query = {"function": f"webhook:{parameters['name']}", "limit": DELIVERIES}
    shown, deliveries = await asyncio.gather(
        visit.calls.get(WebhookInfo, WEBHOOK, parameters),
        visit.optional(visit.calls.get(Items[JobInfo], f"{N}/jobs", query=query), "deliveries"),
    )
    actions = (_RESUME if shown.paused else _PAUSE, _TEST, _REDELIVER, _EDIT, _REMOVE)
    return visit.render(
        "webhook.html",
        webhook=shown,
        deliveries=[] if isinstance(deliveries, Problem) else deliveries.items,
        actions=[one for one in actions if visit.offers(one)],
        created=created,
        rotates=may_administer(visit),
        rotate_curl=curl("POST", visit.api_address(ROTATED, parameters)),
    )


PAGES: Final = (
    Page(path="/webhooks", handler=webhooks, post=add, menu="Webhooks", permission=Permission.READ, needs="events"),
    Page(path="/webhooks/{name}", handler=webhook, post=rotate, permission=Permission.READ, needs="events"),
)

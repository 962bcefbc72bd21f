"""The pages of webhooks: their list, and a webhook with its deliveries. A secret is shown once, in the answer to its form."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.jobs import JobInfo
from mainspring.api.versions import DELIVERIES, SUBSCRIPTIONS, version_of
from mainspring.api.webhooks import (
    AddWebhook,
    EditWebhook,
    PauseWebhook,
    RedeliverWebhook,
    RemoveWebhook,
    ResumeWebhook,
    RotateWebhook,
    TryWebhook,
    WebhookFields,
    WebhookInfo,
    WebhookSecret,
)
from mainspring.event_log.types import patterns_of
from mainspring.faces.dashboard.actions import Field, FormError, act, declared, read_field
from mainspring.faces.dashboard.calls import NONE, Items, Problem, RefusedError
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N
from mainspring.webhooks.bodies import LONGEST_TEMPLATE, READY_MADE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.actions import Action
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = SUBSCRIPTIONS
WEBHOOKS: Final = f"{N}/webhooks"
WEBHOOK: Final = f"{WEBHOOKS}/{{name}}"
NAME: Final = Field(name="name", label="Name", required=True, longest=100)
SETTINGS: Final = (
    declared(WebhookFields, "url", label="URL", required=True),
    declared(
        WebhookFields, "types", label="Types of events", kind="names", required=True, hint="such as job.failed or job.*"
    ),
    declared(WebhookFields, "functions", hint="names or patterns such as pay*, each on a line; empty: all", cleared=[]),
    declared(
        WebhookFields,
        "tags",
        hint="of the job, the run or the schedule, each on a line: it has all of them",
        cleared=[],
    ),
    declared(
        WebhookFields,
        "everywhere",
        label="Events of all namespaces",
        hint="and those outside, such as about nodes",
        everywhere=True,
        cleared=False,
    ),
    declared(
        WebhookFields,
        "format",
        choices=(("", "Standard Webhooks, or the template"), ("cloudevents", "CloudEvents 1.0")),
        hint="",
    ),
    declared(
        WebhookFields,
        "template",
        kind="long_text",
        longest=LONGEST_TEMPLATE,
        hint=f"{', '.join(READY_MADE)}, or a text",
        cleared="",
    ),
    declared(
        WebhookFields, "content", label="The template makes", choices=(("", "JSON"), ("text", "plain text")), hint=""
    ),
    Field(
        name="headers",
        label="Headers",
        kind="headers",
        option="--header",
        hint="such as X-Team: shop, each on a line",
        cleared={},
    ),
)
FIELDS: Final = (NAME, *SETTINGS)
CHOICES: Final = {
    "format": (("standard", "Standard Webhooks"), ("cloudevents", "CloudEvents 1.0"), ("template", "the template")),
    "content": (("json", "JSON"), ("text", "plain text")),
}
"""Those of the form for a webhook that exists."""
HIDDEN: Final = "…"
"""Stands for the value of a header. No header may have it, so it is never sent as one."""
KEPT_HEADERS: Final = f"each on a line; unchanged: the same values, which are not shown; changed: without {HIDDEN}"
EXAMPLE: Final = {"name": "NAME", "url": "https://crm.example.com/events", "types": "job.failed"}
ADD: Final = act(AddWebhook, label="Add a webhook", done="", fields=FIELDS, command="webhooks add {name}")
OVERLAP: Final = declared(
    RotateWebhook, "overlap", label="The old secret signs beside it for", hint="such as 1h; 0s: no longer; empty: a day"
)
ROTATE: Final = act(RotateWebhook, label="New secret", done="", fields=(OVERLAP,))
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
    fields=(
        declared(RedeliverWebhook, "handle", option="", hint="of one delivery; or, without it, a stretch of events"),
        "since",
        "until",
    ),
    command="webhooks redeliver {name} {handle}",
)
EDIT: Final = act(
    EditWebhook,
    label="Change",
    done="The webhook is changed.",
    needs="events",
    fields=[
        replace(
            one,
            choices=CHOICES.get(one.name, one.choices),
            hint=KEPT_HEADERS if one.kind == "headers" else one.hint,
        )
        for one in SETTINGS
    ],
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


def present(shown: WebhookInfo) -> dict[str, str]:
    """Return the values of the form that changes a webhook."""
    return {
        "url": shown.url,
        "types": " ".join(patterns_of(shown.types)),
        "functions": "\n".join(shown.functions),
        "tags": "\n".join(shown.tags),
        "everywhere": "1" if shown.everywhere else "",
        "format": shown.format,
        "template": shown.template,
        "content": shown.content,
        "headers": "\n".join(f"{name}: {HIDDEN}" for name in shown.headers),
    }


def actions_of(visit: Visit, shown: WebhookInfo) -> list[Action]:
    """Return the actions that make sense and that the viewer may do."""
    changing = (_RESUME if shown.paused else _PAUSE, _EDIT)
    return [
        one.permitted(visit.may, NONE, visit.may_everywhere)
        for one in (changing[0], _TEST, _REDELIVER, changing[1], _REMOVE)
        if visit.offers(one) and (one not in changing or not shown.everywhere or visit.may_everywhere(one.permission))
    ]


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
    cursor = visit.field("cursor")
    listed = await visit.calls.get(Items[WebhookInfo], WEBHOOKS, query={"cursor": cursor, "limit": ROWS})
    return visit.render(
        "webhooks.html",
        code=422 if fault else 200,
        listed=listed,
        rows=ROWS,
        fields=ADD.permitted(visit.may, form, visit.may_everywhere).fields if may_administer(visit) else (),
        form=form,
        fault=fault,
        faults=fields,
        created=created,
        command=ADD.command_line(visit.namespace, NONE, EXAMPLE),
        curl=ADD.curl_line(visit.api_address(WEBHOOKS), EXAMPLE),
        further=ADD.further(EXAMPLE),
        version="" if cursor else version_of(listed.items),
    )


async def webhook(visit: Visit) -> Response:
    """Show a webhook with its newest deliveries."""
    return await _one(visit)


async def rotate(visit: Visit, form: Mapping[str, str]) -> Response:
    """Give a webhook a new secret, and show it."""
    overlap = read_field(OVERLAP, form.get(OVERLAP.name, ""))
    body = {} if overlap is None else {OVERLAP.name: overlap}
    answer = await visit.calls.send("POST", ROTATE.path, dict(visit.parameters), body=body)
    return await _one(visit, msgspec.json.decode(answer.body, type=WebhookSecret))


async def _one(visit: Visit, created: WebhookSecret | None = None) -> Response:
    parameters = dict(visit.parameters)
    query = {"function": f"webhook:{parameters['name']}", "limit": DELIVERIES}
    shown, deliveries = await asyncio.gather(
        visit.calls.get(WebhookInfo, WEBHOOK, parameters),
        visit.optional(visit.calls.get(Items[JobInfo], f"{N}/jobs", query=query), "deliveries"),
    )
    listed = [] if isinstance(deliveries, Problem) else deliveries.items
    return visit.render(
        "webhook.html",
        webhook=shown,
        deliveries=listed,
        actions=actions_of(visit, shown),
        present=present(shown),
        created=created,
        rotates=may_administer(visit) and (not shown.everywhere or visit.may_everywhere(_EDIT.permission)),
        rotate=ROTATE,
        version=version_of([shown], listed),
    )


PAGES: Final = (
    Page(path="/webhooks", handler=webhooks, post=add, menu="Webhooks", permission=Permission.READ, needs="events"),
    Page(path="/webhooks/{name}", handler=webhook, post=rotate, permission=Permission.READ, needs="events"),
)

"""Calls about webhooks: HTTP receivers of events, to which the nodes send each event as a job of the webhook's function."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, patch, post
from mainspring.api.functions import Reason  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import (
    PAGE_LIMIT,
    Code,
    Cursor,
    Handle,
    Limit,
    Page,
    Request,
    Revision,
    Touches,
)
from mainspring.features import Feature
from mainspring.namespaces import Namespaced
from mainspring.sizes import Seconds, Text, Texts, about, described
from mainspring.webhooks.bodies import READY_MADE
from mainspring.webhooks.sending import MOST_HEADERS

MOST_WEBHOOKS: Final = 200
"""Webhooks of a namespace."""
MOST_FILTERS: Final = 100
"""Functions, and tags, of one webhook."""
OVERLAP: Final = 86_400.0
"""Seconds for which a replaced secret signs beside the new one."""
LONGEST_OVERLAP: Final = 30 * 86_400.0

FormatName = Literal["standard", "cloudevents", "template"]
ContentName = Literal["json", "text"]
WebhookName = Annotated[Text, about("The name of a webhook.")]
Headers = Annotated[dict[Text, Text], msgspec.Meta(max_length=MOST_HEADERS)]
Filters = Annotated[list[Text], msgspec.Meta(max_length=MOST_FILTERS)]


class WebhookInfo(msgspec.Struct, kw_only=True):
    """A webhook."""

    name: str
    function: str
    """The function whose jobs are its deliveries; clients cannot submit to it."""
    url: str
    """The whole of it for administrators of the namespace, whom `webhooks.show` answers: a path may be a secret. Others, and
    lists, have the scheme and the host."""
    types: list[str]
    functions: list[str]
    """Names or patterns of the functions whose events it gets; none: all."""
    tags: list[str]
    everywhere: bool
    """Whether it gets events of all namespaces."""
    format: FormatName
    template: str
    """The text of its template, or the name of a ready-made one."""
    content: ContentName
    """The form of the template's text."""
    headers: list[str]
    """The names of the headers that are sent with each message. Their values are not shown."""
    state: str
    """``active`` or ``paused``."""
    paused: str | None
    """Why it is paused."""
    failures: int
    """The messages that were given up since the last one that was delivered."""
    delivered: str
    """The number of the last event up to which each has become a job, or was none for it."""
    behind: int
    """The events for it that are not jobs yet; it counts no more than a thousand."""
    missed: str | None
    """The number up to which events were deleted before they could be delivered; None: none were."""
    secrets: int
    """The secrets that sign now: more than one while they overlap."""
    overlap_ends_at: str | None
    """When the last of the replaced secrets ends; None: none signs any more."""
    created_at: str | None
    revision: str
    """The changing requests take it; deliveries do not change it."""


class WebhookSecret(WebhookInfo):
    """A webhook with its newest secret, which nothing shows a second time."""

    secret: str


class RemovedWebhook(msgspec.Struct):
    """A removed webhook."""

    name: str
    state: str = "removed"


class WebhookAnswer(msgspec.Struct):
    """The answer of a receiver to a message."""

    name: str
    id: str
    """That of the message."""
    succeeded: bool
    status: int | None
    """The status of HTTP; None: there was no answer."""
    seconds: float
    error: str | None
    """Why there was no answer."""
    excerpt: str | None
    """The beginning of the answer; None for callers who may not see payloads."""


class Redelivery(msgspec.Struct):
    """The events that are delivered once more."""

    name: str
    handle: str | None
    """The job of the delivery, if that is sent again; None: there are new jobs."""
    events: int
    next: str | None
    """The number of the event with which to go on, because one request has no more; None: all had their turn."""


class WebhookFields(Namespaced, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields of a webhook that people set. One that is left out has its default, or stays as it is."""

    url: Annotated[Text | UnsetType, described("The URL of the receiver.")] = UNSET
    types: Annotated[
        Texts | UnsetType,
        described("The types of its events, or patterns such as job.*; may be repeated.", "--type"),
    ] = UNSET
    functions: Annotated[
        Filters | UnsetType,
        described("Only events about this function, or about those of a pattern; may be repeated.", "--function"),
    ] = UNSET
    tags: Annotated[
        Filters | UnsetType,
        described("Only events about jobs, runs and schedules with this tag; may be repeated.", "--tag"),
    ] = UNSET
    everywhere: Annotated[
        bool | UnsetType, described("Events of all namespaces, and those outside, such as about nodes.")
    ] = UNSET
    format: Annotated[
        FormatName | UnsetType, described("The form of the messages: by Standard Webhooks, CloudEvents, or a template.")
    ] = UNSET
    template: Annotated[
        Text | UnsetType, described(f"The text of a template, or a ready-made one: {', '.join(READY_MADE)}.")
    ] = UNSET
    content: Annotated[ContentName | UnsetType, described("The form of the template's text: JSON by default.")] = UNSET
    headers: Annotated[
        Headers | UnsetType, about("Headers that are sent with each message; they replace all earlier ones.")
    ] = UNSET


class ListWebhooks(Request[Page[WebhookInfo]]):
    """List webhooks, by name."""

    permission = Permission.READ
    requires = Feature.EVENTS
    call = "webhooks.list"
    http = get("webhooks")
    only_reads = True
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ShowWebhook(Request[WebhookInfo]):
    """Show a webhook."""

    permission = Permission.READ
    requires = Feature.EVENTS
    touches = Touches.EACH
    call = "webhooks.show"
    http = get("webhooks/{name}", problems=(Code.WEBHOOK_NOT_FOUND,))
    only_reads = True
    name: WebhookName


class AddWebhook(WebhookFields, Request[WebhookSecret]):
    """Add a webhook for the events from now on. Its secret is shown this once."""

    permission = Permission.ADMIN
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.add"
    http = post(
        "webhooks",
        status=201,
        location="webhooks/{name}",
        problems=(Code.CONFLICT,),
        secret=True,
        example={"name": "crm", "url": "https://crm.example.com/events", "types": ["job.failed"]},
    )
    name: WebhookName


class EditWebhook(WebhookFields, Request[WebhookInfo]):
    """Change a part of a webhook. Fields that are left out do not change."""

    permission = Permission.ADMIN
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.edit"
    http = patch(
        "webhooks/{name}",
        problems=(Code.WEBHOOK_NOT_FOUND, Code.CONFLICT),
        example={"types": ["job.failed", "run.failed"]},
    )
    name: WebhookName
    revision: Revision = None


class PauseWebhook(Request[WebhookInfo]):
    """Deliver no more events to a webhook. Messages that failed wait, and later events until it is resumed."""

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.pause"
    http = post(
        "webhooks/{name}/pause",
        problems=(Code.WEBHOOK_NOT_FOUND, Code.CONFLICT),
        example={"reason": "the receiver moves"},
    )
    name: WebhookName
    reason: Annotated[Reason, described("Why, for those who see the pause.")] = ""


class ResumeWebhook(Request[WebhookInfo]):
    """Deliver events to a paused webhook again, those of the pause included as far as they are kept.

    Messages that have waited for it are sent within five minutes.
    """

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.resume"
    http = post("webhooks/{name}/resume", problems=(Code.WEBHOOK_NOT_FOUND, Code.CONFLICT))
    name: WebhookName


class TryWebhook(Request[WebhookAnswer]):
    """Send a message of the type webhook.test now, once, and answer with what the receiver answers."""

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.test"
    http = post("webhooks/{name}/test", problems=(Code.WEBHOOK_NOT_FOUND, Code.CONFLICT))
    name: WebhookName


class RedeliverWebhook(Request[Redelivery]):
    """Deliver events once more, with the ids that they had: that of one job, or all of a stretch.

    A job that has failed runs again. In place of one that has succeeded there is a new one.
    """

    permission = Permission.OPERATE
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.redeliver"
    http = post(
        "webhooks/{name}/redeliver",
        status=202,
        problems=(Code.WEBHOOK_NOT_FOUND, Code.JOB_NOT_FOUND, Code.NOT_KEPT, Code.CONFLICT),
        example={"since": "1200", "until": "1300"},
    )
    name: WebhookName
    handle: Annotated[Handle | None, described("The delivery, by the handle of its job.")] = None
    since: Annotated[Text | None, described("The first event: its number, or a time such as 2030-01-31T12:00:00Z.")] = (
        None
    )
    until: Annotated[Text | None, described("The last event, likewise; by default the newest one.")] = None


class RotateWebhook(Request[WebhookSecret]):
    """Give a webhook a new secret, which is shown this once. The old one signs beside it for a while."""

    permission = Permission.ADMIN
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.rotate"
    http = post("webhooks/{name}/rotate", secret=True, problems=(Code.WEBHOOK_NOT_FOUND, Code.CONFLICT))
    name: WebhookName
    overlap: Annotated[Seconds, described("How long the old secret signs as well; 0s: no longer. By default 1d.")] = (
        OVERLAP
    )


class RemoveWebhook(Request[RemovedWebhook]):
    """Remove a webhook, and cancel its deliveries that wait. One that is under way goes on."""

    permission = Permission.ADMIN
    requires = Feature.EVENTS
    touches = Touches.ALL
    call = "webhooks.remove"
    http = delete("webhooks/{name}", problems=(Code.WEBHOOK_NOT_FOUND,))
    name: WebhookName
    revision: Revision = None

"""The bodies of webhooks: an event as Standard Webhooks, as CloudEvents 1.0, or by a template of the webhook.

Bodies are thin, as events are. A receiver that wants more asks the API.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from mainspring.clock import time_of
from mainspring.errors import UsageError
from mainspring.sizes import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.webhooks.templates import Template

MOST_BYTES: Final = 20_000
"""The size of a body, by the standard."""
ID_PREFIX: Final = "evt_"
TYPE_PREFIX: Final = "mainspring."
"""Before the types of CloudEvents."""
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
CLOUDEVENTS_JSON: Final = "application/cloudevents+json; charset=utf-8"
LONGEST_TEMPLATE: Final = 4096
"""Characters."""
_LONGEST_SUBJECT: Final = 1024
_LEFT_OUT: Final = "left_out"


class Format(StrEnum):
    """The formats of bodies."""

    STANDARD = "standard"
    CLOUDEVENTS = "cloudevents"
    TEMPLATE = "template"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """An event as receivers get it: with the names and forms of the API."""

    number: int
    """The event's number in the log."""
    type: str
    at_us: int
    """When its cause happened, in microseconds of wall time."""
    namespace: str
    function: str = ""
    subject: str = ""
    job: str = ""
    """The handle of the job that it is about."""
    data: Mapping[str, Any] = {}
    """The fields of its type: values of JSON, times as text."""
    link: str = ""
    """The page about its object; empty if the node has none."""

    @property
    def id(self) -> str:
        """The id of the message: the same in all attempts and redeliveries, so that receivers recognise duplicates."""
        return f"{ID_PREFIX}{self.number}"

    @property
    def time(self) -> str:
        """RFC 3339, in UTC."""
        return rfc3339(self.at_us)

    def fields(self) -> dict[str, Any]:
        """Return what it is about and its data, without empty values."""
        about = {"namespace": self.namespace, "function": self.function, "subject": self.subject, "job": self.job}
        return {**self.data, **{name: value for name, value in about.items() if value}}


class BodySettings(msgspec.Struct, frozen=True):
    """How a webhook wants its bodies."""

    format: Format = Format.STANDARD
    template: str = ""
    """The text of a template, or the name of a ready-made one: `READY_MADE`."""
    is_json: bool = True
    """Whether the template makes JSON: its values are escaped, and its result is checked. Otherwise it makes plain text."""


STANDARD: Final = BodySettings()


class Body(NamedTuple):
    """The body of a message."""

    content_type: str
    content: bytes


def rfc3339(at_us: int) -> str:
    """Return a time as RFC 3339 in UTC, such as ``2030-01-31T12:00:00.000000Z``."""
    return f"{time_of(at_us).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def check_settings(settings: BodySettings) -> None:
    """Raise UsageError for settings that make no bodies."""
    if settings.format is not Format.TEMPLATE:
        if settings.template:
            raise UsageError(f"the format {settings.format} has no template")
    elif not settings.template:
        raise UsageError(f"write a template, or the name of a ready-made one: {', '.join(READY_MADE)}")
    else:
        _compiled(settings)


def make_body(message: Message, settings: BodySettings = STANDARD, source: str = "") -> Body:
    """Return the body of a message, of `MOST_BYTES` at most.

    ``source`` is the address of the node or its fleet, for CloudEvents, without a slash at its end. Values that are too long are
    left out, the longest first, and ``left_out`` names them. Raises UsageError if a template fails for this message.
    """
    if settings.format is Format.STANDARD:
        return Body(JSON, _fitting(message.fields(), lambda data: _standard(message, data)))
    if settings.format is Format.CLOUDEVENTS:
        return Body(CLOUDEVENTS_JSON, _fitting(message.fields(), lambda data: _cloud_event(message, data, source)))
    return Body(JSON if settings.is_json else TEXT, _compiled(settings).render(_names(message), MOST_BYTES).encode())


def _standard(message: Message, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": message.type, "timestamp": message.time, "data": data}


def _cloud_event(message: Message, data: Mapping[str, Any], source: str) -> dict[str, Any]:
    subject = message.job or message.subject or message.function
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": f"{source}/namespaces/{quote(message.namespace, safe='')}",
        "type": f"{TYPE_PREFIX}{message.type}",
        **({"subject": shorten(subject, _LONGEST_SUBJECT)} if subject else {}),
        "time": message.time,
        "datacontenttype": JSON,
        "data": data,
    }


def _fitting(data: dict[str, Any], make: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    encode = msgspec.json.encode
    content = encode(make(data))
    left_out: list[str] = []
    while len(content) > MOST_BYTES and data:
        longest = max(data, key=lambda name: len(encode(data[name])))
        del data[longest]
        left_out.append(longest)
        content = encode(make({**data, _LEFT_OUT: left_out}))
    return content


def _names(message: Message) -> dict[str, Any]:
    """Return the names that templates have."""
    return {
        "id": message.id,
        "type": message.type,
        "time": message.time,
        "namespace": message.namespace,
        "function": message.function,
        "subject": message.subject,
        "job": message.job,
        "data": message.data,
        "link": message.link,
    }


def _compiled(settings: BodySettings) -> Template:
    from mainspring.webhooks.templates import compile_template  # noqa: PLC0415 - most webhooks have no template

    if len(settings.template) > LONGEST_TEMPLATE:
        raise UsageError(f"a template has at most {LONGEST_TEMPLATE:,} characters")
    return compile_template(READY_MADE.get(settings.template, settings.template), settings.is_json)


READY_MADE: Final = {
    # Also for Mattermost and Rocket.Chat. The filter keeps texts from mentioning people and from being links.
    "slack": r"""
{"text": "*{{ type }}* {{ (function or subject)|slack }}
{%- if job %} `{{ job|slack }}`{% endif %}
{%- if data.error %}\n> {{ data.error_type|slack }}: {{ data.error|slack }}{% endif %}
{%- if data.reason %}\n> {{ data.reason|slack }}{% endif %}
{%- if data.by %}\nby {{ data.by|slack }}{% endif %}
{%- if link %}\n<{{ link|slack }}|Open>{% endif %}"}
""",
    "discord": r"""
{"content": "**{{ type }}** {{ (function or subject)|truncate(200) }}
{%- if job %} `{{ job }}`{% endif %}
{%- if data.error %}\n> {{ data.error_type }}: {{ data.error|truncate(500) }}{% endif %}
{%- if data.reason %}\n> {{ data.reason|truncate(500) }}{% endif %}
{%- if data.by %}\nby {{ data.by|truncate(100) }}{% endif %}
{%- if link %}\n{{ link }}{% endif %}",
 "allowed_mentions": {"parse": []}}
""",
    "teams": r"""
{"type": "message", "attachments": [{
  "contentType": "application/vnd.microsoft.card.adaptive",
  "content": {"type": "AdaptiveCard", "version": "1.4", "body": [
    {"type": "TextBlock", "weight": "bolder", "wrap": true, "text": "{{ type }} {{ function or subject }}"}
    {%- if data.error %}, {"type": "TextBlock", "wrap": true, "text": "{{ data.error_type }}: {{ data.error }}"}{% endif %}
    {%- if data.reason %}, {"type": "TextBlock", "wrap": true, "text": "{{ data.reason }}"}{% endif %}
    {%- if job %}, {"type": "TextBlock", "isSubtle": true, "text": "{{ job }}"}{% endif %}
  ]
  {%- if link %}, "actions": [{"type": "Action.OpenUrl", "title": "Open", "url": "{{ link }}"}]{% endif %}}
}]}
""",
}
"""Templates for chat systems, by name."""

"""The bodies of webhooks, and what a template can do to a node: nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.event_log.types import TYPES
from mainspring.webhooks.bodies import (
    LONGEST_TEMPLATE,
    MOST_BYTES,
    READY_MADE,
    STANDARD,
    Body,
    BodySettings,
    Format,
    Message,
    check_settings,
    make_body,
    rfc3339,
)

AT_US = 1_900_000_000_123_456
MESSAGE = Message(
    number=42,
    type="job.failed",
    at_us=AT_US,
    namespace="shop",
    function="pay",
    job="H:a:7",
    data={
        "attempt": 3,
        "error_type": "ValueError",
        "error": 'a "quoted" <!channel> & text',
        "tags": ["x", "y"],
        "lost": False,
    },
    link="https://node.example.com/jobs/7",
)
CLOUDEVENTS = BodySettings(Format.CLOUDEVENTS)


def template(text: str, *, is_json: bool = False) -> BodySettings:
    return BodySettings(Format.TEMPLATE, text, is_json)


def render(text: str, message: Message = MESSAGE) -> str:
    return make_body(message, template(text)).content.decode()


def test_a_standard_body_has_type_timestamp_and_data() -> None:
    body = make_body(MESSAGE)
    assert body.content_type == "application/json"
    assert json.loads(body.content) == {
        "type": "job.failed",
        "timestamp": "2030-03-17T17:46:40.123456Z",
        "data": {**MESSAGE.data, "namespace": "shop", "function": "pay", "job": "H:a:7"},
    }
    assert list(json.loads(body.content)) == ["type", "timestamp", "data"]


def test_a_cloud_event_has_the_attributes_of_the_specification() -> None:
    body = make_body(MESSAGE, CLOUDEVENTS, "https://node.example.com")
    assert body.content_type == "application/cloudevents+json; charset=utf-8"
    event = json.loads(body.content)
    assert event.pop("data") == json.loads(make_body(MESSAGE).content)["data"]
    assert event == {
        "specversion": "1.0",
        "id": "evt_42",
        "source": "https://node.example.com/namespaces/shop",
        "type": "mainspring.job.failed",
        "subject": "H:a:7",
        "time": "2030-03-17T17:46:40.123456Z",
        "datacontenttype": "application/json",
    }


def test_an_event_about_nothing_has_no_subject() -> None:
    event = json.loads(make_body(Message(number=1, type="x", at_us=0, namespace="default"), CLOUDEVENTS).content)
    assert "subject" not in event
    assert event["source"] == "/namespaces/default"


def test_the_id_is_the_events_number() -> None:
    assert MESSAGE.id == "evt_42"
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"


def test_no_field_of_an_event_has_the_name_of_what_it_is_about() -> None:
    taken = {name for one in TYPES.values() for name in one.fields.__struct_fields__}
    assert not {"namespace", "function", "subject", "job", "left_out"} & taken


@given(
    st.dictionaries(
        st.text(max_size=9), st.one_of(st.text(max_size=200), st.integers(), st.booleans(), st.none()), max_size=200
    ),
    st.text(max_size=5000),
    st.sampled_from([STANDARD, CLOUDEVENTS]),
)
def test_a_body_has_a_limit(data: dict[str, Any], text: str, settings: BodySettings) -> None:
    message = Message(number=1, type="job.failed", at_us=0, namespace="default", function=text, subject=text, data=data)
    assert len(make_body(message, settings).content) <= MOST_BYTES


def test_the_longest_values_are_left_out_and_named() -> None:
    message = Message(
        number=1, type="x", at_us=0, namespace="n", data={"a": "short", "b": "x" * 19_000, "c": "y" * 19_999}
    )
    assert json.loads(make_body(message).content)["data"] == {
        "a": "short",
        "namespace": "n",
        "b": "x" * 19_000,
        "left_out": ["c"],
    }


@pytest.mark.parametrize("name", READY_MADE)
def test_a_ready_made_template_makes_json_for_each_type(name: str) -> None:
    settings = BodySettings(Format.TEMPLATE, name)
    check_settings(settings)
    for one in TYPES.values():
        data: dict[str, Any] = dict.fromkeys(one.fields.__struct_fields__, '<!here> "x" \\ \n & {{ 7 }} \u2028')
        for message in (
            Message(
                number=1,
                type=one.name,
                at_us=0,
                namespace="default",
                data=data,
                function='a"b',
                job="H:a:1",
                link="https://n/x",
            ),
            Message(number=1, type=one.name, at_us=0, namespace="default"),
        ):
            content = make_body(message, settings).content
            assert one.name in json.dumps(json.loads(content))


def test_the_text_of_an_error_adds_nothing_to_a_chats_message() -> None:
    error = '", "channel": "#all", "x": "<!channel> <https://evil.example.com|here>'
    message = Message(number=1, type="job.failed", at_us=0, namespace="default", function="f", data={"error": error})
    slack = json.loads(make_body(message, BodySettings(Format.TEMPLATE, "slack")).content)
    assert set(slack) == {"text"}
    assert "<" not in slack["text"]
    discord = json.loads(make_body(message, BodySettings(Format.TEMPLATE, "discord")).content)
    assert set(discord) == {"content", "allowed_mentions"}
    assert discord["allowed_mentions"] == {"parse": []}


@given(st.text(), st.recursive(st.one_of(st.text(), st.integers(), st.none(), st.booleans()), st.lists))
def test_values_are_escaped_in_templates_for_json(text: str, value: Any) -> None:
    settings = template('{"inside {{ function }}": "{{ data.a }}", "whole": {{ data.b|json }}}', is_json=True)
    message = Message(number=1, type="x", at_us=0, namespace="n", function=text, data={"a": text, "b": value})
    assert json.loads(make_body(message, settings).content) == {f"inside {text}": text, "whole": value}


def test_a_template_for_json_has_to_make_json() -> None:
    with pytest.raises(UsageError, match="does not make JSON"):
        make_body(MESSAGE, template('{"a": {{ function }}}', is_json=True))


def test_a_template_for_text_has_its_own_type() -> None:
    assert make_body(MESSAGE, template("{{ function }} failed")) == Body("text/plain; charset=utf-8", b"pay failed")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{ id }} {{ type }} {{ time }}", "evt_42 job.failed 2030-03-17T17:46:40.123456Z"),
        ("{{ namespace }}/{{ function }}/{{ job }}{{ subject }}", "shop/pay/H:a:7"),
        ("{% for tag in data.tags %}{{ tag }}{% if not loop.last %}, {% endif %}{% endfor %}", "x, y"),
        (
            "{% for name in data %}{{ loop.index }}{{ name }} {% else %}none{% endfor %}",
            "1attempt 2error_type 3error 4tags 5lost",
        ),
        ("{% for tag in data.missing %}{{ tag }}{% else %}none{% endfor %}", "none"),
        ("{{ data['attempt'] }} {{ data.tags[0] }} {{ data.tags[-1] }} {{ function[:2] }}", "3 x y pa"),
        ("{{ data.missing }}{{ data.missing.deeper }}{{ data.tags[9] }}|", "|"),
        ("{{ data.tags|join(' and ')|upper }}", "X AND Y"),
        ("{{ data.error|truncate(5) }} {{ data.error|truncate(length=3) }}", 'a "q… a …'),
        ("{{ data.missing|default('-') }} {{ data.tags|length }} {{ 90|duration }}", "- 2 1 min 30 s"),
        ("{{ data.error|slack }}", 'a "quoted" &lt;!channel&gt; &amp; text'),
        (
            "{{ data.tags|json }} {{ data.lost }} {{ data.error is defined }} {{ data.x is defined }}",
            '["x","y"] false true false',
        ),
        ("{{ 'late' if data.attempt >= 3 and type in ('job.failed', 'job.expired') else 'early' }}", "late"),
        (
            "{{ 'x' in data.tags }} {{ 'z' not in data.tags }} {{ 'error' in data }} {{ 1 in data.missing }}",
            "true true true false",
        ),
        ("{{ function|json|json }}", '"\\"pay\\""'),
        ("{# a comment #}{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
    ],
)
def test_templates_have_what_texts_need(text: str, result: str) -> None:
    check_settings(template(text))
    assert render(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ data.__class__.__mro__ }}",
        "{{ data['__class__'] }}{{ data.__init__.__globals__ }}",
        "{{ data|attr('__class__') }}",
        "{{ _steps }}",
        "{{ self }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__ }}",
        "{{ namespace() }}",
        "{{ data.items() }}",
        "{{ ''.join(data) }}",
        "{{ '{0.__class__}'.format(data) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' ~ 'y' }}",
        "{{ 1 + 1 }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'|indent(1000000000) }}",
        "{{ data.error|replace('a', 'aaaaaaaaaaaaaaaaaaaaaaaaaa') }}",
        "{{ data.tags|map(attribute='__class__')|list }}",
        "{{ data.tags|batch(1000000000)|list }}",
        "{% for i in range(10) %}{% endfor %}",
        "{% for i in lipsum(n=1000) %}{% endfor %}",
        "{% for i in data.tags recursive %}{{ loop(data.tags) }}{% endfor %}",
        "{% for _a in data.tags %}{% endfor %}",
        "{% set a = 'x' %}{{ a }}",
        "{% set a %}x{% endset %}{{ a }}",
        "{% with a = 'x' %}{{ a }}{% endwith %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% call a() %}{% endcall %}",
        "{% filter upper %}x{% endfilter %}",
        "{% block a %}{% endblock %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% do data.clear() %}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ unknown }}",
        "{{ data is sameas(data) }}",
        "{{ data is callable }}",
        "{{ [" + "1," * 33 + "] }}",
        "{{ {'a': 1} }}",
        "{% if data %}",
        "{{ data",
        "{% nothing %}",
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
        "{{ " + "not " * 1000 + "1 }}",
        "{{ " + "-" * 2000 + "1 }}",
        "{{ data" + ".a" * 1900 + " }}",
        "{{ data" + "|json" * 800 + " }}",
        "{% if 1 %}" * 180 + "{% endif %}" * 180,
        "".join(f"{{% for a{depth} in data.tags %}}" for depth in range(4)) + "{% endfor %}" * 4,
        "{{id}}" * 650,
        "{% for a in data.tags %}" + "{{a}}" * 250 + "{% endfor %}",
        "x" * (LONGEST_TEMPLATE + 1),
        "",
    ],
)
def test_other_parts_of_the_language_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_settings(template(text))


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in data.many %}{% endfor %}",
        "{% for a in data.some %}{% for b in data.some %}{% endfor %}{% endfor %}",
        "{% for a in data.some %}{{ a|upper|lower|upper|lower|upper|lower }}{% endfor %}",
        "{% for a in data.some %}{{ data.long }}{% endfor %}",
        "{% if data.quotes" + "|json" * 10 + " %}{% endif %}",
        "{% for a in data.quotes %}{% endfor %}",
        "{{ data.some|join(data.long) }}",
        "{{ data.long|truncate('x') }}",
        "{{ data.long < 1 }}",
        "{{ 'x' in data.long }}",
        "{{ 'x' not in data.long }}",
        "{% for a in data.some %}" + "{% if a in data.some %}{% endif %}" * 5 + "{% endfor %}",
        "{{ data|join(*data.some) }}",
    ],
)
def test_a_template_that_does_too_much_fails_by_itself(text: str) -> None:
    data = {"many": [1] * 501, "some": [1] * 100, "long": "x" * 1000, "quotes": '"' * 100}
    check_settings(template(text))
    with pytest.raises(UsageError, match=r"template|loop|filter|in looks"):
        render(text, Message(number=1, type="x", at_us=0, namespace="n", data=data))


@pytest.mark.parametrize("name", ["items", "keys", "__class__", "clear", "__len__", "upper", "real"])
def test_attributes_are_those_of_json_alone(name: str) -> None:
    # The check refuses underscores already, so this asks the environment.
    from mainspring.webhooks.templates import _ENVIRONMENTS

    for value in ({"a": 1}, [1], "text", 1):
        assert not _ENVIRONMENTS[True].getattr(value, name)
        assert not _ENVIRONMENTS[True].getitem(value, name)
    assert _ENVIRONMENTS[True].getattr({name: 5}, name) == 5


def test_only_the_format_template_has_a_template() -> None:
    check_settings(STANDARD)
    with pytest.raises(UsageError, match="has no template"):
        check_settings(BodySettings(Format.CLOUDEVENTS, "x"))
    with pytest.raises(UsageError, match="slack, discord, teams"):
        check_settings(BodySettings(Format.TEMPLATE))

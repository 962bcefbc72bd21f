"""The reference is complete: it describes all commands, settings, names and packets of the program, and no others."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any, get_args

import pytest

import mainspring
from mainspring import api, elsewhere, errors
from mainspring.api.request import Code, Request
from mainspring.client.app import AppClient
from mainspring.client.job import Job
from mainspring.client.options import Retry
from mainspring.client.run import Run
from mainspring.client.submission import Submission
from mainspring.definitions import Workflow
from mainspring.faces.gearman import calls, work_calls
from mainspring.wire.gearman_protocol import PLAIN, Type
from mainspring.worker.current import CurrentJob
from mainspring.workflow_code.channels import Channel
from mainspring.workflows.history import Event
from mainspring.workflows.messages import DecidedMessage, DecideMessage, SettlementMessage
from mainspring.workflows.model import About, Parked
from mainspring.workflows.requests import Decision, StepResult

from .cli_help import documented, help_text, help_texts
from .pages import DOCS, ROOT

REFERENCE = DOCS / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    return help_texts()


def test_every_command_has_its_help(helps: dict[str, str]) -> None:
    """To repair the page, run: python -m tests.docs.cli_help."""
    assert documented() == helps


def test_help_fits_80_columns(helps: dict[str, str]) -> None:
    assert [(command, line) for command, text in helps.items() for line in text.splitlines() if len(line) > 79] == []


def test_examples_are_continued_with_backslashes(helps: dict[str, str]) -> None:
    example = helps["schedules add"].replace(" \\\n      ", " ")
    assert (
        '\n  mainspring schedules add nightly --cron "30 2 * * *" --timezone Europe/Berlin --function report\n'
        in example
    )


@pytest.mark.parametrize("command", ["", "serve", "jobs", "jobs show", "gearmand"])
def test_a_separate_process_prints_the_same(helps: dict[str, str], command: str) -> None:
    assert help_text(command) == helps[command]


def test_every_variable_is_in_the_settings(helps: dict[str, str]) -> None:
    text = " ".join(helps.values())
    variables = set(re.findall(r"MAINSPRING_[A-Z_]+", re.sub(r"environment:\s+", "", text))) | {"MAINSPRING_CONFIG"}
    variables.discard("MAINSPRING_")
    assert set(re.findall(r"`(MAINSPRING_[A-Z_]+)`", page("settings.md"))) == variables


def test_every_public_name_is_in_the_python_api() -> None:
    text = page("python-api.md") + page("errors.md")
    missing = [name for name in (*mainspring.__all__, *elsewhere.__all__) if not re.search(rf"\b{name}\b", text)]
    assert missing == []


@pytest.mark.parametrize(
    "kind",
    [mainspring.App, AppClient, Job, Retry, Submission, Workflow, Run, Channel, CurrentJob],
    ids=lambda kind: kind.__name__,
)
def test_every_method_and_parameter_is_in_the_python_api(kind: type) -> None:
    text = page("python-api.md")
    inner = {
        "allows",
        "wire",
        "ask_to_stop",
        "raw",
        "servers",
        "registry",
        "connections",
        "decode",
        "encode",
        "origin",
        "info",
        "waits",
        "continues",
        "loop",
        "activity",
        "check_call",
        "surround",
        "is_closing",
    }
    names = {name for name in vars(kind) if not name.startswith("_")} - inner
    for method in ("options", "task", "workflow", "signal", "__init__"):
        of = (
            {mainspring.App, Retry, Submission} if method == "__init__" else {mainspring.App, Submission, Workflow, Run}
        )
        if kind in of and method in vars(kind):
            names |= set(inspect.signature(getattr(kind, method)).parameters)
    names -= {"self", "call"} | (
        {"name", "codec", "connections", "inbox", "key", "check", "activity_option"} if kind is Submission else set()
    )
    assert sorted(name for name in names if f"`{name}" not in text and f".{name}" not in text) == []


def test_every_error_is_in_the_tree() -> None:
    text = page("errors.md")
    kinds = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]
    assert [name for name in kinds if name not in text] == []


def test_every_packet_is_in_the_gearman_reference() -> None:
    text = page("gearman.md")
    assert [kind for kind in sorted(PLAIN) if f"`{Type(kind).name}`" not in text] == []


def test_every_packet_of_the_extension_is_in_its_specification() -> None:
    text = page("protocol.md")
    specified = {kind for kind in Type if f"| {kind.value} | `{kind.name}` |" in text}
    assert specified == {kind for kind in Type if kind >= 1000}


@pytest.mark.parametrize(("union", "common"), [(Event, ("id", "at_us")), (Decision, ("number",))])
def test_every_event_and_decision_is_in_the_specification(union: Any, common: tuple[str, ...]) -> None:
    text = page("protocol.md")
    for kind in get_args(union):
        fields = kind.__struct_fields__
        assert fields[: len(common)] == common
        further = ", ".join(f"`{name}`" for name in fields[len(common) :])
        assert f"| {kind.__struct_config__.tag} | `{kind.__name__}` | {further} |" in text, (
            "the order of fields is the format"
        )


@pytest.mark.parametrize("message", [DecideMessage, DecidedMessage, StepResult, SettlementMessage, Parked, About])
def test_the_fields_of_reports_are_in_the_specification(message: Any) -> None:
    text = page("protocol.md")
    names = [{"token": "lease"}.get(name, name) for name in message.__struct_fields__]
    if message is DecideMessage:
        rows = text.partition("| field | meaning |")[2].partition("\n\n")[0]
        assert re.findall(r"\w+", " ".join(re.findall(r"^\| ([\w, ]+) \|", rows, re.MULTILINE))) == names
    else:
        assert f"`[{', '.join(names)}]`" in text


def source(*parts: str) -> str:
    """Return the source of a part of the package."""
    paths = sorted(ROOT.joinpath("src/mainspring", *parts).rglob("*.py"))
    return "\n".join(
        path.read_text("utf-8") for path in paths if "conformance" not in path.parts
    )  # has examples of errors


def test_every_code_of_the_wire_is_among_the_errors() -> None:
    packets = {kind.name for kind in Type}
    codes = set(re.findall(r'"([A-Z]+_[A-Z_]+|UNSUPPORTED)"', source("wire") + source("faces", "gearman"))) - packets
    assert codes == set(re.findall(r"^\| `([A-Z_]+)` \|", page("errors.md"), flags=re.MULTILINE))


def test_every_code_of_a_call_is_among_the_errors_with_its_class_and_its_status() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| `([a-z_]+)` \| (\d+) \| (\d) \|", page("errors.md"), flags=re.MULTILINE)
    assert rows == [(code.value, code.kind.value, str(code.status), str(code.kind.exit_code)) for code in Code]


def test_every_call_is_in_the_specification_of_the_extension() -> None:
    names = [module.name for module in pkgutil.iter_modules(api.__path__, f"{api.__name__}.") if not module.ispkg]
    modules = [*map(importlib.import_module, names), calls, work_calls]
    kinds = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    named = {kind.call for kind in kinds if issubclass(kind, Request) and kind.call}
    rows = "\n".join(re.findall(r"^\| (`(?:[a-z]+\.[a-z_]+|whoami)`.*?) \|", page("protocol.md"), flags=re.MULTILINE))
    assert named == set(re.findall(r"`([a-z]+\.[a-z_]+|whoami)`", rows))


def test_every_type_of_a_failed_attempt_is_among_the_errors() -> None:
    kinds = set(re.findall(r'\b(?:Job|_)?[fF]ailure\(\s*"(\w+)"', source()))
    assert {"Timeout", "WorkerLost", "ProcessDied"} <= kinds
    assert [kind for kind in sorted(kinds) if f"| `{kind}` |" not in page("errors.md")] == []


def test_every_metric_is_on_the_page_about_monitoring() -> None:
    text = (DOCS / "how-to" / "monitor.md").read_text("utf-8")
    metrics = set(re.findall(r'"(mainspring_[a-z_]+)"', source("server")))  # and one that the HTTP face adds
    assert len(metrics) > 10
    assert set(re.findall(r"`(mainspring_[a-z_]+)", text)) == metrics | {"mainspring_build_info"}


def test_every_part_of_the_package_is_in_the_architecture() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text("utf-8")
    parts = {path.stem for path in (ROOT / "src" / "mainspring").iterdir() if path.suffix in {"", ".py"}}
    rows = " ".join(re.findall(r"^\| (`.+?) \|", text, flags=re.MULTILINE))
    assert sorted(part for part in parts if not part.startswith("__") and f"`{part}`" not in rows) == []

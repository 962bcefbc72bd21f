"""The output and exit codes of commands that need no server."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.main import COMMANDS, SUBCOMMANDS, OptionNames, build_app, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STORE", "SERVER", "CONFIG", "GEARMAN", "INSECURE"):
        monkeypatch.delenv(f"MAINSPRING_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = main(line.split())
    captured = capsys.readouterr()
    return code, captured.out, captured.err


WRONG_USAGE = [
    ("serve --strategy hash", "the known ones are default, id_hash"),
    ("serve --strategy missing.py:mine", "--strategy: there is no file"),
    ("serve --gearmn x", "Did you mean --gearman?"),
    ("serv", 'Did you mean "serve"?'),
    ("jobs lst", 'Did you mean "list"?'),
    ("serve --store", "--store"),
    ("serve extra", "extra"),
    ("serve --store jobs.db", "sqlite:///jobs.db"),
    ("serve --store mysql://x/y", "does not have"),
    ("serve --gearman nonsense:x", "is not an address"),
    ("serve --gearman 0.0.0.0:4730", "--insecure"),
    ("serve --http 0.0.0.0:80", "--insecure"),
    ("serve --gearman [::]:0", "[::]:0 can be reached"),
    ("serve --gearman 127.0.0.1:1 --gearman 127.0.0.1:2", "with commas between"),
    ("serve --http 127.0.0.1", "has no port"),
    ("serve --retention 5", "--retention: '5' is not a duration"),
    ("serve --max-packet x", "is not a size"),
    ("serve --max-packet 1", "--max-packet: 1 is too small for a job: give 8K or more"),
    ("serve --max-connections -1", "--max-connections: -1 is negative: give 1 or more, or 0 for"),
    ("serve --max-connections many", "--max-connections: 'many' is not a whole number"),
    ("serve --job-retries -1", "--job-retries: -1 is negative: give 0 or more"),
    ("serve --idle-timeout 0s", "--idle-timeout: 0s would disconnect working clients: give 1s or more"),
    ("serve --workflow-timeout 400d", "--workflow-timeout: 400d is no limit for runs: give 1s to 366d"),
    ("serve --workflow-events 10", "--workflow-events: 10 is no limit for histories: give 2000 to 1000000"),
    ("run app.py --workflow-open 0", "--workflow-open: 0 is no limit for open activities: give 1 to 10000"),
    ("serve --lease 1ms", "--lease: 1ms ends before a heartbeat is stored: give 1s or more"),
    ("run app.py --lease 0", "--lease: 0 ends before"),
    ("worker app.py --max-jobs 0", "--max-jobs: 0 would never run a job: give 1 or more"),
    ("worker app.py --max-memory 1K", "give more than 32M, such as 512M"),
    ("run app.py --max-memory 0", "--max-memory: 0 is less than a process uses"),
    ("serve --name a:b", "not a valid name for a node"),
    ("serve --tls-cert x", "belong together"),
    ("serve --tls-client-ca x", "--tls-cert"),
    ("serve --log-level loud", "not a log level"),
    ("submit", "FUNCTION"),
    ("submit f --backgroud", "there is no option --backgroud"),
    ("submit f --delay 5", "--delay: '5' is not a duration"),
    ("submit f --run-at noon", "--run-at: 'noon' is not a time"),
    ("submit f --delay 5s --run-at 2030-01-01", "exclude each other"),
    ("submit f --priority urgent", "high"),
    ("submit f --max-attempts 0", "max_attempts"),
    ("submit f --server a:b", "is not a server's address"),
    ("submit f --tls-cert x", "--tls-ca"),
    ("jobs list --state lost", "pending"),
    ("jobs show", "HANDLE"),
    ("worker missing.py", "there is no file missing.py"),
    ("worker missing.py --processes 0", "at least 1"),
    ("run missing.py", "there is no file missing.py"),
    ("backup copy.db --store memory://", "memory"),
    ("backup copy.db --store sqlite:///missing.db", "there is no store"),
    ("import missing.db", "there is no file missing.db"),
    ("gearmand -L 0.0.0.0", "--insecure"),
]


@pytest.mark.parametrize(("line", "words"), WRONG_USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith("mainspring: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "line", ["gearmand --nope", "gearmand -p x", "gearmand -q MySQL", "gearmand --config-file=missing"]
)
def test_wrong_options_of_gearmand_have_its_exit_code(capsys: pytest.CaptureFixture[str], line: str) -> None:
    code, out, err = run(capsys, line)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("mainspring: gearmand: ")


@pytest.mark.parametrize(
    "line",
    ["status", "submit f", "submit f --background", "jobs list", "jobs show H:a:1", "jobs watch", "jobs cancel H:a:1"],
)
def test_no_server_is_exit_code_3(capsys: pytest.CaptureFixture[str], free_port: int, line: str) -> None:
    code, out, err = run(capsys, f"{line} --server 127.0.0.1:{free_port}")
    assert (code, out) == (3, "")
    assert "no server could be reached" in err
    assert "mainspring serve" in err


def test_check_args_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    line = "gearmand --check-args --verbose= --log-file= --pid-file= --port= -u root --listen=localhost --job-retries=1"
    assert run(capsys, f"{line} --round-robin --exceptions -t 4") == (0, "", "")


@pytest.mark.parametrize(
    "command",
    ["", *COMMANDS, "gearmand", *(f"{command} {name}" for command, names in SUBCOMMANDS.items() for name in names)],
)
def test_help_reads_like_a_manual_page(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = run(capsys, f"{command} --help".strip())
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: mainspring {command}".rstrip())
    assert "::" not in out.replace("memory://", "")
    assert run(capsys, f"help {command}".strip())[1] == out or command == "gearmand"


def test_help_lists_the_commands_with_their_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--help")[1]
    for command, (_, _, purpose) in COMMANDS.items():
        assert f"  {command}" in out
        assert purpose.split()[0] in out
    assert run(capsys, "")[1] == out


def test_help_lists_the_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    sections = [part.splitlines() for part in run(capsys, "--help")[1].strip().split("\n\n")]
    listed = {
        head: [line.split()[0] for line in lines if line[2] != " "] for head, *lines in sections if head.isupper()
    }
    del listed["EXIT CODES"]
    assert listed == {
        "SERVERS AND WORKERS": ["run", "serve", "worker", "gearmand"],
        "JOBS": [
            "submit",
            "jobs",
            "operations",
            "schedules",
            "workflows",
            "functions",
            "completions",
            "resources",
            "events",
            "listeners",
            "webhooks",
        ],
        "NODES AND STORES": ["status", "nodes", "workers", "migrate", "backup", "move-runs", "import"],
        "ACCESS": ["tokens", "audit", "marks", "whoami"],
        "OPTIONS": ["--help,", "--version"],
    }


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.strip()
    assert "1.1.20" in run(capsys, "gearmand -V")[1]


def test_every_option_can_be_named_in_the_file() -> None:
    names = OptionNames(build_app())
    assert {"store", "gearman", "retention"} <= names["serve"]
    assert {"server", "unique"} <= names["submit"]
    assert {"processes", "store"} <= names["run"]
    assert "libsqlite3-db" in names["gearmand"]
    assert set(names) == {*COMMANDS, "gearmand"}
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_supervisor_loads_no_worker(command: str) -> None:
    program = f"import sys, mainspring.cli.{command}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {
        "mainspring.worker.runtime",
        "mainspring.workflow_code.loop",
        "mainspring.server.build",
        "mainspring.server.engines",
    }
    assert not heavy & set(done.stdout.split())


def test_a_file_of_common_options_loads_no_other_command(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('store = "memory://"\nserver = "127.0.0.1:1"\nlease = "3s"\n')
    program = "import sys; from mainspring.cli.main import main; main(['status']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {"mainspring.cli.nodes", "mainspring.cli.serve"} <= set(done.stdout.split())
    heavy = {"mainspring.server.build", "mainspring.server.engines", "mainspring.worker.runtime"}
    heavy |= {"mainspring.cli.jobs", "mainspring.cli.run"}
    assert not heavy & set(done.stdout.split())


def test_an_empty_variable_is_no_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("MAINSPRING_TLS_CA", "")
    assert run(capsys, f"status --server 127.0.0.1:{free_port}")[0] == 3


def test_the_help_describes_which_options_have_a_variable(capsys: pytest.CaptureFixture[str]) -> None:
    everywhere = {"--server", "--namespace", "--request-timeout", "--store", "--tls-ca", "--tls-cert", "--tls-key"}
    app = build_app()
    for command in COMMANDS:
        for part in [app[command][name] for name in SUBCOMMANDS[command]] if command in SUBCOMMANDS else [app[command]]:
            for argument in part.assemble_argument_collection():
                if argument.name.startswith("--"):
                    is_grant = (command, argument.name) == (
                        "migrate",
                        "--namespace",
                    )  # a right is never given by a variable
                    expected = command in {"run", "serve", "worker"} or (argument.name in everywhere and not is_grant)
                    assert bool(argument.parameter.env_var) is expected, (command, argument.name)
    _, out, _ = run(capsys, "--help")
    text = " ".join(out.split())
    assert (
        "options of run, serve and worker, and in all commands those that name a server, a namespace, the limit of a request, a "
        "store or TLS files" in text
    )


@pytest.mark.parametrize(
    ("used", "unwanted"),
    [
        (
            ", ".join(f"mainspring.cli.{name}" for name in ("functions", "jobs", "nodes", "schedules")),
            {"asyncio", "importlib.metadata", "mainspring.cli.node", "mainspring.api.handlers", "zoneinfo"},
        ),
        ("mainspring.cli.serve, mainspring.server.serving", {"prometheus_client", "starlette", "uvicorn"}),
    ],
)
def test_a_command_does_not_load_modules_that_it_does_not_need(used: str, unwanted: set[str]) -> None:
    """A command spends most of its time on its start, and loaded modules stay in a node's memory."""
    program = f"import sys, mainspring.cli.main, {used}\nprint(*{unwanted} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--error", "", "--result", "1"], "--result or --error"), (["--no-retry"], "--no-retry is for a failure")],
)
def test_a_completion_by_hand_is_a_result_or_a_failure(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["completions", "finish", "H:node:1", *options]) == 2
    assert message in capsys.readouterr().err

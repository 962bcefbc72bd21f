"""A command in a directory of other people takes no settings from there, and imports no modules."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import mainspring
from mainspring.cli import defaults
from mainspring.cli import main as cli
from mainspring.cli.defaults import load_defaults
from mainspring.cli.options import ServerOptions
from mainspring.errors import SettingsError
from tests.system.processes import START_TIMEOUT, environment, started

SOURCES = Path(mainspring.__file__).parent
TOKEN = "ms_" + "A" * 48
OTHER = 65534
FILE = "mainspring.toml"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("MAINSPRING_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)


def write(text: str = 'server = "127.0.0.1:1"\n') -> Path:
    path = Path(FILE)
    path.write_text(text)
    path.chmod(0o644)
    return path


def server_of(*arguments: str) -> str:
    """Return the servers that a command would send its token to."""
    app = cli.build_app(load_defaults())
    _, bound, _ = app.parse_args(["status", *arguments], exit_on_error=False, print_error=False)
    options = bound.arguments.get("server", ServerOptions())
    assert isinstance(options, ServerOptions)
    return options.server


# ---- whose file it is ----


def test_a_file_of_the_user_in_its_own_directory_is_read() -> None:
    path = write()
    assert load_defaults().found
    path.chmod(0o600)
    assert load_defaults().found


@pytest.mark.parametrize(("mode", "directory"), [(0o646, 0o700), (0o644, 0o703), (0o666, 0o777)])
def test_a_file_that_others_can_change_or_replace_is_refused(tmp_path: Path, mode: int, directory: int) -> None:
    write().chmod(mode)
    tmp_path.chmod(directory)
    with pytest.raises(SettingsError, match=r"mainspring\.toml in .* is not read: every user may write to"):
        load_defaults()
    tmp_path.chmod(directory | stat.S_ISVTX)  # as /tmp: others cannot replace the file of this user
    if mode == 0o644:
        assert load_defaults().found


@pytest.mark.parametrize("where", ["file", "directory"])
def test_a_group_may_change_it_only_if_it_is_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = write()
    (path if where == "file" else tmp_path).chmod(0o770 if where == "directory" else 0o664)
    monkeypatch.setattr(defaults, "_is_private", lambda _: True)
    assert load_defaults().found
    if os.geteuid() != 0:
        pytest.skip("only root gives files to other groups")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    os.chown(path if where == "file" else tmp_path, -1, OTHER)
    with pytest.raises(SettingsError, match=r"the group \w+ may write to"):
        load_defaults()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize("what", ["file", "directory", "link", "target"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, what: str) -> None:
    path = write()
    if what in {"link", "target"}:
        target = path.rename("other.toml")
        path.symlink_to(target)
        assert load_defaults().found
        os.chown(path if what == "link" else target, OTHER, -1, follow_symlinks=what == "target")
    else:
        os.chown(path if what == "file" else tmp_path, OTHER, -1)
    with pytest.raises(SettingsError, match="belongs to the user"):
        load_defaults()


def test_a_file_that_the_environment_names_is_the_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    write('server = "jobs.example.com:4730"\n').chmod(0o666)
    monkeypatch.setenv("MAINSPRING_CONFIG", FILE)
    monkeypatch.setenv("MAINSPRING_TOKEN", TOKEN)
    assert server_of() == "jobs.example.com:4730"


def test_a_pipe_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / FILE).symlink_to("/dev/null")
    with pytest.raises(SettingsError, match="is no regular file"):
        load_defaults()


# ---- to whom the token goes ----


@pytest.mark.parametrize(
    "server",
    ["jobs.example.com:4730", "10.0.0.5:4730", "127.0.0.1:1,10.0.0.5:4730", "localhost.example.com:1", "[fe80::1]:1"],
)
def test_the_token_of_the_environment_goes_to_no_server_of_the_file(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    write(f'server = "{server}"\n')
    assert server_of() == server, "without a token, the file chooses"
    monkeypatch.setenv("MAINSPRING_TOKEN", TOKEN)
    with pytest.raises(SettingsError, match="only to servers that come from the same source") as caught:
        server_of()
    assert TOKEN not in str(caught.value)
    assert server_of("--server", "10.0.0.9:1") == "10.0.0.9:1"
    monkeypatch.setenv("MAINSPRING_SERVER", "10.0.0.8:1")
    assert server_of() == "10.0.0.8:1"


@pytest.mark.parametrize("server", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:none.sock", "127.8.8.8:2"])
def test_the_token_goes_to_servers_of_this_machine(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    write(f'server = "{server}"\n')
    monkeypatch.setenv("MAINSPRING_TOKEN", TOKEN)
    assert server_of() == server


def test_the_file_chooses_no_authority_for_the_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    write('tls_ca = "evil.pem"\n')
    monkeypatch.setenv("MAINSPRING_TOKEN", TOKEN)
    assert server_of() == "127.0.0.1:4730"
    monkeypatch.setenv("MAINSPRING_SERVER", "10.0.0.8:1")
    with pytest.raises(SettingsError, match="chooses --tls-ca"):
        server_of()
    monkeypatch.setenv("MAINSPRING_TLS_CA", "own.pem")
    assert server_of() == "10.0.0.8:1"


# ---- modules ----


def test_each_process_is_started_without_the_working_directory_in_its_path() -> None:
    starts = re.compile(r"sys\.executable|multiprocessing\.(?:Process|Pool)|ProcessPoolExecutor|runpy\.run")
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if starts.search(path.read_text())}
    programs = {"worker/processes.py", "cli/main.py", "elsewhere/processes.py"}
    assert found == programs, "start Python with `mainspring.worker.processes.python`"
    for name in found:
        for line in (SOURCES / name).read_text().splitlines():
            assert "sys.executable" not in line or '"-P"' in line or '"-I"' in line, line


PROGRAM = """\
import mainspring, sys
app = mainspring.App(store="sqlite:///jobs.db")
@app.task(executor="process")
def path() -> list: return sys.path
"""


def test_no_process_of_a_command_imports_modules_of_the_working_directory(tmp_path: Path) -> None:
    foreign, own = tmp_path / "foreign", tmp_path / "own"
    foreign.mkdir()
    own.mkdir()
    (own / "app.py").write_text(PROGRAM)
    for name in ("structlog", "msgspec", "uvloop", "sitecustomize", "usercustomize", "json", "asyncio", "cyclopts"):
        (foreign / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    script = shutil.which("mainspring", path=Path(sys.executable).parent)
    assert script is not None
    arguments = [script, "run", str(own / "app.py"), "--gearman", "127.0.0.1:0", "--store", f"sqlite:///{own}/j.db"]
    with started(arguments, cwd=foreign) as node:
        node.await_functions("path")
        done = subprocess.run(
            [script, "submit", "path", "--server", node.address],
            cwd=foreign,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
            check=True,
        )
    assert f'"{foreign}"' not in done.stdout
    assert f'"{own}"' in done.stdout
    assert not (tmp_path / "imported").exists()

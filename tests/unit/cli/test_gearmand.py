from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.gearmand import gearmand, gearmand_settings
from mainspring.cli.gearmand_options import GearmandUsageError, parse_gearmand
from mainspring.errors import SettingsError
from mainspring.server.settings import TcpAddress

if TYPE_CHECKING:
    from mainspring.server.settings import ServerSettings


def settings(line: str) -> ServerSettings:
    return gearmand_settings(parse_gearmand(line.split()))


def test_the_default_is_a_store_in_memory_and_a_port_on_loopback() -> None:
    default = settings("")
    assert default.store.engine == "memory"
    assert default.listen.gearman == (TcpAddress("127.0.0.1", 4730),)
    assert default.listen.gearman_http is None
    assert default.jobs.job_retries is None
    assert default.jobs.worker_wakeup == 1
    assert default.keepalive.enabled
    assert default.banner == "1.1.20"
    default.check()


def test_ports() -> None:
    both = settings("-L 127.0.0.2 -p 4999 -r http --http-port=8081")
    assert both.listen.gearman == (TcpAddress("127.0.0.2", 4999),)
    assert both.listen.gearman_http == TcpAddress("127.0.0.2", 8081)
    assert settings("-r http").listen.gearman_http == TcpAddress("127.0.0.1", 8080)


@pytest.mark.parametrize(("value", "port"), [("4999", 4999), (" 4999", 4999), ("0", 0), ("ssh", 22), ("", 4730)])
def test_the_port_of_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, port: int) -> None:
    monkeypatch.setenv("GEARMAND_PORT", value)
    assert settings("").listen.gearman == (TcpAddress("127.0.0.1", port),)
    assert settings("--port=").listen.gearman == (TcpAddress("127.0.0.1", port),)
    assert settings("-p 4998").listen.gearman == (TcpAddress("127.0.0.1", 4998),)


@pytest.mark.parametrize("value", ["nope", "4999x", "70000", "-1"])
def test_an_invalid_port_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GEARMAND_PORT", value)
    with pytest.raises(GearmandUsageError, match=rf"the argument \('{value}'\) for GEARMAND_PORT is invalid"):
        settings("")


@pytest.mark.parametrize("file", ["jobs.db", "/var/lib/a b%20.db"])
def test_the_sqlite_queue_is_a_mainspring_store(file: str) -> None:
    store = gearmand_settings({"queue-type": "libsqlite3", "libsqlite3-db": file}).store
    assert (store.engine, store.path) == ("sqlite", Path(file))


def test_values() -> None:
    one = settings(
        "-j 3 -w 2 -R --exceptions -b 64 -f 500 --keepalive-idle 30 --keepalive-count=-1 --coredump -d -u root"
    )
    assert (one.jobs.job_retries, one.jobs.worker_wakeup, one.jobs.round_robin, one.jobs.exceptions) == (
        3,
        2,
        True,
        True,
    )
    assert one.listen.backlog == 64
    assert (one.keepalive.idle, one.keepalive.interval, one.keepalive.count) == (30, 15, 4)
    assert (one.process.max_files, one.process.core_dumps, one.process.daemon) == (500, True, True)
    assert one.process.user == "root"


@pytest.mark.parametrize("text", ["0", "-1", ""])
def test_no_limit_of_retries(text: str) -> None:
    assert settings(f"--job-retries={text}").jobs.job_retries is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ("error", None, True)),
        ("--verbose=", ("error", None, True)),
        ("--verbose=DEBUG -l stderr", ("debug", None, True)),
        ("--verbose INFO -l none", ("info", None, False)),
        ("-l /var/log/x.log", ("error", Path("/var/log/x.log"), True)),
    ],
)
def test_logs(line: str, expected: tuple[str, Path | None, bool]) -> None:
    log = settings(line).log
    assert (log.level, log.file, log.enabled) == expected


@pytest.mark.parametrize(("line", "answer"), [("", "ERROR"), ("--verbose=", "ERROR"), ("--verbose=NOTICE", "NOTICE")])
def test_the_admin_command_verbose_returns_the_level(line: str, answer: str) -> None:
    assert settings(line).verbosity == answer


def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEARMAND_SERVER_PEM", raising=False)
    tls = settings("--ssl --ssl-certificate=c --ssl-key=k --ssl-ca-file=a").listen.tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.client_ca) == (Path("c"), Path("k"), Path("a"))
    with pytest.raises(GearmandUsageError, match="--ssl-certificate"):
        settings("--ssl")


@pytest.mark.parametrize("queue", ["libpq", "postgres"])
def test_the_error_for_its_postgresql_queue_names_the_postgresql_store(queue: str) -> None:
    with pytest.raises(GearmandUsageError, match="use --store postgresql://"):
        settings(f"-q {queue}")


@pytest.mark.parametrize("queue", ["MySQL", "libdrizzle", "redis", "libmemcached"])
def test_the_error_for_another_queue_names_the_sqlite_queue(queue: str) -> None:
    with pytest.raises(GearmandUsageError, match="use -q libsqlite3 --libsqlite3-db=FILE"):
        settings(f"-q {queue}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-q nope", "initializing the queue : nope"),
        ("-q libsqlite3", "--libsqlite3-db=FILE"),
        ("-r nope", "Unknown protocol module : nope"),
        ("-p nope", r"the argument \('nope'\) for option '--port' is invalid"),
        ("-p 99999", "invalid"),
        ("--keepalive-idle 1x", "invalid"),
        ("--verbose=LOUD", "Invalid value for --verbose"),
        ("--job-handle-prefix=H:a:b", "--job-handle-prefix"),
    ],
)
def test_wrong_values(line: str, words: str) -> None:
    with pytest.raises(GearmandUsageError, match=words):
        settings(line)


def test_a_service_name_is_a_port() -> None:
    assert settings("-p ssh").listen.gearman == (TcpAddress("127.0.0.1", 22),)


def test_handles_begin_with_the_prefix() -> None:
    assert settings("--job-handle-prefix=H:web1").name == "web1"


def test_an_address_beyond_loopback_is_refused() -> None:
    with pytest.raises(SettingsError, match="--insecure"):
        settings("-L 0.0.0.0").check()
    settings("-L 0.0.0.0 --insecure").check()


def test_the_error_for_an_address_beyond_loopback_names_options_of_gearmand(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="give --ssl, --ssl-certificate, --ssl-key and --ssl-ca-file, listen on"):
        gearmand(["-L", "0.0.0.0"], {})
    with pytest.raises(SettingsError, match="without clients' certificates: give --ssl-ca-file, listen on"):
        gearmand(["-L", "0.0.0.0", "--ssl", "--ssl-certificate=c.pem", "--ssl-key=k.pem"], {})


def test_the_log_is_created_by_the_user_who_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "g.log"
    steps: list[tuple[str, bool]] = []

    async def serve(settings: ServerSettings, _ready: object) -> int:
        steps.append((f"served with {settings.log.file}", log.exists()))
        return 0

    monkeypatch.setattr("mainspring.cli.node.raise_limits", lambda *_, **__: None)
    monkeypatch.setattr("mainspring.cli.node.switch_user", lambda name: steps.append((f"now {name}", log.exists())))
    monkeypatch.setattr("mainspring.cli.gearmand.serve_node", serve)
    assert gearmand(["-L", "127.0.0.1", "-p", "0", "-u", "nobody", "-l", str(log)], {}) == 0
    assert steps == [("now nobody", False), (f"served with {log}", True)]
    assert not log.stat().st_mode & 0o007, "other users may not read it"
    log.unlink()
    log.mkdir()  # it cannot be opened as a file
    assert gearmand(["-L", "127.0.0.1", "-p", "0", "-l", str(log)], {}) == 0
    assert steps[2:] == [("served with None", True)]

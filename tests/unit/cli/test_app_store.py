"""An App is asked for its store in a process of its own."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.app_store import StoreAnswer, ask_store
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "from mainspring import App, ZooKeeper\n"


def ask(directory: Path, code: str, *, quiet: bool = False) -> StoreAnswer:
    path = directory / "tasks.py"
    path.write_text(HEAD + code)
    return asyncio.run(ask_store(str(path), quiet=quiet))


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ("", None),
        ("store='sqlite:///jobs.db'", "sqlite:///jobs.db"),
        ("store=ZooKeeper('zookeeper://u:p@zk1/jobs')", "zookeeper://u:p@zk1/jobs"),
    ],
)
def test_an_app_says_its_store(tmp_path: Path, given: str, store: str | None) -> None:
    assert ask(tmp_path, f"app = App({given})") == StoreAnswer(store=store)


def test_what_a_file_prints_is_not_the_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('{}', flush=True)\nimport os; os.write(1, b'[]')\napp = App(store='memory://')"
    assert ask(tmp_path, code).store == "memory://"
    assert capfd.readouterr() == ("", "{}\n[]")
    assert ask(tmp_path, code, quiet=True).store == "memory://"
    assert capfd.readouterr() == ("", "")


def test_threads_of_the_file_are_not_waited_for(tmp_path: Path) -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait).start()\napp = App(store='memory://')"
    assert ask(tmp_path, code).store == "memory://"


def test_a_file_that_cannot_be_imported_shows_where(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"importing .*tasks\.py failed: RuntimeError: oops"):
        ask(tmp_path, "raise RuntimeError('oops')")
    shown = capfd.readouterr().err
    assert 'tasks.py", line 2' in shown
    assert "importlib" not in shown
    assert "selector.py" not in shown


@pytest.mark.parametrize(
    ("code", "words"),
    [("x = 1", "defines no App"), ("raise SystemExit(3)", "ended its process with 3")],
)
def test_a_file_without_an_app_is_told(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ask(tmp_path, code)


async def _cancelled(path: Path, fifo: Path) -> int:
    asking = asyncio.create_task(ask_store(str(path)))
    pid = int(await asyncio.to_thread(fifo.read_text))
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    return pid


def test_nobody_waits_for_a_process_that_is_not_asked_any_more(tmp_path: Path) -> None:
    path, fifo = tmp_path / "tasks.py", tmp_path / "began"
    os.mkfifo(fifo)
    path.write_text(
        f"import os, pathlib, threading\npathlib.Path({str(fifo)!r}).write_text(str(os.getpid()))\nthreading.Event().wait()\n"
    )
    pid = asyncio.run(_cancelled(path, fifo))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

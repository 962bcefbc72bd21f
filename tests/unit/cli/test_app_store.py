"""The store of an App, read in a separate process."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.app_store import StoreAnswer, read_app_store
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "from mainspring import App, ZooKeeper\n"


FLOW = """
@app.workflow
async def {name}() -> None: ...
"""


def read_store(directory: Path, code: str, given: str = "", *, quiet: bool = False) -> StoreAnswer:
    path = directory / "tasks.py"
    path.write_text(HEAD + code)
    return asyncio.run(read_app_store(str(path), given, quiet=quiet))


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ("", None),
        ("store='sqlite:///jobs.db'", "sqlite:///jobs.db"),
        ("store=ZooKeeper('zookeeper://u:p@zk1/jobs')", "zookeeper://u:p@zk1/jobs"),
    ],
)
def test_the_store_of_an_app_is_returned(tmp_path: Path, given: str, store: str | None) -> None:
    assert read_store(tmp_path, f"app = App({given})") == StoreAnswer(store=store)


def test_workflows_are_named_for_a_store_that_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "flows_of_ours.py").write_text("from tasks import app\n" + FLOW.format(name="refund"))
    code = "app = App()\napp.include('flows_of_ours')\n@app.task\ndef pay(): ...\n" + FLOW.format(name="order")
    names = ["pay", "order", "refund"]
    assert read_store(tmp_path, code, "zookeeper://zk1/jobs") == StoreAnswer(names=names, workflows=["order", "refund"])
    for store in ("sqlite:///jobs.db", "postgresql://db/jobs"):
        own = code.replace("App()", f"App(store={store!r})")
        assert read_store(tmp_path, own).workflows == []
        assert read_store(tmp_path, own, "zookeeper://zk1/jobs").workflows == ["order", "refund"]


def test_output_of_the_file_is_not_part_of_the_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('{}', flush=True)\nimport os; os.write(1, b'[]')\napp = App(store='memory://')"
    assert read_store(tmp_path, code).store == "memory://"
    assert capfd.readouterr() == ("", "{}\n[]")
    assert read_store(tmp_path, code, quiet=True).store == "memory://"
    assert capfd.readouterr() == ("", "")


def test_threads_of_the_file_do_not_delay_the_answer(tmp_path: Path) -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait).start()\napp = App(store='memory://')"
    assert read_store(tmp_path, code).store == "memory://"


def test_a_failed_import_shows_its_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"importing .*tasks\.py failed: RuntimeError: oops"):
        read_store(tmp_path, "raise RuntimeError('oops')")
    shown = capfd.readouterr().err
    assert 'tasks.py", line 2' in shown
    assert "importlib" not in shown
    assert "selector.py" not in shown


@pytest.mark.parametrize(
    ("code", "words"),
    [("x = 1", "defines no App"), ("raise SystemExit(3)", "ended its process with 3")],
)
def test_a_file_without_an_app_is_refused(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_store(tmp_path, code)


async def _cancelled(path: Path, fifo: Path) -> int:
    asking = asyncio.create_task(read_app_store(str(path)))
    pid = int(await asyncio.to_thread(fifo.read_text))
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    return pid


def test_cancelling_the_request_ends_the_process(tmp_path: Path) -> None:
    path, fifo = tmp_path / "tasks.py", tmp_path / "began"
    os.mkfifo(fifo)
    path.write_text(
        f"import os, pathlib, threading\npathlib.Path({str(fifo)!r}).write_text(str(os.getpid()))\nthreading.Event().wait()\n"
    )
    pid = asyncio.run(_cancelled(path, fifo))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

from __future__ import annotations

import errno
import io

import pytest

from mainspring.cli.display import exit_code, explain, print_error
from mainspring.errors import (
    ConflictError,
    ConnectionLostError,
    JobCancelled,
    JobFailed,
    JobLost,
    NotFoundError,
    RefusedError,
    ServerError,
    SettingsError,
    StoreBusyError,
    StoreFullError,
)
from mainspring.server.sockets import PortError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed("H:a:1", "E", "x", None, 1), 1),
        (JobCancelled("H:a:1", "cancelled"), 1),
        (ConflictError("it has not ended"), 1),
        (RefusedError("QUEUE_FULL", "full"), 1),
        (RefusedError("ARGUMENT_TOO_LARGE", "a unique has at most 64 bytes"), 2),
        (RefusedError("INVALID_ARGUMENTS", "more than a century away"), 2),
        (RefusedError("INVALID_FUNCTION_NAME", "a job needs the name of a function"), 2),
        (StoreFullError("full"), 1),
        (PortError("in use"), 1),
        (SettingsError("wrong"), 2),
        (ConnectionLostError("gone"), 3),
        (ServerError("no extension"), 3),
        (NotFoundError("none"), 4),
        (JobLost("H:a:1", "unknown"), 4),
        (TimeoutError("late"), 5),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_the_remedy_is_given_once() -> None:
    assert "mainspring serve" in explain(ConnectionLostError("no server could be reached (a:1: Connection refused)"))
    assert explain(ConnectionLostError("the connection broke")) == "the connection broke"
    assert explain(StoreBusyError("x.db is in use")).endswith("--store")
    assert explain(StoreBusyError("x.db is in use; stop that one")) == "x.db is in use; stop that one"


def test_a_server_of_another_kind_is_recognised_and_the_remedy_given() -> None:
    remedy = "; name the Gearman port of a Mainspring server with --server or MAINSPRING_SERVER"
    other = "the server does not support Mainspring's extension: it answers 'x'"
    assert explain(ServerError(other)) == f"{other}{remedy}"
    silent = "the server accepted the connection and did not answer"
    assert explain(ConnectionLostError(silent)) == f"{silent}: it hangs, or is not a Mainspring server{remedy}"


def test_errors_of_the_system_name_the_file() -> None:
    assert explain(PermissionError(errno.EACCES, "Permission denied", "/x")).startswith("/x: permission denied;")
    assert explain(OSError(errno.ENOSPC, "No space left on device")).startswith("no space is left")
    assert explain(OSError(errno.EIO, "Input/output error", "/x")) == "/x: Input/output error"


def test_an_error_is_printed_as_one_line_without_control_characters() -> None:
    stream = io.StringIO()
    print_error(explain(JobFailed("H:a:1", "ValueError", "two\nlines \x1b[31m", None, 2)), stream=stream)
    assert stream.getvalue() == "mainspring: job H:a:1 failed at attempt 2: ValueError: two lines \\x1b[31m\n"

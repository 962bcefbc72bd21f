"""The HTTP port of a whole node, and the lines that it prints about it at a terminal."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from tests import commands

from .processes import START_TIMEOUT, command, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINK = rb"^sign in[^\n]*: http://([^/\s]+)(\S+)\r?\n"
TOKEN = rb"token for the HTTP API[^\n:]*: (\S+)\r?\n"


class Printed(NamedTuple):
    """The lines that a node prints about its HTTP port."""

    address: str
    """Of its HTTP port."""
    link: str
    """The path and the query of the link that signs in."""
    token: str = ""
    """The token of the start, if the store keeps none."""


@contextlib.contextmanager
def at_a_terminal(*arguments: str, cwd: Path, token: bool = False) -> Iterator[Printed]:
    """Run a node whose output is a terminal; yield what it prints, with ``token`` also the token of the start."""
    pattern = re.compile(LINK + TOKEN if token else LINK, re.MULTILINE)
    ours, theirs = os.openpty()
    with (cwd / "node.log").open("wb") as errors:
        process = commands.start(
            command(*arguments), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors
        )
    os.close(theirs)
    try:
        seen = b""
        while (found := pattern.search(seen)) is None:
            assert select.select([ours], [], [], START_TIMEOUT)[0], f"it has printed no more than {seen.decode()!r}"
            seen += os.read(ours, 4096)
        yield Printed(*(group.decode() for group in found.groups()))
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)


def ask(
    address: str, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        head = {name.lower(): value for name, value in answer.getheaders()}
        is_json = "json" in head.get("content-type", "")
        return answer.status, head, json.loads(content) if is_json else content
    finally:
        connection.close()


def sign_in(address: str, **form: str) -> tuple[int, str]:
    """Send the form of a browser that signs in; return the status, and the cookie if there is one."""
    browser = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}
    status, head, _ = ask(address, "POST", "/login", urlencode(form), **browser)
    return status, head.get("set-cookie", "").partition(";")[0]

"""The options of gearmand's command line."""

from __future__ import annotations

import re
import subprocess

from mainspring.cli.gearmand_options import OPTIONS
from tests.conftest import find_program


def test_every_option_of_gearmand_is_supported() -> None:
    listed = subprocess.run([find_program("gearmand"), "--help"], capture_output=True, text=True, check=False).stdout
    theirs = set(re.findall(r"^  (?:-(\w) \[ )?--([a-z0-9-]+)", listed, re.MULTILINE))
    theirs |= {(short, name) for short, name in re.findall(r"^  -(\w) \[ --([a-z0-9-]+) \]", listed, re.MULTILINE)}
    ours = {(option.short or "", option.name) for option in OPTIONS}
    assert theirs
    assert not theirs - ours

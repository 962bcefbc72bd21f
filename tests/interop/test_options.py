"""The options of gearmand's command line."""

from __future__ import annotations

import re
import subprocess

from mainspring.cli.gearmand_options import GEARMAND_OPTIONS
from tests.conftest import find_program


def test_every_option_of_gearmand_is_supported() -> None:
    listed = subprocess.run([find_program("gearmand"), "--help"], capture_output=True, text=True, check=False).stdout
    gearmand_options = set(re.findall(r"^  (?:-(\w) \[ )?--([a-z0-9-]+)", listed, re.MULTILINE))
    gearmand_options |= {
        (short, name) for short, name in re.findall(r"^  -(\w) \[ --([a-z0-9-]+) \]", listed, re.MULTILINE)
    }
    supported = {(option.short or "", option.name) for option in GEARMAND_OPTIONS}
    assert gearmand_options
    assert not gearmand_options - supported

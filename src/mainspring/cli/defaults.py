"""``mainspring.toml``: values of options, which override the built-in defaults; the environment overrides them.

::

    store = "sqlite:////var/lib/mainspring/jobs.db"  # any option of any command, without its dashes
    server = ["10.0.0.5:4730", "10.0.0.6:4730"]  # a list is equivalent to text with commas

    [worker]  # for one command only
    concurrency = 16

The file is in the working directory; MAINSPRING_CONFIG names another file.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Token

from mainspring.cli.suggestions import did_you_mean
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cyclopts import App, ArgumentCollection

FILE_VARIABLE = "MAINSPRING_CONFIG"
FILE_NAME = "mainspring.toml"


class Defaults:
    """The content of the file: keys for all commands, and tables for single commands."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self.path = path
        self.found = bool(content)
        self._shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        self._tables = {key: value for key, value in content.items() if isinstance(value, dict)}

    def check(self, options: Mapping[str, frozenset[str]]) -> None:
        """Raise SettingsError for a key that is not an option, or a table that is not a command.

        ``options`` maps each command to the names of its options, without leading dashes. A command's names are read only
        while there are keys that the commands before it do not have: reading them loads the command.
        """
        unknown = {_dashed(key) for key in self._shared}
        for command in options:
            if not unknown:
                break
            unknown -= options[command]
        if unknown:
            all_options = frozenset[str]().union(*options.values())
            for key in self._shared:
                self._check_key(key, all_options, "")
        for table, keys in self._tables.items():
            if table not in options:
                raise SettingsError(f"{self.path}: the table [{table}] is not a command{did_you_mean(table, options)}")
            for key in keys:
                self._check_key(key, options[table], f" in [{table}]")

    def _check_key(self, key: str, options: frozenset[str], where: str) -> None:
        if _dashed(key) not in options:
            raise SettingsError(f"{self.path}: {key!r}{where} is not an option{did_you_mean(_dashed(key), options)}")

    def of_command(self, command: str) -> dict[str, str]:
        """Return the text of each option that the file sets for a command. Its own table overrides the shared keys."""
        merged = {**self._shared, **self._tables.get(command, {})}
        return {_dashed(key): self._text(key, value) for key, value in merged.items()}

    def of_gearmand(self) -> dict[str, str]:
        """Return the same for ``mainspring gearmand``, whose flags have no value: false ones are left out."""
        own = self._tables.get("gearmand", {})
        merged = {key: value for key, value in self._shared.items() if key in {"store", "insecure"}} | own
        texts = {_dashed(key): (value, self._text(key, value)) for key, value in merged.items()}
        return {key: "" if value is True else text for key, (value, text) in texts.items() if value is not False}

    def _text(self, key: str, value: object) -> str:
        match value:
            case bool():
                return "true" if value else "false"
            case str() | int() | float():
                return str(value)
            case list():
                return ",".join(self._text(key, part) for part in value)
            case _:
                raise SettingsError(f"{self.path}: the value of {key!r} must be text, a number, true, false or a list")

    def __call__(self, _app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Set the options that neither the command line nor the environment sets: a configuration hook of cyclopts."""
        values = self.of_command(commands[0]) if commands else {}
        for argument in arguments:
            for name in argument.names or ():
                value = values.get(name.removeprefix("--"))
                if value is not None and not argument.tokens:
                    source = f"{self.path}: {name.removeprefix('--')}"
                    argument.append(Token(keyword=source, value=value, source=str(self.path)))


def load_defaults() -> Defaults:
    """Read the file, if there is one.

    Raises SettingsError if it cannot be read or is not TOML, or if MAINSPRING_CONFIG names a file that does not exist.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named or FILE_NAME)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{FILE_VARIABLE} names {named}, which does not exist") from None
        content = {}
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    return Defaults(path, content)


def _dashed(key: str) -> str:
    return key.replace("_", "-")

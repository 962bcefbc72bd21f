"""``mainspring.toml``: values of options, which override the built-in defaults; the environment overrides them.

::

    store = "sqlite:////var/lib/mainspring/jobs.db"  # any option of any command, without its dashes
    server = ["10.0.0.5:4730", "10.0.0.6:4730"]  # a list is equivalent to text with commas

    [worker]  # for one command only
    concurrency = 16

The file is in the working directory; MAINSPRING_CONFIG names another file.

A command may be started in a directory of other people, such as a download. So a file that is only found must be of this user
or of root, and others must not be able to change it. It chooses no server for a token of the environment, except on this machine:
the token could otherwise go to a server of the directory's author. A file that MAINSPRING_CONFIG names is the user's choice.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.cli.display import did_you_mean
from mainspring.client.environment import DEFAULT_SERVER, TOKEN_VARIABLE, parse_servers
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cyclopts import App, ArgumentCollection

    from mainspring.client.environment import Address

FILE_VARIABLE = "MAINSPRING_CONFIG"
FILE_NAME = "mainspring.toml"


class Defaults:
    """The content of the file: keys for all commands, and tables for single commands."""

    def __init__(self, path: Path, content: Mapping[str, Any], *, named: bool = True) -> None:
        """``named``: the environment names the file."""
        self.path = path
        self._named = named
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
        from cyclopts import Token  # noqa: PLC0415 - slow to load, and `mainspring --help` does without

        values = self.of_command(commands[0]) if commands else {}
        given: dict[str, str] = {}
        for argument in arguments:
            for name in argument.names or ():
                value = values.get(name.removeprefix("--"))
                if value is not None and not argument.tokens:
                    given[name] = value
                    source = f"{self.path}: {name.removeprefix('--')}"
                    argument.append(Token(keyword=source, value=value, source=str(self.path)))
        if not self._named and os.environ.get(TOKEN_VARIABLE):
            self._check_token(given, arguments)

    def _check_token(self, given: Mapping[str, str], arguments: ArgumentCollection) -> None:
        """Raise SettingsError if the file, and not the token's source, decides which server reads the token."""
        chosen = next((name for name in ("--server", "--tls-ca") if name in given), None)
        if chosen is None:
            return
        servers = [
            token.value for argument in arguments if "--server" in (argument.names or ()) for token in argument.tokens
        ]
        for address in parse_servers(",".join(servers) or DEFAULT_SERVER):
            if not _is_of_this_machine(address):
                raise SettingsError(
                    f"{self.path} chooses {chosen} {given[chosen]}, and the environment has {TOKEN_VARIABLE}: the token is sent"
                    f" only to servers that come from the same source. Set MAINSPRING_{_variable(chosen)} or give {chosen}; or"
                    f" set {FILE_VARIABLE}={self.path} if you trust all of this file"
                )


def load_defaults() -> Defaults:
    """Read the file, if there is one.

    Raises SettingsError if it cannot be read or is not TOML, if MAINSPRING_CONFIG names a file that does not exist, or if the
    file in the working directory may be of other people.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named or FILE_NAME)
    try:
        with path.open("rb") as file:
            if not named and (why := _why_foreign(path, os.fstat(file.fileno()))) is not None:
                raise SettingsError(
                    f"{path} in {Path.cwd()} is not read: {why}. It could send this command, its data and its token to another"
                    f" server. Correct that, or set {FILE_VARIABLE}={path} if you trust this file"
                )
            content = tomllib.loads(file.read().decode("utf-8"))
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{FILE_VARIABLE} names {named}, which does not exist") from None
        content = {}
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    return Defaults(path, content, named=bool(named))


def _why_foreign(path: Path, opened: os.stat_result) -> str | None:
    """Return why a file may be of other people than this user and root; None if it is not.

    ``opened`` describes the file that is read. The name may be a link, which its own owner has chosen.
    """
    own = os.geteuid()
    for what, found in (("", opened), ("link ", path.lstat())):
        if found.st_uid not in {0, own}:
            return f"the {what}file belongs to the user {_user(found.st_uid)}, and this command runs as {_user(own)}"
    directory = path.parent.stat()
    if directory.st_uid not in {0, own}:
        return f"its directory belongs to the user {_user(directory.st_uid)}, and this command runs as {_user(own)}"
    if not stat.S_ISREG(opened.st_mode):
        return "it is no regular file"
    if (others := _writers(opened)) is not None:
        return f"{others} may write to the file (chmod go-w {path})"
    # With the sticky bit, as /tmp has it, others cannot replace the files of this user.
    if not directory.st_mode & stat.S_ISVTX and (others := _writers(directory)) is not None:
        return f"{others} may write to its directory, and so replace it (chmod go-w {path.parent})"
    return None


def _writers(found: os.stat_result) -> str | None:
    """Return who may write to a file or directory besides its owner; None: nobody."""
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not _is_private(found.st_gid):
        return f"the group {_group(found.st_gid)}"
    return None


def _is_private(gid: int) -> bool:
    """Return whether a group is of this user alone, as many systems create one for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not {*group.gr_mem} - {user.pw_name}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_of_this_machine(address: Address) -> bool:
    """Return whether an address names this machine, and so no server of another one: a name that a resolver answers does not.

    A socket must be of this user or of root, as every user can listen on one.
    """
    if address.path is not None:
        try:
            return Path(address.path).stat().st_uid in {0, os.geteuid()}
        except OSError:
            return True  # nobody listens there
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"


def _variable(option: str) -> str:
    return option.removeprefix("--").replace("-", "_").upper()


def _dashed(key: str) -> str:
    return key.replace("_", "-")

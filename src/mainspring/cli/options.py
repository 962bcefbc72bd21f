"""Declarations of options, and the options of all commands that connect to a server.

Every option can also be set in ``mainspring.toml``, and all except the `plain` ones as ``MAINSPRING_<NAME>`` in the environment.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from mainspring.client.environment import DEFAULT_SERVER, parse_servers, token_of_environment
from mainspring.client.session import REQUEST_TIMEOUT
from mainspring.client.sockets import TLS_OPTIONS, TlsFiles
from mainspring.errors import MainspringError, SettingsError, UsageError
from mainspring.namespaces import DEFAULT, check
from mainspring.quantities import format_duration, parse_duration, parse_size, parse_time

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from cyclopts import Token

    from mainspring.client.aio import AsyncClient
    from mainspring.client.blocking import Client

T = TypeVar("T")
Number = TypeVar("Number", int, float)


def option(name: str, text: str, **more: Any) -> Parameter:
    """Declare an option with its variable in the environment."""
    variable = "MAINSPRING_" + name.removeprefix("--").replace("-", "_").upper()
    return Parameter(name=name, help=text, env_var=variable, **more)


def flag(name: str, text: str, **more: Any) -> Parameter:
    """Declare an option without a value."""
    return option(name, text, negative="", show_default=False, **more)


def plain(name: str | tuple[str, ...], text: str, **more: Any) -> Parameter:
    """Declare an option without a variable in the environment."""
    return Parameter(name=name, help=text, show_default=False, **more)


def reading(parse: Callable[[str], T]) -> Callable[[Any, Sequence[Token]], T]:
    """Return a converter for cyclopts whose error names the option, variable or file of the wrong text."""

    def convert(_type: Any, tokens: Sequence[Token]) -> T:
        *others, token = tokens
        if others:
            raise SettingsError(
                f"{token.keyword} is given more than once: give it once, with commas between the values"
            )
        try:
            return parse(token.value)
        except MainspringError as error:
            raise SettingsError(f"{token.keyword}: {error}" if token.keyword else str(error)) from error

    return convert


DURATION_OPTION: dict[str, Any] = {"converter": reading(parse_duration), "metavar": "DURATION"}
TIME_OPTION: dict[str, Any] = {"converter": reading(parse_time), "metavar": "TIME"}
SIZE_OPTION: dict[str, Any] = {"converter": reading(parse_size), "metavar": "SIZE"}


class OptionGroup(Group):
    """A group of the help. It declares its options."""

    def option(self, name: str, text: str, **more: Any) -> Parameter:
        """Declare an option."""
        return option(name, text, group=self, **more)

    def flag(self, name: str, text: str) -> Parameter:
        """Declare an option without a value."""
        return flag(name, text, group=self)

    def duration(self, name: str, text: str, **more: Any) -> Parameter:
        """Declare an option with a duration as its default."""
        return self.option(name, text, show_default=format_duration, **DURATION_OPTION | more)

    def file(self, name: str, text: str) -> Parameter:
        """Declare an option with the path of a file."""
        return self.option(name, text, metavar="FILE", show_default=False)

    def several(self, name: str, text: str, parse: Callable[[str], tuple[Any, ...]], **more: Any) -> Parameter:
        """Declare an option whose text has several values, with commas between them."""
        return self.option(name, text, converter=reading(parse), n_tokens=1, negative="", show_default=False, **more)


SERVER_GROUP = OptionGroup("Server", sort_key=9)
OUTPUT_GROUP = OptionGroup("Output", sort_key=10)


def count(text: str) -> int:
    """Return a whole number. Raises SettingsError for other text."""
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a whole number") from None


def within(
    least: Number, most: Number, parse: Callable[[str], Number], show: Callable[[Number], str], why: str
) -> dict[str, Any]:
    """Declare the least and the largest value of an option. ``why`` completes the error after the refused value."""

    def read(text: str) -> Number:
        value = parse(text)
        if not least <= value <= most:
            raise SettingsError(f"{text} {why.format(least=show(least), most=show(most))}")
        return value

    return {"converter": reading(read), "n_tokens": 1}


def at_least(least: Number, parse: Callable[[str], Number], show: Callable[[Number], str], why: str) -> dict[str, Any]:
    """Declare the least value of an option. ``why`` completes the error after the refused value: the reason and the remedy."""

    def read(text: str) -> Number:
        value = parse(text)
        if value < least:
            raise SettingsError(f"{text} {why.format(least=show(least))}")
        return value

    return {"converter": reading(read), "n_tokens": 1}


RunAt = Annotated[
    float | None,
    plain(("--run-at", "--at"), "Start the job at this time or later, such as 2030-01-31T12:00:00Z.", **TIME_OPTION),
]
Expires = Annotated[
    float | None,
    plain("--expires", "End the job as expired if it has not started within this time.", **DURATION_OPTION),
]


def args_of(argument: str | None, option: str | None) -> bytes | None:
    """Return the arguments of a job or run, which are given as the last argument or as ``--args``; None if they are not given.

    ``-`` reads them from standard input. Raises UsageError if both are given.
    """
    if argument is not None and option is not None:
        raise UsageError("the arguments are given twice: give ARGS or --args")
    text = argument if option is None else option
    if text is None:
        return None
    return sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The servers that a command connects to, and its files for TLS."""

    server: Annotated[
        str,
        SERVER_GROUP.option(
            "--server",
            "The server, or several with commas. Workers use all of them, other commands the first that answers.",
            metavar="HOST:PORT",
        ),
    ] = DEFAULT_SERVER
    tls_ca: Annotated[
        Path | None,
        SERVER_GROUP.file("--tls-ca", "Use TLS, and trust certificates of this authority (PEM)."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        SERVER_GROUP.file("--tls-cert", "The client certificate for the server (PEM)."),
    ] = None
    tls_key: Annotated[Path | None, SERVER_GROUP.file("--tls-key", "The key of the client certificate (PEM).")] = None

    namespace: Annotated[
        str,
        SERVER_GROUP.option(
            "--namespace", "The namespace of the functions, schedules and workflows, and of their jobs.", metavar="NAME"
        ),
    ] = DEFAULT

    request_timeout: Annotated[
        float,
        SERVER_GROUP.option(
            "--request-timeout",
            "How long to wait for the answer to a request. Waits for jobs have limits of their own.",
            **at_least(
                0.001,
                parse_duration,
                format_duration,
                "is too short for any answer: give at least {least}",
            ),
            metavar="DURATION",
        ),
    ] = REQUEST_TIMEOUT

    def tls_files(self) -> TlsFiles:
        """Return the paths of the files for TLS, as given."""
        named = (self.tls_ca, self.tls_cert, self.tls_key)
        return TlsFiles(*(None if path is None else str(path) for path in named))

    def tls(self) -> ssl.SSLContext | None:
        """Return a context for TLS; None without ``--tls-ca``. Raises SettingsError."""
        return self.tls_files().context(TLS_OPTIONS)

    def client(self) -> Client:
        """Return a client of these servers; it connects at its first request. Raises SettingsError."""
        from mainspring.client.blocking import Client  # noqa: PLC0415 - a server has these options too, and no client

        return Client(
            parse_servers(self.server),
            tls=self.tls(),
            request_timeout=self.request_timeout,
            token=token_of_environment(),
            namespace=check(self.namespace),
        )

    def aio(self) -> AsyncClient:
        """Return an asyncio client of these servers. Raises SettingsError."""
        from mainspring.client.aio import AsyncClient  # noqa: PLC0415 - as in `client`

        return AsyncClient(
            parse_servers(self.server),
            tls=self.tls(),
            request_timeout=self.request_timeout,
            token=token_of_environment(),
            namespace=check(self.namespace),
        )


LOCAL = ServerOptions()
"""The default: a server on this machine."""
Json = Annotated[bool, plain("--json", "Print JSON.", negative="", group=OUTPUT_GROUP)]
Cursor = Annotated[str | None, plain("--cursor", "Go on where an earlier list ended: it has printed the cursor.")]

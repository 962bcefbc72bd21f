"""The TLS files of clients and workers, named on the command line or in the environment."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from mainspring.client import environment
from mainspring.client.environment import TLS_VARIABLES_OF_FILES
from mainspring.errors import SettingsError


class TlsFiles(NamedTuple):
    """The paths of PEM files; without an authority, connections do not use TLS."""

    authority: str | None = None
    """The authority that signed the server's certificate."""

    certificate: str | None = None
    """The certificate that the server checks."""

    key: str | None = None

    def absolute(self, directory: Path | None = None) -> TlsFiles:
        """Return the same files with absolute paths; symbolic links are not resolved.

        Relative paths begin in ``directory``, by default in the working directory.
        """
        start = Path() if directory is None else directory
        return TlsFiles(*(None if path is None else str((start / path).absolute()) for path in self))

    def context(self, names: TlsNames) -> ssl.SSLContext | None:
        """Read the files; return None for no TLS.  Raises SettingsError with the options' names in ``names``."""
        if self.authority is None:
            if self.certificate is not None or self.key is not None:
                raise SettingsError(
                    f"{names.certificate} and {names.key} need {names.authority}, the authority of the server's certificate"
                )
            return None
        if (self.certificate is None) != (self.key is None):
            raise SettingsError(f"{names.certificate} and {names.key} belong together: give both")
        try:
            context = ssl.create_default_context(cafile=self.authority)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(path for path in self if path is not None)
            raise SettingsError(f"cannot use {files} for TLS: {error.strerror or error}") from error
        return context


class TlsNames(NamedTuple):
    """The names of the options or variables for the files."""

    authority: str
    certificate: str
    key: str


TLS_OPTIONS: Final = TlsNames("--tls-ca", "--tls-cert", "--tls-key")
TLS_VARIABLES: Final = TlsNames(*TLS_VARIABLES_OF_FILES)


def tls_of_environment(directory: Path | None = None) -> ssl.SSLContext | None:
    """Return a context of the files that the environment names; None: no TLS.  Raises SettingsError."""
    files = TlsFiles(*(environment.variable(name) for name in TLS_VARIABLES))
    return (files if directory is None else files.absolute(directory)).context(TLS_VARIABLES)

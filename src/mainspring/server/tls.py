"""TLS contexts for the ports, loaded from PEM files and reloaded at SIGHUP."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from mainspring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mainspring.server.settings import TlsSettings


class HandshakeRefusedError(ssl.SSLError):
    """A handshake failed. ``reason`` is OpenSSL's."""

    def __init__(self, error: ssl.SSLError, alert: bytes) -> None:
        super().__init__(*error.args)
        self.reason = error.reason
        self.why = _refusal(error)
        """For the log."""
        self.alert = alert
        """The alert for the peer, whose user then sees the reason."""


class _Handshake(ssl.SSLObject):
    """Keeps the alert of a failed handshake; event loops drop it with the connection."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            raise
        except ssl.SSLError as error:
            raise HandshakeRefusedError(error, self.outgoing.read()) from error


class _Context(ssl.SSLContext):
    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        handshake = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(handshake, _Handshake)
        handshake.outgoing = outgoing
        return handshake


_REFUSALS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "HTTP_REQUEST": "the client does not speak TLS: it sent an HTTP request",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "RECORD_LAYER_FAILURE": "the client does not speak TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client does not accept this server's certificate: it has expired",
}


def _refusal(error: ssl.SSLError) -> str:
    """Return the reason for a failed handshake in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not valid: {error.verify_message}"
    return _REFUSALS.get(error.reason or "", str(error))


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for listening: TLS 1.2 or newer, with client certificates required if an authority is set.

    Raises SettingsError if a file is missing, unreadable or not a PEM file, or if the key does not match the certificate.
    """
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, settings)
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def reload_context(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Reload the files into a context in use; new connections use them.

    Raises SettingsError as `server_context` does; the context then stays unchanged. Authorities are only added: one that was
    removed from the file is trusted until the next start, because OpenSSL cannot remove it.
    """
    server_context(settings)
    _load(context, settings)


def _load(context: ssl.SSLContext, settings: TlsSettings) -> None:
    _check_readable(settings.certificate, "certificate")
    _check_readable(settings.key, "key")
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password(settings.key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(
                f"the key {settings.key} does not match the certificate {settings.certificate}: give a pair"
            ) from error
        raise SettingsError(
            f"{settings.certificate} and {settings.key} hold no certificate and key in PEM form ({_why(error)})"
        ) from error
    if settings.client_ca is not None:
        _check_readable(settings.client_ca, "clients' authority")
        try:
            context.load_verify_locations(cafile=settings.client_ca)
        except ssl.SSLError as error:
            raise SettingsError(f"{settings.client_ca} holds no certificate in PEM form ({_why(error)})") from error


def _no_password(key: Path) -> Callable[[], str]:
    """Return a callback that refuses an encrypted key; OpenSSL would prompt on the terminal and wait for ever."""

    def refuse() -> str:
        raise SettingsError(f"the key {key} is encrypted: give it without a passphrase, readable by the server alone")

    return refuse


def _why(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _check_readable(path: Path, what: str) -> None:
    """Raise SettingsError with the file's name, which OpenSSL's errors lack, if it cannot be opened."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"cannot read the {what} {path}: {error.strerror}") from error

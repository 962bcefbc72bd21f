"""Explains why a connection could not be made or has ended, and which option helps where TLS is the reason."""

from __future__ import annotations

import ssl
from typing import Final

from mainspring.errors import ServerError

_AUTHORITY: Final = "--tls-ca (MAINSPRING_TLS_CA)"
_CERTIFICATE: Final = "--tls-cert and --tls-key (MAINSPRING_TLS_CERT, MAINSPRING_TLS_KEY)"

_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""The code of a server's answer to a client that speaks no TLS on a port with TLS."""

_NO_CERTIFICATE: Final = f"the server wants a client's certificate: give one with {_CERTIFICATE}"
_NO_TLS: Final = f"the server does not speak TLS on this port: leave {_AUTHORITY} away, or name a port with TLS"

# By the reason of OpenSSL.
_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_CERTIFICATE,
    # TLS 1.2 has no alert of its own for it.
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        f"the server refuses the handshake, as servers do that want a client's certificate: give one with {_CERTIFICATE}"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the server does not know the authority of this client's certificate: give a certificate that the server's authority has "
        f"signed with {_CERTIFICATE}"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"this client's certificate has expired: give a new one with {_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"this client's certificate was revoked: give another with {_CERTIFICATE}",
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
}
_REFUSED: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
    }
)
_EXPIRED: Final = 10
"""OpenSSL's code of a certificate whose time is over."""
_OTHER_NAMES: Final = frozenset({62, 64})
"""Its codes of one for another name or address."""

ENDED: Final = "it accepted the connection and ended it"
"""The explanation for a server that gives no reason."""


def why(error: OSError | None) -> str:
    """Say why a connection could not be made, or ended before the server had answered; None: the server ended it."""
    if error is None:
        return ENDED
    if isinstance(error, ssl.SSLCertVerificationError):
        return _mistrust(error)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in _REASONS:
            return _REASONS[reason]
        if reason in _REFUSED:
            return f"the server refuses this client's certificate ({reason}): give another with {_CERTIFICATE}"
    return error.strerror or str(error) or type(error).__name__


def no_extension(code: str, message: str) -> ServerError:
    """Return the error for a server that answers the request for the extension with ERROR."""
    if code == _TLS_REQUIRED:
        return ServerError(
            f"the server speaks TLS: name the authority of its certificate with {_AUTHORITY}, and give a client's certificate,"
            f" where it wants one, with {_CERTIFICATE}"
        )
    return ServerError(f"the server does not speak Mainspring's extension: it answers {message!r}")


def _mistrust(error: ssl.SSLCertVerificationError) -> str:
    """Say why the client does not trust the server's certificate."""
    message = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAMES:
        return f"{message}: name the server as its certificate does"
    if error.verify_code == _EXPIRED:
        return f"the server's certificate, or its authority's, has expired: it is to be renewed there ({message})"
    return f"the server's certificate is not of a known authority ({message}): name its authority with {_AUTHORITY}"

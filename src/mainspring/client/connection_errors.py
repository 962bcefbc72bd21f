"""Explanations of failed and ended connections. For TLS errors they name the option that helps."""

from __future__ import annotations

import ssl
from typing import Final

from mainspring.errors import ForbiddenError, ServerError

_CA_OPTION: Final = "--tls-ca (MAINSPRING_TLS_CA)"
_CERTIFICATE_OPTIONS: Final = "--tls-cert and --tls-key (MAINSPRING_TLS_CERT, MAINSPRING_TLS_KEY)"

_TOKEN_REQUIRED: Final = "TOKEN_REQUIRED"  # noqa: S105 - a code
_TOKEN_REFUSED: Final = "TOKEN_REFUSED"  # noqa: S105 - a code
"""The error codes for a connection without a token, and with a wrong one."""
_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""The error code of a TLS port's answer to a client without TLS."""

_NO_CERTIFICATE: Final = f"the server requires a client certificate: give one with {_CERTIFICATE_OPTIONS}"
_NO_TLS: Final = f"the server does not use TLS on this port: omit {_CA_OPTION}, or name a port with TLS"

# By OpenSSL's reason.
_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_CERTIFICATE,
    # TLS 1.2 has no specific alert for a missing client certificate.
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        f"the server refuses the handshake; it may require a client certificate: give one with {_CERTIFICATE_OPTIONS}"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the server does not trust the authority of this client's certificate: give a certificate from an authority that it "
        f"trusts with {_CERTIFICATE_OPTIONS}"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"this client's certificate has expired: give a new one with {_CERTIFICATE_OPTIONS}",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"this client's certificate was revoked: give another with {_CERTIFICATE_OPTIONS}",
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
_CERTIFICATE_EXPIRED: Final = 10
"""OpenSSL's code for an expired certificate."""
_NAME_MISMATCHES: Final = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or address."""

CLOSED_WITHOUT_REASON: Final = "it accepted the connection and closed it"
"""The explanation for a server that gives no reason."""


def explain(error: OSError | None) -> str:
    """Return the reason why a connection was not made, or ended before the server answered; None: the server closed it."""
    if error is None:
        return CLOSED_WITHOUT_REASON
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_mistrust(error)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in _REASONS:
            return _REASONS[reason]
        if reason in _REFUSED:
            return f"the server refuses this client's certificate ({reason}): give another with {_CERTIFICATE_OPTIONS}"
    return error.strerror or str(error) or type(error).__name__


def no_extension_error(code: str, message: str) -> ServerError:
    """Return the error for a server that answers the request for the extension with an ERROR packet."""
    if code == _TLS_REQUIRED:
        return ServerError(
            f"the server uses TLS: name the authority of its certificate with {_CA_OPTION}, and give a client certificate, if it"
            f" requires one, with {_CERTIFICATE_OPTIONS}"
        )
    if code == _TOKEN_REQUIRED:
        return ForbiddenError(
            "the server demands a token: set MAINSPRING_TOKEN to one that mainspring tokens create has printed"
        )
    if code == _TOKEN_REFUSED:
        return ForbiddenError("the server refuses the token in MAINSPRING_TOKEN: it is wrong, revoked or expired")
    return ServerError(f"the server does not support Mainspring's extension: it answers {message!r}")


def _explain_mistrust(error: ssl.SSLCertVerificationError) -> str:
    """Return the reason why the client does not trust the server's certificate."""
    message = error.verify_message.rstrip(".")
    if error.verify_code in _NAME_MISMATCHES:
        return f"{message}: use a server name that its certificate contains"
    if error.verify_code == _CERTIFICATE_EXPIRED:
        return f"the server's certificate, or its authority's, has expired: renew it on the server ({message})"
    return f"the server's certificate is not from a trusted authority ({message}): name its authority with {_CA_OPTION}"

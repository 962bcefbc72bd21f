"""Listening sockets, and TLS contexts for them.

Sockets are bound to TCP addresses and to paths in the file system. Contexts are loaded from PEM files and reloaded at SIGHUP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainspring.client.environment import SOCKET_PATH_BYTES
from mainspring.errors import MainspringError, SettingsError
from mainspring.server.settings import Address, TcpAddress, UnixAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.server.settings import KeepaliveSettings, TlsSettings

_UNAVAILABLE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""Errors for addresses that this machine does not have, mostly of IPv6."""


SOCKET_MODE: Final = 0o660
"""The most that a socket in the file system permits by default: a connection to it needs no token."""


class PortError(MainspringError):
    """A port cannot be listened on."""


def bind(address: Address, backlog: int = 1024, mode: int | None = None) -> list[socket.socket]:
    """Return non-blocking listening sockets for an address: one for each address that the host name resolves to.

    Port 0 becomes one free port, the same for all. ``mode`` is that of a socket in the file system; None: `SOCKET_MODE`, or
    less if the umask is stricter. Raises PortError with the remedy.
    """
    if isinstance(address, UnixAddress):
        return [_bind_path(address, backlog, mode)]
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise PortError(f"cannot listen on {address}: the host name cannot be resolved ({error.strerror})") from error
    sockets: list[socket.socket] = []
    port = address.port
    refusal: OSError | None = None
    try:
        for family, kind, protocol, _, target in found:
            try:
                opened = _bind_ip(family, kind, protocol, (target[0], port, *target[2:]), backlog)
            except OSError as error:
                refusal = error
                if error.errno not in _UNAVAILABLE:
                    raise
                continue
            sockets.append(opened)
            port = opened.getsockname()[1]
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise PortError(_bind_reason(address, error)) from error
    if not sockets:
        assert refusal is not None
        raise PortError(_bind_reason(address, refusal)) from refusal
    return sockets


class SocketFile:
    """The file of a bound socket, removed at the end unless another file has replaced it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._read_identity()

    def remove(self) -> None:
        """Remove the file if it is still the same one; do nothing if the directory's permissions forbid that."""
        if self._identity is not None and self._read_identity() == self._identity:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def bound_address(opened: socket.socket) -> Address:
    """Return the address of a listening socket, with the port that the system chose."""
    name = opened.getsockname()
    return UnixAddress(name) if opened.family == socket.AF_UNIX else TcpAddress(name[0], name[1])


def _bind_ip(family: int, kind: int, protocol: int, target: tuple[object, ...], backlog: int) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(target)
        opened.listen(backlog)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def keep_alive(sock: socket.socket, settings: KeepaliveSettings) -> None:
    """Detect vanished peers by the operating system's probes; accepted connections inherit the options.

    The system sends no probes while the peer has not acknowledged all bytes, such as those of a job: it repeats them for about
    15 minutes. So the time until the last probe limits these, too, and that of a peer that reads nothing. Only Linux has that
    option.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", settings.idle),
        ("TCP_KEEPINTVL", settings.interval),
        ("TCP_KEEPCNT", settings.count),
    ):
        number = getattr(socket, option, None)
        if number is not None and value is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
    limit, bound = getattr(socket, "TCP_USER_TIMEOUT", None), settings.bound
    if limit is not None and bound is not None:
        sock.setsockopt(socket.IPPROTO_TCP, limit, min(bound * 1000, 2**31 - 1))


def _bind_path(address: UnixAddress, backlog: int, mode: int | None) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(Path(address.path))
        with contextlib.suppress(OSError):  # systems other than Linux create the file with the mode of the umask
            os.fchmod(opened.fileno(), SOCKET_MODE if mode is None else mode)
        opened.bind(address.path)
        _limit_mode(address.path, mode)  # before the socket listens: until then nobody can connect
        opened.listen(backlog)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise PortError(f"cannot listen on {address}: {_path_reason(address.path, error)}") from error
    return opened


def _limit_mode(path: str, mode: int | None) -> None:
    """Give the file of a new socket its mode. It follows no link, which could replace the file in a directory of many users."""
    found = os.lstat(path)
    wanted = stat.S_IMODE(found.st_mode) & SOCKET_MODE if mode is None else mode
    if stat.S_IMODE(found.st_mode) == wanted:
        return
    if os.chmod in os.supports_follow_symlinks:
        Path(path).chmod(wanted, follow_symlinks=False)
        return
    pinned = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(pinned).st_mode):
            raise FileExistsError(errno.EADDRINUSE, "another file has replaced the socket")
        Path(f"/proc/self/fd/{pinned}").chmod(wanted)
    finally:
        os.close(pinned)


def _path_reason(path: str, error: OSError) -> str:
    """Return the reason why a socket cannot have a path, with advice."""
    if (size := len(os.fsencode(path))) > SOCKET_PATH_BYTES:
        return (
            f"the path has {size} bytes, and that of a socket has at most {SOCKET_PATH_BYTES}; choose a shorter one, or one that"
            " is relative to the working directory"
        )
    if error.errno == errno.EADDRINUSE and Path(path).is_symlink() and not Path(path).exists():
        return f"it is a symbolic link to {Path(path).readlink()}, which does not exist; remove the link, or name the target"
    if error.errno == errno.EADDRINUSE and not Path(path).is_socket():
        return "a file that is no socket has this path; remove it, or choose another path"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "permission denied; choose a directory that this user may write to"
    return _reason(error)


def _remove_stale(path: Path) -> None:
    """Remove the file of a socket on which no process listens any more."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)


def _bind_reason(address: Address, error: OSError) -> str:
    return f"cannot listen on {address}: {_reason(error)}"


def _reason(error: OSError) -> str:
    reasons = {
        errno.EADDRINUSE: "something listens there already; stop it, or choose another port",
        errno.EACCES: "permission denied; ports below 1024 need root's rights, choose a higher one",
        errno.EADDRNOTAVAIL: "this machine has no such address; choose one of its own (ip addr shows them)",
        errno.ENOENT: "the directory does not exist; create it",
    }
    return reasons.get(error.errno or 0) or error.strerror or str(error)


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
            f"{settings.certificate} and {settings.key} hold no certificate and key in PEM form ({_tls_reason(error)})"
        ) from error
    if settings.client_ca is not None:
        _check_readable(settings.client_ca, "clients' authority")
        try:
            context.load_verify_locations(cafile=settings.client_ca)
        except ssl.SSLError as error:
            raise SettingsError(
                f"{settings.client_ca} holds no certificate in PEM form ({_tls_reason(error)})"
            ) from error


def _no_password(key: Path) -> Callable[[], str]:
    """Return a callback that refuses an encrypted key; OpenSSL would prompt on the terminal and wait for ever."""

    def refuse() -> str:
        raise SettingsError(f"the key {key} is encrypted: give it without a passphrase, readable by the server alone")

    return refuse


def _tls_reason(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _check_readable(path: Path, what: str) -> None:
    """Raise SettingsError with the file's name, which OpenSSL's errors lack, if it cannot be opened."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"cannot read the {what} {path}: {error.strerror}") from error

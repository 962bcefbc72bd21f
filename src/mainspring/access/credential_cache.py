"""The credentials that a node keeps in memory, and the watches for their end.

A credential in use costs no read. A node relies for `UNKNOWN_FOR` on a read that found no valid credential, because a worker
whose token was revoked may try again and again; requests that come before the first answer each read. On a store that nodes
share, the node reads the number of revocations once a second. If it could not for `STALE_AFTER` seconds, it reads each
credential from the store.
"""

from __future__ import annotations

import hmac
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.credentials import Kind, digest_of
from mainspring.access.store import CountRevocations, Credential, FindCredential
from mainspring.clock import to_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.reads import Reads

STALE_AFTER: Final = 2.0
"""Seconds after which a node no longer relies on its memory unless the store has confirmed that nothing was revoked."""
MOST_CACHED: Final = 10_000
UNKNOWN_FOR: Final = 1.0
"""Seconds for which a node relies on a read that found no valid credential. Another node may have stored it since."""
MOST_UNKNOWN: Final = 1000


class _Cached(NamedTuple):
    credential: Credential
    read_at: float
    """The monotonic time at which its read began."""


class CredentialCache:
    """Credentials by their digests. ``shared``: other nodes may revoke them too."""

    def __init__(self, reads: Reads, clock: Clock, *, shared: bool) -> None:
        self._reads = reads
        self._clock = clock
        self._shared = shared
        self._cache: dict[bytes, _Cached] = {}
        self._unknown: dict[bytes, float] = {}
        """Digests without a valid credential, with the monotonic times at which their reads began; the oldest first."""
        self._watches: dict[bytes, list[Callable[[], object]]] = {}
        self._generation = 0
        """Increased with each change: a read that began before one must not fill the memory after it."""
        self._revocations = -1
        """The number of revocations when it was last read."""
        self._confirmed_at = float("-inf")
        """The monotonic time at which that read began."""

    def find(
        self, digest: bytes, done: Callable[[Credential | None], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Call ``done`` with the credential of a digest, at once if it is in memory; None if it is not valid."""
        now = self._clock.monotonic()
        cached = self._cache.get(digest)
        if cached is not None and self._is_fresh(cached, now):
            done(self._valid(cached.credential, digest))
            return
        if now - self._unknown.get(digest, float("-inf")) < UNKNOWN_FOR:
            done(None)
            return

        generation = self._generation

        def read(credential: Credential | None) -> None:
            valid = self._valid(credential, digest)
            if valid is None:
                self._cache.pop(digest, None)
                if generation == self._generation:
                    self._note_unknown(digest, now)
            elif generation == self._generation:
                while len(self._cache) >= MOST_CACHED:
                    del self._cache[next(iter(self._cache))]
                self._cache[digest] = _Cached(valid, now)
            done(valid)

        self._reads.ask(FindCredential(digest), read, failed)

    def _note_unknown(self, digest: bytes, read_at: float) -> None:
        self._unknown.pop(digest, None)
        if len(self._unknown) >= MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[digest] = read_at

    def _is_fresh(self, cached: _Cached, now: float) -> bool:
        return not self._shared or now - max(cached.read_at, self._confirmed_at) < STALE_AFTER

    def _valid(self, credential: Credential | None, digest: bytes) -> Credential | None:
        if credential is None or not hmac.compare_digest(credential.digest, digest):
            return None
        return credential if credential.is_valid(to_us(self._clock.wall())) else None

    def watch(self, secret: str, ended: Callable[[], object]) -> Callable[[], None]:
        """Call a function once a token or a session has ended; see `sign_in.SignIn`."""
        digest = next((found for kind in Kind if (found := digest_of(kind, secret)) is not None), b"")
        watches = self._watches.setdefault(digest, [])
        watches.append(ended)

        def end() -> None:
            if ended in watches:
                watches.remove(ended)
            if not watches and self._watches.get(digest) is watches:
                del self._watches[digest]

        return end

    def tick(self, now: float) -> None:
        """Forget what has ended or was revoked; called once a second with the monotonic time."""
        if self._shared and (self._cache or self._watches):
            self._reads.ask(CountRevocations(), partial(self._counted, now), _ignore)
        now_us = to_us(self._clock.wall())
        for digest, cached in list(self._cache.items()):
            if not cached.credential.is_valid(now_us):
                del self._cache[digest]
        self._look_at_watched()

    def _counted(self, asked_at: float, number: int) -> None:
        if number != self._revocations:
            self._revocations = number
            self.forget()
        self._confirmed_at = asked_at

    def added(self, digest: bytes) -> None:
        """Find the credential of a digest from now on, because this node has stored it."""
        self._generation += 1
        self._unknown.pop(digest, None)

    def forget(self) -> None:
        """Forget all credentials, because some were revoked, and find out which watched ones have ended."""
        self._generation += 1
        self._cache.clear()
        self._look_at_watched()

    def _look_at_watched(self) -> None:
        for digest in list(self._watches):
            if digest not in self._cache:
                self.find(digest, partial(self._found_watched, digest), _ignore)

    def _found_watched(self, digest: bytes, credential: Credential | None) -> None:
        if credential is None:
            self._end(digest)

    def _end(self, digest: bytes) -> None:
        for ended in tuple(self._watches.pop(digest, ())):  # the end of a connection ends its watch
            ended()


def _ignore(_: StoreError) -> None:
    """Try a read at the next time."""

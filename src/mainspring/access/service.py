"""The credentials of a node: finds the callers of secrets, begins and ends sessions, and makes, changes and revokes tokens.

The node keeps credentials in memory, with the watches for their end (`CredentialCache`).
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.access.audit import ActRecorder
from mainspring.access.caller import EVERY_NAMESPACE, SECRET_BYTES, Caller, Grant, Kind, Role, digest_of, secret_of
from mainspring.access.idempotency import ReplyService
from mainspring.access.proxy import TooManySignInsError
from mainspring.access.store import (
    SWEEP_ROWS,
    CountRevocations,
    Credential,
    EndSession,
    FindCredential,
    FindToken,
    Issue,
    Revoke,
    Rotate,
    SweepAccess,
    TouchTokens,
    UseLink,
)
from mainspring.callbacks import Callback, awaited, shielded
from mainspring.clock import to_us
from mainspring.features import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Act
    from mainspring.access.store import ListTokens
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Operation, Page
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


SESSION_LIFE: Final = 12 * 3600.0
"""Seconds that a session lasts."""
MINUTE: Final = 60.0
SIGN_INS_PER_MINUTE: Final = 60
"""Sessions that one token may begin on a node: each is a row with the grants of the token for `SESSION_LIFE`."""
LINK_LIFE: Final = 600.0
"""Seconds in which a sign-in link can be used."""
TOUCH_INTERVAL: Final = 60.0
"""Seconds between two writes of the times at which tokens were used."""
SWEEP_INTERVAL: Final = 600.0
AUDIT_RETENTION: Final = 90 * 86400.0
"""Seconds for which acts are kept, by default."""
EVERYTHING: Final = (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),)
ID_BYTES: Final = 8


class AccessService:
    """A node's part in the access to its store. For the faces, it is their `SignIn`, whose docstrings hold its promises.

    ``shared``: other nodes may revoke credentials too. ``lacks`` is what the store of the jobs does not do.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        *,
        shared: bool,
        lacks: frozenset[Feature] = frozenset(),
        retention: float = AUDIT_RETENTION,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._retention = retention
        self._random = random
        self._used: dict[str, int] = {}
        self._sign_ins: Counter[str] = Counter()
        """Sessions that tokens have begun in this minute."""
        self._sign_ins_since = clock.monotonic()
        self._touched = self._swept = clock.monotonic()
        self._cache = cache = CredentialCache(reads, clock, shared=shared)
        self._recorder = recorder = ActRecorder(commits, reads, clock.monotonic())
        self.replies = ReplyService(commits, clock, atomic=Feature.REQUEST_KEYS not in lacks)
        """Answers to requests that clients may send again."""

        # The methods that faces and calls use; their docstrings are at their definitions.
        self.watch = cache.watch
        self.list_acts, self.record, self.refused = recorder.list_acts, recorder.record, recorder.refused

    # ---- callers ----

    def find(
        self,
        kind: Kind,
        text: str,
        done: Callable[[Caller | None], None],
        failed: Callable[[StoreError], None],
        address: str = "",
    ) -> None:
        """Call ``done`` with the caller of a secret, at once if that is in memory; None if the secret is not valid."""
        digest = digest_of(kind, text)
        if digest is None:
            done(None)
            return

        def found(credential: Credential | None) -> None:
            done(None if credential is None else self._caller(credential, address))

        self._cache.find(digest, found, failed)

    def _caller(self, credential: Credential, address: str) -> Caller:
        if credential.token:
            self._used[credential.token] = self._now_us()
        by_link = credential.kind is Kind.SESSION and not credential.token
        session = credential.digest.hex() if by_link else ""
        return Caller(credential.name, credential.grants, token=credential.token, address=address, session=session)

    async def caller_of_token(self, text: str, address: str = "") -> Caller | None:
        return await awaited(Callback(lambda done, failed: self.find(Kind.TOKEN, text, done, failed, address)))

    async def caller_of_session(self, text: str, address: str = "") -> Caller | None:
        return await awaited(Callback(lambda done, failed: self.find(Kind.SESSION, text, done, failed, address)))

    async def current(self, caller: Caller) -> Caller | None:
        """Return the same caller if its token is still valid, else None: for work that outlives a request."""
        if not caller.token:
            return caller
        found = await self._reads.read(FindToken(caller.token))
        return caller if found is not None and found.is_valid(self._now_us()) else None

    # ---- sessions ----

    async def sign_in(self, token: str) -> str | None:
        digest = digest_of(Kind.TOKEN, token)
        if digest is None:
            return None
        found: Credential | None = await awaited(Callback(partial(self._cache.find, digest)))
        if found is None:
            return None
        self._check_sign_ins(found.token)
        session, session_digest = self._new(Kind.SESSION)
        now_us = self._now_us()
        ends_us = now_us + to_us(SESSION_LIFE)
        credential = Credential(
            session_digest,
            Kind.SESSION,
            found.name,
            found.grants,
            token=found.token,
            created_us=now_us,
            expires_us=min(ends_us, found.expires_us or ends_us),
        )
        if not await self._commit(Issue(credential)):
            return None
        self._cache.added(session_digest)
        return session

    def _check_sign_ins(self, token: str) -> None:
        """Raise TooManySignInsError if a token has begun too many sessions: each is a row until it ends."""
        now = self._clock.monotonic()
        if now - self._sign_ins_since >= MINUTE:
            self._sign_ins_since = now
            self._sign_ins.clear()
        if self._sign_ins[token] >= SIGN_INS_PER_MINUTE:
            raise TooManySignInsError(
                f"this token has begun {SIGN_INS_PER_MINUTE} sessions in a minute: use one of them, or try again in a minute"
            )
        self._sign_ins[token] += 1

    async def sign_in_by_link(self, link: str) -> str | None:
        digest = digest_of(Kind.LINK, link)
        if digest is None:
            return None
        session, session_digest = self._new(Kind.SESSION)
        now_us = self._now_us()
        used = await self._commit(UseLink(digest, session_digest, now_us, now_us + to_us(SESSION_LIFE)))
        if used is None:
            return None
        self._cache.added(session_digest)
        return session

    async def sign_out(self, session: str) -> None:
        digest = digest_of(Kind.SESSION, session)
        if digest is not None:
            await self._commit(EndSession(digest))
            self._cache.forget()

    async def new_link(self, name: str = "console") -> str:
        link, digest = self._new(Kind.LINK)
        now_us = self._now_us()
        credential = Credential(
            digest, Kind.LINK, name, EVERYTHING, created_us=now_us, expires_us=now_us + to_us(LINK_LIFE)
        )
        await self._commit(Issue(credential))
        return link

    # ---- tokens ----

    @shielded
    async def new_token(self, token: Credential, act: Act | None = None) -> tuple[str, Credential]:
        """Store a token with the name, grants, creator and end of ``token``; return its secret and the token."""
        secret, digest = self._new(Kind.TOKEN)
        stored = msgspec.structs.replace(token, digest=digest, kind=Kind.TOKEN, created_us=self._now_us())
        await self._commits.committed(Issue(stored, act=act))
        self._cache.added(digest)
        return secret, stored

    async def token_of_start(self) -> str:
        """Return a new token for everything, for a node whose store keeps no tokens: it ends with the node."""
        template = Credential(b"", Kind.TOKEN, "start", EVERYTHING, token=self.new_id())
        secret, _ = await awaited(self.new_token(template))
        return secret

    def new_id(self) -> str:
        """Return the id of a new token."""
        return self._random(ID_BYTES).hex()

    async def list_tokens(self, query: ListTokens) -> Page[Credential]:
        """Return tokens, with the times of their use that this node has not written yet."""
        page = await self._reads.read_pages(query)
        return page._replace(items=[self._with_use(one) for one in page.items])

    async def find_token(self, token: str) -> Credential | None:
        """Return a token by its id."""
        found = await self._reads.read(FindToken(token))
        return None if found is None else self._with_use(found)

    def _with_use(self, token: Credential) -> Credential:
        return msgspec.structs.replace(token, used_us=max(token.used_us, self._used.get(token.token, 0)))

    @shielded
    async def revoke(self, token: str, act: Act | None = None) -> bool:
        """Delete a token and its sessions: at once on this node, and within 3 s on all others. Return whether it existed."""
        found: Credential | None = await self._commits.committed(Revoke(token, act=act))
        self._cache.forget()
        return found is not None

    @shielded
    async def rotate(self, token: str, act: Act | None = None) -> tuple[str, Credential] | None:
        """Give a token another secret; its old one and its sessions end as by `revoke`. Return secret and token."""
        secret, digest = self._new(Kind.TOKEN)
        found: Credential | None = await self._commits.committed(Rotate(token, digest, act=act))
        self._cache.forget()
        self._cache.added(digest)
        return None if found is None else (secret, found)

    # ---- periodic work ----

    def tick(self, now: float) -> None:
        """Do the periodic work; called once a second with the monotonic time."""
        self.replies.tick(now)
        self._cache.tick(now)
        if now - self._touched >= TOUCH_INTERVAL:
            self._touched = now
            if self._used:
                used, self._used = self._used, {}
                self._commits.put(TouchTokens(used))
        self._recorder.tick(now)
        if now - self._swept >= SWEEP_INTERVAL:
            self._swept = now
            self._sweep()

    def _sweep(self) -> None:
        now_us = self._now_us()
        sweep = SweepAccess(now_us, now_us - to_us(self._retention))
        self._commits.put(sweep, lambda number: self._sweep() if number >= SWEEP_ROWS else None)

    # ---- helpers ----

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def _new(self, kind: Kind) -> tuple[str, bytes]:
        secret = secret_of(kind, self._random(SECRET_BYTES))
        digest = digest_of(kind, secret)
        assert digest is not None
        return secret, digest

    async def _commit(self, operation: Operation) -> Any:
        return await awaited(self._commits.committed(operation))

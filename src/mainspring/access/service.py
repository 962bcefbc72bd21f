"""The credentials of a node: finds the callers of secrets, begins and ends sessions, and forgets what was revoked.

A node keeps the credentials in use in memory, so a request costs no read. On a store that nodes share, it reads the number of
revocations once a second; while it could not for `STALE_AFTER` seconds, it reads each credential from the store.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from mainspring.access.audit import RecordActs
from mainspring.access.caller import Caller
from mainspring.access.credentials import SECRET_BYTES, Kind, digest_of, secret_of
from mainspring.access.reply_service import ReplyService
from mainspring.access.roles import EVERY_NAMESPACE, Grant, Role
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
from mainspring.clock import to_us
from mainspring.storage.reads import always

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.access.audit import ListActs, Recorded
    from mainspring.access.store import ListTokens
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Page
    from mainspring.storage.reads import Reads

SESSION_LIFE: Final = 12 * 3600.0
"""Seconds that a session lasts."""
LINK_LIFE: Final = 600.0
"""Seconds in which a sign-in link can be used."""
STALE_AFTER: Final = 2.0
"""Seconds after which a node no longer relies on its memory unless the store has confirmed that nothing was revoked."""
TOUCH_INTERVAL: Final = 60.0
"""Seconds between two writes of the times at which tokens were used."""
SWEEP_INTERVAL: Final = 600.0
AUDIT_RETENTION: Final = 90 * 86400.0
"""Seconds for which acts are kept, by default."""
REFUSALS_PER_MINUTE: Final = 60
UNKNOWN_PER_MINUTE: Final = 10
"""Refusals that a node records in a minute; it counts the others."""
EVERYTHING: Final = (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),)
MOST_CACHED: Final = 10_000
ID_BYTES: Final = 8

log = structlog.get_logger("mainspring.access")


class _Cached(NamedTuple):
    credential: Credential
    read_at: float
    """The monotonic time at which its read began."""


class AccessService:
    """A node's part in the access to its store. ``shared``: other nodes may revoke credentials too."""

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        *,
        shared: bool,
        retention: float = AUDIT_RETENTION,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._shared = shared
        self._retention = retention
        self._random = random
        self._cache: dict[bytes, _Cached] = {}
        self._watches: dict[bytes, list[Callable[[], object]]] = {}
        self._used: dict[str, int] = {}
        self._generation = 0
        """Increased with each revocation: a read that began before one must not fill the memory after it."""
        self._revocations = -1
        """The number of revocations when it was last read."""
        self._confirmed_at = float("-inf")
        """The monotonic time at which that read began."""
        self._touched = self._swept = self._refusals_since = clock.monotonic()
        self._refusals = [0, 0]
        """Recorded in this minute: of callers without a name, and with one."""
        self._left_out = 0
        self.replies = ReplyService(commits, clock)
        """Answers to requests that clients may send again."""

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

        self._find(digest, found, failed)

    def _find(
        self, digest: bytes, done: Callable[[Credential | None], None], failed: Callable[[StoreError], None]
    ) -> None:
        now = self._clock.monotonic()
        cached = self._cache.get(digest)
        if cached is not None and self._is_fresh(cached, now):
            done(self._valid(cached.credential, digest))
            return

        generation = self._generation

        def read(credential: Credential | None) -> None:
            valid = self._valid(credential, digest)
            if valid is None:
                self._cache.pop(digest, None)
            elif generation == self._generation:
                while len(self._cache) >= MOST_CACHED:
                    del self._cache[next(iter(self._cache))]
                self._cache[digest] = _Cached(valid, now)
            done(valid)

        self._reads.ask(FindCredential(digest), read, failed)

    def _is_fresh(self, cached: _Cached, now: float) -> bool:
        return not self._shared or now - max(cached.read_at, self._confirmed_at) < STALE_AFTER

    def _valid(self, credential: Credential | None, digest: bytes) -> Credential | None:
        if credential is None or not hmac.compare_digest(credential.digest, digest):
            return None
        return credential if credential.is_valid(self._now_us()) else None

    def _caller(self, credential: Credential, address: str) -> Caller:
        if credential.token:
            self._used[credential.token] = self._now_us()
        return Caller(credential.name, credential.grants, token=credential.token, address=address)

    async def caller_of_token(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a token; see `sign_in.SignIn`."""
        found: Caller | None = await _awaited(lambda done, failed: self.find(Kind.TOKEN, text, done, failed, address))
        return found

    async def caller_of_session(self, text: str, address: str = "") -> Caller | None:
        """Return the caller of a session; see `sign_in.SignIn`."""
        found: Caller | None = await _awaited(lambda done, failed: self.find(Kind.SESSION, text, done, failed, address))
        return found

    def current(
        self, caller: Caller, done: Callable[[Caller | None], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Call ``done`` with the same caller if its token is still valid, else with None: for work that outlives a request."""

        def found(credential: Credential | None) -> None:
            done(caller if credential is not None and credential.is_valid(self._now_us()) else None)

        if caller.token:
            self._reads.ask(FindToken(caller.token), found, failed)
        else:
            done(caller)

    # ---- sessions ----

    async def sign_in(self, token: str) -> str | None:
        """Begin a session with a token; see `sign_in.SignIn`."""
        digest = digest_of(Kind.TOKEN, token)
        if digest is None:
            return None
        found: Credential | None = await _awaited(partial(self._find, digest))
        if found is None:
            return None
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
        return session if await self._commit(Issue(credential)) else None

    async def sign_in_by_link(self, link: str) -> str | None:
        """Begin a session with a link; see `sign_in.SignIn`."""
        digest = digest_of(Kind.LINK, link)
        if digest is None:
            return None
        session, session_digest = self._new(Kind.SESSION)
        now_us = self._now_us()
        used = await self._commit(UseLink(digest, session_digest, now_us, now_us + to_us(SESSION_LIFE)))
        return None if used is None else session

    async def sign_out(self, session: str) -> None:
        """End a session; see `sign_in.SignIn`."""
        digest = digest_of(Kind.SESSION, session)
        if digest is not None:
            await self._commit(EndSession(digest))
            self._forget()

    async def new_link(self, name: str = "console") -> str:
        """Return a sign-in link; see `sign_in.SignIn`."""
        link, digest = self._new(Kind.LINK)
        now_us = self._now_us()
        credential = Credential(
            digest, Kind.LINK, name, EVERYTHING, created_us=now_us, expires_us=now_us + to_us(LINK_LIFE)
        )
        await self._commit(Issue(credential))
        return link

    # ---- tokens ----

    def new_token(
        self,
        token: Credential,
        act: Act | None,
        done: Callable[[tuple[str, Credential]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Store a token with the name, grants, creator and end of ``token``; call ``done`` with its secret and the token."""
        secret, digest = self._new(Kind.TOKEN)
        stored = msgspec.structs.replace(token, digest=digest, kind=Kind.TOKEN, created_us=self._now_us())
        self._commits.put(Issue(stored, act), lambda _: done((secret, stored)), failed)

    async def token_of_start(self) -> str:
        """Return a new token for everything, for a node whose store keeps no tokens: it ends with the node."""
        template = Credential(b"", Kind.TOKEN, "start", EVERYTHING, token=self.new_id())
        secret, _ = await _awaited(lambda done, failed: self.new_token(template, None, done, failed))
        return str(secret)

    def new_id(self) -> str:
        """Return the id of a new token."""
        return self._random(ID_BYTES).hex()

    def list_tokens(
        self, query: ListTokens, done: Callable[[Page[Credential]], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Read tokens, with the times of their use that this node has not written yet."""

        def listed(page: Page[Credential]) -> None:
            done(page._replace(items=[self._with_use(one) for one in page.items]))

        self._reads.gather(query, listed, failed)

    def find_token(
        self, token: str, done: Callable[[Credential | None], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Read a token by its id."""
        self._reads.ask(FindToken(token), lambda one: done(None if one is None else self._with_use(one)), failed)

    def _with_use(self, token: Credential) -> Credential:
        return msgspec.structs.replace(token, used_us=max(token.used_us, self._used.get(token.token, 0)))

    def revoke(
        self, token: str, act: Act | None, done: Callable[[bool], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Delete a token and its sessions: at once on this node, and within 3 s on all others."""

        def revoked(found: Credential | None) -> None:
            self._forget()
            done(found is not None)

        self._commits.put(Revoke(token, act), revoked, failed)

    def rotate(
        self,
        token: str,
        act: Act | None,
        done: Callable[[tuple[str, Credential] | None], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Give a token another secret; its old one and its sessions end as by `revoke`. Call ``done`` with secret and token."""
        secret, digest = self._new(Kind.TOKEN)

        def rotated(found: Credential | None) -> None:
            self._forget()
            done(None if found is None else (secret, found))

        self._commits.put(Rotate(token, digest, act), rotated, failed)

    # ---- the audit ----

    def list_acts(
        self,
        query: ListActs,
        done: Callable[[Page[Recorded]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Read a part of the audit: its page may have fewer acts than the query wants, and a place where the next one begins."""
        self._reads.ask(query, done, failed, wanted)

    def record(self, act: Act, done: Callable[[None], None], failed: Callable[[StoreError], None]) -> None:
        """Record an act that changes nothing else, such as a mark."""
        self._commits.put(RecordActs([act]), done, failed)

    def refused(self, act: Act) -> None:
        """Record a refusal, unless `REFUSALS_PER_MINUTE` were recorded: clients can cause any number.

        Callers without a name have a count of their own, so that they cannot displace the refusals of those with one.
        """
        is_known = bool(act.who)
        if self._refusals[is_known] >= (REFUSALS_PER_MINUTE if is_known else UNKNOWN_PER_MINUTE):
            self._left_out += 1
            return
        self._refusals[is_known] += 1
        operation = RecordActs([act])
        operation.urgent = False
        self._commits.put(operation)

    # ---- revocations and periodic work ----

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
        """Do the periodic work; called once a second with the monotonic time."""
        self.replies.tick(now)
        if self._shared and (self._cache or self._watches):
            self._reads.ask(CountRevocations(), partial(self._counted, now), _ignore)
        now_us = self._now_us()
        for digest, cached in list(self._cache.items()):
            if not cached.credential.is_valid(now_us):
                del self._cache[digest]
        self._look_at_watched()
        if now - self._touched >= TOUCH_INTERVAL:
            self._touched = now
            if self._used:
                used, self._used = self._used, {}
                self._commits.put(TouchTokens(used))
        if now - self._refusals_since >= 60.0:
            if self._left_out:
                log.warning("refusals are not in the audit", left_out=self._left_out, recorded=sum(self._refusals))
            self._refusals_since, self._refusals, self._left_out = now, [0, 0], 0
        if now - self._swept >= SWEEP_INTERVAL:
            self._swept = now
            self._sweep()

    def _counted(self, asked_at: float, number: int) -> None:
        if number != self._revocations:
            self._revocations = number
            self._forget()
        self._confirmed_at = asked_at

    def _forget(self) -> None:
        """Forget all credentials, because some were revoked, and find out which watched ones have ended."""
        self._generation += 1
        self._cache.clear()
        self._look_at_watched()

    def _look_at_watched(self) -> None:
        for digest in list(self._watches):
            if digest not in self._cache:
                self._find(digest, partial(self._found_watched, digest), _ignore)

    def _found_watched(self, digest: bytes, credential: Credential | None) -> None:
        if credential is None:
            self._end(digest)

    def _end(self, digest: bytes) -> None:
        for ended in self._watches.pop(digest, ()):
            ended()

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
        return await _awaited(lambda done, failed: self._commits.put(operation, done, failed))


async def _awaited(ask: Callable[[Callable[[Any], None], Callable[[StoreError], None]], object]) -> Any:
    """Return what ``ask`` passes to its first function, or raise the error that it passes to the second."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(value: Any) -> None:
        if not answer.done():
            answer.set_result(value)

    def failed(error: StoreError) -> None:
        if not answer.done():
            answer.set_exception(error)

    ask(done, failed)
    return await answer


def _ignore(_: StoreError) -> None:
    """Try a read at the next time."""

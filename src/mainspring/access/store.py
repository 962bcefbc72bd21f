"""Credentials in a store: tokens, sessions and sign-in links, the operations on them, and the queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from mainspring.access.audit import Acting
from mainspring.access.caller import (
    Grant,
    Kind,
)
from mainspring.sizes import CANNOT_READ
from mainspring.storage.engine import PageQuery, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Credential(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, a session or a sign-in link."""

    digest: bytes
    """The SHA-256 of its secret."""
    kind: Kind
    name: str
    grants: tuple[Grant, ...]
    token: str = ""
    """The id of the token; of a session: the token with which it began, or empty."""
    created_us: int = 0
    created_by: str = ""
    expires_us: int = 0
    """0: never."""
    used_us: int = 0
    """About when it was last used; only for tokens."""

    def is_valid(self, now_us: int) -> bool:
        """Return whether it has not expired."""
        return not self.expires_us or now_us < self.expires_us


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Credential).decode


def row_of(credential: Credential) -> tuple[bytes, str, str, int, int, bytes]:
    """Return the columns of a credential in a table: digest, kind, token, expires_us, used_us, data."""
    return (
        credential.digest,
        credential.kind.value,
        credential.token,
        credential.expires_us,
        credential.used_us,
        encode(credential),
    )


def credential_of(data: bytes, used_us: int) -> Credential:
    """Return a credential from the columns that `row_of` has written; its time of use changes apart from the rest."""
    return msgspec.structs.replace(_decode(data), used_us=used_us)


def shown_credential(token: str, data: bytes, used_us: int) -> Credential:
    """Return a token for a list. One that cannot be read has no rights, and a sentence in place of its name."""
    try:
        return credential_of(data, used_us)
    except CANNOT_READ as error:
        return Credential(b"", Kind.TOKEN, f"(this version cannot read this token: {error})", (), token=token)


class Tables(Protocol):
    """The credentials inside a transaction of an engine."""

    async def find(self, digest: bytes) -> Credential | None:
        """Return a credential. Until the end of the transaction no other one changes it."""

    async def token(self, token: str) -> Credential | None:
        """Return a token by its id, as `find` does."""

    async def insert(self, credential: Credential) -> None:
        """Store a new credential."""

    async def remove(self, digest: bytes) -> None:
        """Delete a credential."""

    async def replace(self, digest: bytes, credential: Credential) -> None:
        """Replace a credential in its place, so that transactions that wait for it find the new one."""

    async def remove_sessions(self, token: str) -> None:
        """Delete the sessions of a token."""

    async def touch(self, used: Mapping[str, int]) -> None:
        """Set the times at which tokens were last used, unless they are later already."""

    async def revoked(self) -> None:
        """Increase the number of revocations."""

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        """Delete expired sessions and links, and old acts; return how many."""


class AccessOperation(Acting):
    """A change of credentials: `run` is the same on all engines."""

    phase = Phase.ACCESS

    async def run(self, tables: Tables) -> object:
        """Make the change; return the outcome."""
        raise NotImplementedError


class Issue(AccessOperation):
    """Store a new credential. Guard: for a session of a token, the token exists. Outcome: whether it was stored."""

    credential: Credential

    async def run(self, tables: Tables) -> bool:
        new = self.credential
        if new.kind is Kind.SESSION and new.token and await tables.token(new.token) is None:
            return False
        await tables.insert(new)
        return True


class UseLink(AccessOperation):
    """Replace a sign-in link by a session. Guard: the link exists and has not expired. Outcome: the session, or None."""

    link: bytes
    session: bytes
    now_us: int
    expires_us: int

    async def run(self, tables: Tables) -> Credential | None:
        link = await tables.find(self.link)
        if link is None or link.kind is not Kind.LINK:
            return None
        await tables.remove(self.link)
        if not link.is_valid(self.now_us):
            return None
        session = msgspec.structs.replace(
            link, digest=self.session, kind=Kind.SESSION, created_us=self.now_us, expires_us=self.expires_us
        )
        await tables.insert(session)
        return session


class Revoke(AccessOperation):
    """Delete a token and its sessions. Outcome: the token as it was, or None."""

    token: str

    async def run(self, tables: Tables) -> Credential | None:
        found = await tables.token(self.token)
        if found is not None:
            await tables.remove(found.digest)
            await tables.remove_sessions(self.token)
            await tables.revoked()
        return found


class Rotate(AccessOperation):
    """Give a token another secret, and delete its sessions. Outcome: the token afterwards, or None."""

    token: str
    digest: bytes

    async def run(self, tables: Tables) -> Credential | None:
        found = await tables.token(self.token)
        if found is None:
            return None
        rotated = msgspec.structs.replace(found, digest=self.digest)
        await tables.replace(found.digest, rotated)
        await tables.remove_sessions(self.token)
        await tables.revoked()
        return rotated


class EndSession(AccessOperation):
    """Delete a session. Outcome: whether there was one."""

    session: bytes

    async def run(self, tables: Tables) -> bool:
        found = await tables.find(self.session)
        if found is None or found.kind is not Kind.SESSION:
            return False
        await tables.remove(self.session)
        await tables.revoked()
        return True


class TouchTokens(AccessOperation):
    """Record when tokens were last used, by their ids. Outcome: None."""

    used: Mapping[str, int]

    def __post_init__(self) -> None:
        self.rows = len(self.used)
        self.urgent = False

    async def run(self, tables: Tables) -> None:
        await tables.touch(self.used)


SWEEP_ROWS = 1000


class SweepAccess(AccessOperation):
    """Delete sessions and links that expired before a time, and acts before another: `SWEEP_ROWS` each. Outcome: how many."""

    expired_us: int
    acts_us: int

    def __post_init__(self) -> None:
        self.rows = 2 * SWEEP_ROWS
        self.urgent = False

    async def run(self, tables: Tables) -> int:
        return await tables.sweep(self.expired_us, self.acts_us, SWEEP_ROWS)


OPERATIONS: Sequence[type[AccessOperation]] = (Issue, UseLink, Revoke, Rotate, EndSession, TouchTokens, SweepAccess)


class FindCredential(Query[Credential | None], frozen=True):
    """Read a credential by its digest."""

    digest: bytes


class FindToken(Query[Credential | None], frozen=True):
    """Read a token by its id."""

    token: str


class ListTokens(PageQuery[Credential], frozen=True):
    """Read tokens in the order of their ids. A page continues after an id."""


class CountRevocations(Query[int], frozen=True):
    """Read the number of revocations so far: a node that finds another number forgets the credentials in its memory."""

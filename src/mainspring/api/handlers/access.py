"""Calls about tokens, the caller's own rights, the audit and marks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from mainspring.access import store
from mainspring.access.audit import ListActs as StoredActs
from mainspring.access.caller import (
    EVERY_NAMESPACE,
    LOCAL,
    Grant,
    Kind,
    Permission,
    Role,
    administers,
    check_grant,
    covers,
)
from mainspring.api import access as access_requests
from mainspring.api.access import CreatedToken, GrantSpec, TokenInfo
from mainspring.api.handlers.pages import no_place, number_of, numbered, rfc3339, value_in_row
from mainspring.api.request import PAGE_LIMIT, ApiError, Code, Page, Touches
from mainspring.clock import to_us
from mainspring.sizes import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.access.audit import Recorded
    from mainspring.access.caller import Caller
    from mainspring.access.service import AccessService
    from mainspring.access.store import Credential
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.features import Feature
    from mainspring.storage.engine import Page as StoredPage

ROLES: Final = {
    Role.VIEWER: "see jobs, functions, schedules, workflows, workers and nodes, without arguments, results and logs",
    Role.OPERATOR: "cancel and retry jobs, pause functions and schedules, trigger schedules, add marks",
    Role.DEVELOPER: "submit jobs, start workflows, change schedules and limits, and connect workers",
    Role.ADMIN: "create and revoke tokens, drain nodes, and read the audit",
}

LAST_US: Final = to_us(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
"""The latest end of a token that ends at all: times after the year 9999 cannot be shown."""


class AccessCalls:
    """Answers about the credentials of a node's store. ``namespaces`` returns those with functions on this node.

    ``lacks`` and ``server`` are those of `Identity`.
    """

    def __init__(
        self,
        access: AccessService,
        wall: Callable[[], float],
        namespaces: Callable[[], Iterable[str]],
        *,
        lacks: Iterable[Feature] = (),
        server: str = "",
    ) -> None:
        self._access = access
        self._server = server or None
        self._lacks = sorted(map(str, lacks))
        self._wall = wall
        self._namespaces = namespaces
        self.handlers: Handlers = {
            access_requests.WhoAmI: self._who,
            access_requests.ListRoles: self._roles,
            access_requests.ListNamespaces: self._own_namespaces,
            access_requests.CreateToken: self._create,
            access_requests.ListTokens: self._list,
            access_requests.ShowToken: self._show,
            access_requests.RevokeToken: self._revoke,
            access_requests.RotateToken: self._rotate,
            access_requests.ListActs: self._acts,
            access_requests.ListMarks: self._marks,
            access_requests.AddMark: self._mark,
        }

    # ---- tokens ----

    async def _create(self, request: access_requests.CreateToken, call: Call) -> CreatedToken:
        grants = tuple(
            Grant(Role[one.role.upper()], one.namespace, tuple(one.functions), one.payloads) for one in request.grants
        )
        for grant in grants:
            check_grant(grant)
            if not covers(call.caller.grants, grant) or not administers(call.caller.grants, grant):
                raise ApiError(
                    Code.FORBIDDEN,
                    f"{call.caller.name!r} may not grant the role {grant.role.name.lower()} in the namespace {grant.namespace!r}"
                    f"{' with payloads' if grant.payloads else ''}: nobody grants more than he has, nor where he is no"
                    " administrator",
                )
        expires_us = 0 if request.expires_at is None else to_us(request.expires_at.timestamp())
        if request.expires_at is not None and expires_us <= to_us(self._wall()):
            raise ApiError(Code.INVALID, f"expires_at {request.expires_at.isoformat()} is not in the future")
        if expires_us > LAST_US:
            raise ApiError(
                Code.INVALID, "expires_at is in the year 9999 or later: leave it out for a token that does not end"
            )
        template = store.Credential(
            b"",
            Kind.TOKEN,
            request.name,
            grants,
            token=self._access.new_id(),
            created_by=call.caller.name,
            expires_us=expires_us,
        )
        after = _shown(self._info(template))
        act = call.act(of=template.token, namespace=_namespace_of(grants), after=after)
        secret, created = await self._access.new_token(template, act)
        return self._created(created, secret)

    async def _list(self, request: access_requests.ListTokens, call: Call) -> Page[TokenInfo]:
        if request.cursor is not None and "\0" in request.cursor:
            raise no_place(request.cursor)
        page = await self._page(request.cursor, request.limit)
        return Page([self._info(one) for one in page.items if _manages(call.caller, one)], page.next)

    async def _page(self, after: str | None, limit: int) -> StoredPage[Credential]:
        query = store.ListTokens(after=after, limit=limit, bytes=PAGE.most)
        return await self._access.list_tokens(query)

    async def _show(self, request: access_requests.ShowToken, call: Call) -> TokenInfo:
        return self._info(await self._found(request.token, call.caller))

    async def _found(self, token: str, caller: Caller) -> Credential:
        """Return a token by its id or its name. Tokens that the caller does not administer do not exist for it."""
        if "\0" in token:  # PostgreSQL's texts cannot contain it
            raise Touches.TOKEN.not_found(token)
        found = await self._access.find_token(token)
        named = [] if found is None else [found]
        after: str | None = None
        while found is None:
            page = await self._page(after, PAGE_LIMIT)
            named += [one for one in page.items if one.name == token and _manages(caller, one)]
            after = page.next
            if after is None:
                break
        if len(named) > 1:
            ids = ", ".join(one.token for one in named)
            raise ApiError(Code.CONFLICT, f"{len(named)} tokens have the name {token!r}: give one of the ids {ids}")
        if not named or not _manages(caller, named[0]):
            raise Touches.TOKEN.not_found(token)
        return named[0]

    async def _revoke(self, request: access_requests.RevokeToken, call: Call) -> TokenInfo:
        token = await self._found(request.token, call.caller)
        namespace = _namespace_of(token.grants)
        act = call.act(request.reason, of=token.token, namespace=namespace, before=_shown(self._info(token)))
        if not await self._access.revoke(token.token, act):
            raise ApiError(Code.TOKEN_NOT_FOUND, f"the token {token.token} was revoked meanwhile")
        return self._info(token)

    async def _rotate(self, request: access_requests.RotateToken, call: Call) -> CreatedToken:
        token = await self._found(request.token, call.caller)
        if not all(covers(call.caller.grants, grant) for grant in token.grants):
            raise ApiError(
                Code.FORBIDDEN,
                f"{call.caller.name!r} may not rotate {token.name!r}, which permits more: revoke it instead",
            )
        act = call.act(request.reason, of=token.token, namespace=_namespace_of(token.grants))
        rotated = await self._access.rotate(token.token, act)
        if rotated is None:
            raise ApiError(Code.TOKEN_NOT_FOUND, f"the token {token.token} was revoked meanwhile")
        return self._created(rotated[1], rotated[0])

    def _info(self, token: Credential) -> TokenInfo:
        return TokenInfo(
            id=token.token,
            name=token.name,
            grants=[_spec(grant) for grant in token.grants],
            created_at=rfc3339(token.created_us),
            created_by=token.created_by,
            expires_at=rfc3339(token.expires_us),
            expired=not token.is_valid(to_us(self._wall())),
            used_at=rfc3339(token.used_us),
        )

    def _created(self, token: Credential, secret: str) -> CreatedToken:
        return CreatedToken(**asdict(self._info(token)), token=secret)

    # ---- the caller ----

    async def _who(self, _: access_requests.WhoAmI, call: Call) -> access_requests.Identity:
        grants = [_spec(grant) for grant in call.caller.grants]
        return access_requests.Identity(
            call.caller.name, call.caller.token or None, grants, list(self._lacks), self._server
        )

    async def _roles(self, _: access_requests.ListRoles, __: Call) -> Page[access_requests.RoleInfo]:
        return Page([access_requests.RoleInfo(_role(role), permits) for role, permits in ROLES.items()])

    async def _own_namespaces(self, request: access_requests.ListNamespaces, call: Call) -> Page[str]:
        own = {grant.namespace for grant in call.caller.grants}
        if EVERY_NAMESPACE in own:
            own = {*own, *self._namespaces()}
        return numbered(request, sorted(own - {EVERY_NAMESPACE}))

    # ---- the audit ----

    async def _acts(self, request: access_requests.ListActs, call: Call) -> Page[access_requests.ActInfo]:
        namespace = EVERY_NAMESPACE if request.everywhere else request.namespace
        call.caller.check(Permission.ADMIN, namespace)
        if call.caller.functions(Permission.ADMIN, namespace) is not None:
            raise ApiError(
                Code.FORBIDDEN, f"{call.caller.name!r} may not read the audit: its grant is for some functions alone"
            )
        if request.what is not None and "\0" in request.what:
            raise ApiError(Code.INVALID, f"what contains the character NUL: no act is named {request.what!r}")
        query = StoredActs(
            namespace=None if request.everywhere else request.namespace,
            who=request.who,
            what=request.what,
            object=request.object,
            limit=request.limit,
            after=_number(request),
            bytes=PAGE.most,
        )
        page = await self._access.list_acts(query)
        found = [_act_info(one) for one in page.items]
        if page.next is None:
            return Page(found)
        return Page(found, str(page.next), rfc3339(page.searched_us))

    async def _marks(self, request: access_requests.ListMarks, _: Call) -> Page[access_requests.MarkInfo]:
        query = StoredActs(
            namespace=request.namespace,
            what=access_requests.MARK,
            limit=request.limit,
            after=_number(request),
            without_refusals=True,
            bytes=PAGE.most,
        )
        page = await self._access.list_acts(query)
        found = [access_requests.MarkInfo(one.act.object, rfc3339(one.at_us), one.act.who) for one in page.items]
        return Page(found, None if page.next is None else str(page.next))

    async def _mark(self, request: access_requests.AddMark, call: Call) -> access_requests.MarkInfo:
        await self._access.record(call.act(of=request.label))
        return access_requests.MarkInfo(request.label, rfc3339(to_us(self._wall())), call.caller.name)


def _number(request: access_requests.ListActs | access_requests.ListMarks) -> int | None:
    """Return the number of the act after which a page begins. Raises ApiError."""
    return None if request.cursor is None else number_of(request.cursor)


def _spec(grant: Grant) -> GrantSpec:
    return GrantSpec(_role(grant.role), grant.namespace, list(grant.functions), grant.payloads)


def _role(role: Role) -> Any:
    """Return the name of a role: a `tokens.RoleName`."""
    return role.name.lower()


def _namespace_of(grants: tuple[Grant, ...]) -> str:
    """Return the namespace of all grants; empty if they are for several."""
    names = {grant.namespace for grant in grants}
    return "" if len(names) > 1 or EVERY_NAMESPACE in names else names.pop()


def _manages(caller: Caller, token: Credential) -> bool:
    return caller is LOCAL or all(administers(caller.grants, grant) for grant in token.grants)


def _shown(info: TokenInfo) -> dict[str, Any]:
    """Return a token as the audit shows it."""
    grants = [{name: getattr(one, name) for name in GrantSpec.__struct_fields__} for one in info.grants]
    return {"name": info.name, "grants": grants, "expires_at": info.expires_at}


def _act_info(one: Recorded) -> access_requests.ActInfo:
    act = one.act
    return access_requests.ActInfo(
        number=one.number,
        at=rfc3339(one.at_us),
        what=act.what,
        who=act.who,
        object=act.object,
        namespace=act.namespace or None,
        token=act.token or None,
        address=act.address or None,
        request=act.request or None,
        before=value_in_row(act.before),
        after=value_in_row(act.after),
        reason=act.reason,
        refused=act.refused or None,
    )

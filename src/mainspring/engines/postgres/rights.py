"""The rights of roles that submit in their own transactions: they execute a function of the store, and touch no table.

``submit`` runs with the rights of its caller and calls one of two functions that run with those of the store's owner:
``submit_anywhere``, or the one of a single namespace, which is created here. So PostgreSQL itself decides by the functions that a
role may execute, also in triggers and for roles that others have set.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.engines.postgres.migrate import quoted
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncpg import Connection, Record

ANYWHERE: Final = "*"
"""Stands for all namespaces."""
_ARGUMENTS: Final = "bytea, bytea, bytea, int, float8, float8, float8, bytea"
"""The types of the arguments of all functions that submit, before the namespace."""
_NAMES: Final = ("function", "payload", "uniq", "priority", "delay", "run_at", "expires", "options")


class Runs(Enum):
    """The roles that may execute a function of the store."""

    OWNER = "the store's owner, which is the role of nodes"
    SUBMITTERS = (
        "also roles to which ``mainspring migrate --grant-submit`` has granted it, with the rights of its caller"
    )
    ANYWHERE = "also those that may submit in all namespaces, with the rights of the owner"


FUNCTIONS: Final[Mapping[str, Runs]] = {
    "enter": Runs.OWNER,
    "enter_schedules": Runs.OWNER,
    "enter_schedules_2": Runs.OWNER,
    "lock_pools": Runs.OWNER,
    "has_turn": Runs.OWNER,
    "usual": Runs.OWNER,
    "usual_2": Runs.OWNER,
    "kept_payload": Runs.OWNER,
    "appended_record": Runs.OWNER,
    "check_submission": Runs.OWNER,
    "submit_1": Runs.OWNER,
    "submit": Runs.SUBMITTERS,
    "submit_anywhere": Runs.ANYWHERE,
}
"""Each function of the schema, beside those of single namespaces (`function_of`). A migration that adds one takes it from
``PUBLIC``, which has the right by default, and declares it here: the tests attack each one as each role."""


def function_of(namespace: str) -> str:
    """Return the name of the function that submits in one namespace, as ``submit`` computes it too."""
    return f"submit_{hashlib.sha256(namespace.encode()).hexdigest()[:32]}"


async def grant_submit(connection: Connection[Record], schema: str, role: str, permitted: Sequence[str]) -> list[str]:
    """Let a role submit in some namespaces, and in no others; return the statements that were run.

    Its rights on tables, which earlier versions needed, are revoked. Repeating it changes nothing. Raises UsageError for a role
    that does not exist, and for one that owns the store.
    """
    for namespace in permitted:
        if namespace != ANYWHERE:
            namespaces.check(namespace)
    if await connection.fetchrow("SELECT FROM pg_roles WHERE rolname = $1", role) is None:
        raise UsageError(
            f"there is no role {role!r} in PostgreSQL: create it first, with CREATE ROLE, or check its name"
        )
    if await connection.fetchval(
        "SELECT pg_has_role($1::name, relowner, 'MEMBER') FROM pg_class WHERE oid = 'inbox'::regclass", role
    ):
        raise UsageError(
            f"the role {role!r} owns the store or is a superuser, so it has every right already: give the application a role"
            " of its own"
        )
    async with connection.transaction():
        statements = await _statements(connection, schema, role, permitted)
        for statement in statements:
            await connection.execute(statement)
    return statements


async def _statements(connection: Connection[Record], schema: str, role: str, permitted: Sequence[str]) -> list[str]:
    to, at = quoted(role), quoted(schema)
    wanted = {f"submit({_ARGUMENTS}, text)"}
    statements = [f"GRANT USAGE ON SCHEMA {at} TO {to}"]
    for namespace in sorted(set(permitted)):
        if namespace == ANYWHERE:
            wanted.add(f"submit_anywhere({_ARGUMENTS}, text)")
            continue
        name = function_of(namespace)
        wanted.add(f"{name}({_ARGUMENTS})")
        if await connection.fetchval("SELECT to_regprocedure($1) IS NULL", f"{name}({_ARGUMENTS})"):
            statements += _creation(at, name, namespace)
    statements += [f"GRANT EXECUTE ON FUNCTION {at}.{function} TO {to}" for function in sorted(wanted)]
    functions = await connection.fetch(
        "SELECT proname || '(' || replace(replace(oidvectortypes(proargtypes), 'integer', 'int'), 'double precision', 'float8')"
        " || ')' AS function FROM pg_proc p, aclexplode(p.proacl) AS granted"
        " WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'inbox'::regclass)"
        " AND grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) ORDER BY 1",
        role,
    )
    statements += [f"REVOKE ALL ON FUNCTION {at}.{row[0]} FROM {to}" for row in functions if row[0] not in wanted]
    relations = await connection.fetch(
        "SELECT DISTINCT relkind, relname FROM ("
        " SELECT c.relkind, c.relname, c.relnamespace, x.grantee FROM pg_class c, aclexplode(c.relacl) AS x"
        " UNION ALL SELECT c.relkind, c.relname, c.relnamespace, x.grantee"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) AS x) AS granted"
        " WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'inbox'::regclass)"
        " AND grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) ORDER BY 1, 2",
        role,
    )
    statements += [
        f"REVOKE ALL ON {'SEQUENCE' if kind == b'S' else 'TABLE'} {at}.{quoted(name)} FROM {to}"
        for kind, name in relations
    ]
    return statements


def _creation(at: str, name: str, namespace: str) -> list[str]:
    """Return the statements that create the function of a namespace, which only its owner may execute at first."""
    named = ", ".join(map(" ".join, zip(_NAMES, _ARGUMENTS.split(", "), strict=True)))
    function = f"{at}.{name}({_ARGUMENTS})"
    create = (
        f"CREATE FUNCTION {at}.{name}({named}) RETURNS text LANGUAGE sql SECURITY DEFINER"
        f" SET search_path = pg_catalog, {at}, pg_temp"
        f" AS $$ SELECT submit_anywhere($1, $2, $3, $4, $5, $6, $7, $8, '{namespace}') $$"
    )
    comment = f"COMMENT ON FUNCTION {function} IS 'Submits in the namespace {namespace}'"
    return [create, f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC", comment]

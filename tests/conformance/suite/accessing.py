"""Tokens, sessions, sign-in links and the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.access import store as ops
from mainspring.access.audit import ListActs, RecordActs
from mainspring.access.caller import Act, Grant, Kind, Role
from mainspring.access.store import Credential
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW

if TYPE_CHECKING:
    from mainspring.access.audit import Recorded
    from tests.conformance.suite.driver import Store

SECOND = 1_000_000
ACT = Act("tokens.create", "ann", "deploy", "shop", token="a", after={"role": "viewer"}, reason="new ci")


def token(name: str = "deploy", *, kind: Kind = Kind.TOKEN, of: str = "", expires_us: int = 0) -> Credential:
    """Return a credential whose digest and id come from its name."""
    grants = (Grant(Role.OPERATOR, "shop", ("pay*",)), Grant(Role.VIEWER, "*", payloads=True))
    digest = name.encode() * 4
    return Credential(digest, kind, name, grants, token=of or name, created_us=NOW, expires_us=expires_us)


def issue(store: Store, *credentials: Credential) -> None:
    """Store credentials."""
    assert all(store.group(*[ops.Issue(one) for one in credentials]))


def found(store: Store, credential: Credential) -> Credential | None:
    """Read a credential by its digest."""
    return store.read(ops.FindCredential(credential.digest))


def acts(store: Store, query: ListActs | None = None) -> list[Recorded]:
    """List acts."""
    return store.all_of(query or ListActs(limit=1000))


class Accessing:
    """Tests of credentials and the audit in a store."""

    def test_credentials_are_stored(self, store: Store) -> None:
        one, other = token(expires_us=NOW + SECOND), token("b")
        issue(store, one, other)
        store.reopen()
        assert found(store, one) == one
        assert store.read(ops.FindToken("b")) == other
        assert store.read(ops.FindToken("c")) is None
        assert store.read(ops.FindCredential(b"unknown")) is None

    def test_tokens_are_listed_in_parts_without_sessions(self, store: Store) -> None:
        tokens = [token(f"t{number}") for number in range(7)]
        issue(store, *tokens, token("s", kind=Kind.SESSION, of="t1"), token("l", kind=Kind.LINK, of=""))
        page = store.read(ops.ListTokens(limit=4))
        assert page.items == tokens[:4]
        assert store.all_of(ops.ListTokens(limit=100), Budget(rows=3, part=2)) == tokens

    def test_pages_of_large_tokens_and_acts_are_short(self, store: Store) -> None:
        patterns = tuple("p" * 290 + str(number) for number in range(20))
        tokens = [
            replace(
                token(f"t{number:02}"), grants=tuple(Grant(Role.VIEWER, f"n{grant}", patterns) for grant in range(5))
            )
            for number in range(24)
        ]
        issue(store, *tokens)
        page = store.read(ops.ListTokens(bytes=1000))
        assert (page.items, page.next) == (tokens[:20], "t19")
        assert store.all_of(ops.ListTokens(bytes=1000)) == tokens
        store.group(RecordActs([replace(ACT, object=str(number), after="x" * 5000) for number in range(24)]))
        shown = store.read(ListActs(bytes=1000))
        assert ([one.act.object for one in shown.items], shown.next) == (
            [str(number) for number in range(23, 3, -1)],
            shown.items[-1].number,
        )
        assert [one.act.object for one in acts(store, ListActs(bytes=1000))] == [
            str(number) for number in range(23, -1, -1)
        ]

    def test_a_revoked_token_takes_its_sessions_with_it(self, store: Store) -> None:
        one, other = token("a"), token("b")
        sessions = [token(name, kind=Kind.SESSION, of=of) for name, of in (("s", "a"), ("r", "a"), ("q", "b"))]
        issue(store, one, other, *sessions)
        before = store.read(ops.CountRevocations())
        assert store.group(ops.Revoke("a"), ops.Revoke("unknown")) == [one, None]
        assert store.read(ops.CountRevocations()) == before + 1
        assert [found(store, at) for at in (one, other, *sessions)] == [None, other, None, None, sessions[2]]

    def test_a_session_needs_its_token(self, store: Store) -> None:
        session = token("s", kind=Kind.SESSION, of="a")
        assert store.group(ops.Issue(session)) == [False]
        assert found(store, session) is None

    def test_a_rotated_token_has_another_secret_and_no_sessions(self, store: Store) -> None:
        one, session = token("a"), token("s", kind=Kind.SESSION, of="a")
        issue(store, one, session)
        before = store.read(ops.CountRevocations())
        rotated = replace(one, digest=b"another")
        assert store.group(ops.Rotate("a", b"another"), ops.Rotate("unknown", b"x")) == [rotated, None]
        assert [found(store, at) for at in (one, rotated, session)] == [None, rotated, None]
        assert store.read(ops.FindToken("a")) == rotated
        assert store.read(ops.CountRevocations()) == before + 1

    def test_a_session_ends(self, store: Store) -> None:
        one, session = token("a"), token("s", kind=Kind.SESSION, of="a")
        issue(store, one, session)
        assert store.group(ops.EndSession(session.digest)) == [True]
        assert store.group(ops.EndSession(session.digest), ops.EndSession(one.digest)) == [False, False]
        assert [found(store, at) for at in (one, session)] == [one, None]

    def test_a_link_is_used_once(self, store: Store) -> None:
        link = token("l", kind=Kind.LINK, of="", expires_us=NOW + SECOND)
        link = replace(link, token="")
        issue(store, link)
        use = ops.UseLink(link.digest, b"session", NOW, NOW + 9 * SECOND)
        second_use = ops.UseLink(link.digest, b"second", NOW, NOW + 9 * SECOND)
        session, second = store.group(use, second_use)
        assert (session.digest, session.kind, session.expires_us) == (b"session", Kind.SESSION, NOW + 9 * SECOND)
        assert (session.name, session.grants) == (link.name, link.grants)
        assert second is None
        assert [found(store, at) for at in (link, session)] == [None, session]

    def test_an_expired_link_and_other_secrets_are_no_links(self, store: Store) -> None:
        link = replace(token("l", kind=Kind.LINK, expires_us=NOW), token="")
        issue(store, link, token("a"))
        for digest in (link.digest, token("a").digest, b"unknown"):
            assert store.group(ops.UseLink(digest, b"session", NOW, NOW + SECOND)) == [None]
        assert store.read(ops.FindCredential(b"session")) is None
        assert found(store, token("a")) is not None

    def test_the_last_use_is_kept(self, store: Store) -> None:
        issue(store, token("a"), token("b"), token("s", kind=Kind.SESSION, of="a"))
        store.group(ops.TouchTokens({"a": NOW + 5, "unknown": NOW}))
        store.group(ops.TouchTokens({"a": NOW + 3, "b": NOW + 1}))
        assert [one.used_us for one in store.all_of(ops.ListTokens())] == [NOW + 5, NOW + 1]
        rotated, _ = store.group(ops.Rotate("a", b"another"), ops.Revoke("b"))
        assert rotated.used_us == NOW + 5
        assert store.read(ops.FindToken("a")) == rotated

    def test_ended_sessions_and_old_acts_are_swept(self, store: Store) -> None:
        issue(store, token("old", expires_us=NOW), token("a"))
        ended = token("s", kind=Kind.SESSION, of="a", expires_us=NOW)
        link = replace(token("l", kind=Kind.LINK, expires_us=NOW), token="")
        lasting = token("r", kind=Kind.SESSION, of="a", expires_us=NOW + 2)
        issue(store, ended, link, lasting)
        store.group(RecordActs([ACT, ACT]))
        assert store.group(ops.SweepAccess(NOW + 1, 0)) == [2]
        assert [found(store, at) for at in (ended, link, lasting)] == [None, None, lasting]
        assert found(store, token("old", expires_us=NOW)) is not None, "an expired token stays in the list"
        first, second = acts(store)[::-1]
        assert store.group(ops.SweepAccess(0, first.at_us)) == [0]
        assert store.group(ops.SweepAccess(0, second.at_us + 1)) == [2]
        assert acts(store) == []

    # ---- the audit ----

    def test_an_act_is_recorded_if_it_has_changed_something(self, store: Store) -> None:
        issue(store, token("a"))
        acting = [Act("tokens.revoke", "ann", name) for name in ("a", "unknown")]
        store.group(*[ops.Revoke(act.object, act=act) for act in acting], ops.Revoke("none"))
        assert [one.act for one in acts(store)] == acting[:1]

    def test_acts_are_kept_whole(self, store: Store) -> None:
        store.group(RecordActs([ACT, replace(ACT, refused="no role", before=[1, "é"])]))
        store.reopen()
        newer, older = acts(store)
        assert (older.act, newer.act) == (ACT, replace(ACT, refused="no role", before=[1, "é"]))
        assert newer.number > older.number
        assert newer.at_us >= older.at_us > NOW, "by the store's clock"

    def test_acts_are_listed_by_what_where_and_who(self, store: Store) -> None:
        some = [
            Act(what, who, str(number), namespace)
            for number, (what, who, namespace) in enumerate(
                [("a", "ann", "x"), ("b", "ann", "y"), ("a", "bob", "y"), ("b", "bob", "x"), ("a", "ann", "")] * 3
            )
        ]
        for act in some:
            store.group(RecordActs([act]))
        wanted_fields: tuple[dict[str, Any], ...] = (
            {},
            {"what": "a"},
            {"namespace": "y"},
            {"who": "ann"},
            {"what": "b", "namespace": "x"},
            {"object": "1"},
            {"object": "1", "what": "a"},
            {"object": "1", "namespace": "y", "who": "ann"},
        )
        for fields in wanted_fields:
            query = ListActs(limit=100, **fields)
            wanted = [act for act in reversed(some) if query.matches(act)]
            assert [one.act for one in acts(store, query)] == wanted
            assert [one.act for one in store.all_of(query, Budget(rows=2, part=1))] == wanted
            assert [one.act for one in store.read(replace(query, limit=2)).items] == wanted[:2]

    def test_the_acts_on_an_object_are_found_behind_many_others(self, store: Store) -> None:
        objects = ["", "mail", "m\0ail", "é" * 4000, "é" * 4001]
        some = [replace(ACT, object=name) for name in objects]
        store.group(RecordActs(some))
        store.group(RecordActs([replace(ACT, object=f"other{number}") for number in range(50)]))
        store.group(RecordActs(some))
        for act in some:
            page = store.read(ListActs(object=act.object), Budget(rows=20))
            assert [one.act for one in page.items] == [act, act]
            assert page.next is None

    def test_a_page_of_acts_continues(self, store: Store) -> None:
        store.group(RecordActs([replace(ACT, object=str(number)) for number in range(5)]))
        page = store.read(ListActs(limit=2))
        following = store.read(ListActs(limit=2, after=page.next))
        assert [one.act.object for one in (*page.items, *following.items)] == ["4", "3", "2", "1"]
        assert page.searched_us == page.items[-1].at_us

"""Each namespace and each caller has its shares, whatever others take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.access.acts import Act
from mainspring.access.recorder import (
    ALL_PER_MINUTE,
    ALL_UNKNOWN_PER_MINUTE,
    REFUSALS_PER_MINUTE,
    UNKNOWN_PER_MINUTE,
    ActRecorder,
)
from mainspring.jobs.dispatch import Dispatch
from mainspring.namespaces import key
from mainspring.wire.gearman.packets import Type
from tests.unit.faces.gearman.a_face import Node as FaceNode

if TYPE_CHECKING:
    from mainspring.access.audit import RecordActs


class Commits:
    """Keeps what would be committed."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def put(self, operation: RecordActs, *_: object) -> None:
        self.acts += operation.more


def recorder(commits: Commits) -> ActRecorder:
    reads: Any = None
    queue: Any = commits
    return ActRecorder(queue, reads, 0.0)


def refuse(recorder: ActRecorder, times: int, who: str = "", *, token: str = "", address: str = "") -> None:
    for _ in range(times):
        recorder.refused(Act("jobs.cancel", who, token=token, address=address, refused="no"))


def test_one_caller_hides_no_refusals_of_another() -> None:
    commits = Commits()
    audit = recorder(commits)
    refuse(audit, 5 * REFUSALS_PER_MINUTE, "loud", token="t1")
    refuse(audit, 3, "loud", token="t2")  # another token of the same name
    refuse(audit, 3, "quiet")
    assert len(commits.acts) == REFUSALS_PER_MINUTE + 6
    assert [act.who for act in commits.acts[-3:]] == ["quiet"] * 3


def test_one_address_hides_no_wrong_tokens_of_another() -> None:
    commits = Commits()
    audit = recorder(commits)
    refuse(audit, 5 * UNKNOWN_PER_MINUTE, address="10.0.0.1")
    refuse(audit, 1, address="10.0.0.2")
    refuse(audit, 1, "worker", token="t1")
    assert len(commits.acts) == UNKNOWN_PER_MINUTE + 2


def test_any_number_of_callers_fills_the_audit_slowly() -> None:
    commits = Commits()
    audit = recorder(commits)
    for number in range(2 * ALL_PER_MINUTE):
        refuse(audit, 1, f"caller {number}")
        refuse(audit, 1, address=f"10.0.{number // 256}.{number % 256}")
    assert len(commits.acts) == ALL_PER_MINUTE + ALL_UNKNOWN_PER_MINUTE
    audit.tick(60.0)
    refuse(audit, 1, "caller 1")
    assert len(commits.acts) == ALL_PER_MINUTE + ALL_UNKNOWN_PER_MINUTE + 1


# ---- functions ----


def fill(dispatch: Dispatch, namespace: str) -> int:
    """Create functions of a namespace until one is refused; return how many it has."""
    while dispatch.admits(name := key(namespace, b"f%d" % dispatch.number_of(namespace))):
        dispatch.queue(name)
    return dispatch.number_of(namespace)


def test_no_namespace_takes_all_functions() -> None:
    dispatch = Dispatch(most=400)
    numbers = [fill(dispatch, namespace) for namespace in ("a", "b", "c", "d")]
    assert numbers == [300, 75, 19, 5]
    assert dispatch.admits(key("a", b"f0"))  # it exists
    assert fill(dispatch, "last") == 1
    for number in range(100):
        dispatch.forget(key("a", b"f%d" % number))
    assert fill(dispatch, "b") == 132
    assert not dispatch.admits(key("a", b"new"))


def test_functions_that_are_rows_of_the_store_count_for_their_namespace() -> None:
    dispatch = Dispatch(most=400)
    dispatch.complete = False
    for number in range(300):
        dispatch.rows.add(key("a", b"row %d" % number))
    assert not dispatch.admits(key("a", b"new"))
    assert dispatch.admits(key("b", b"new"))
    dispatch.queue(key("a", b"row 0"))
    assert dispatch.number_of("a") == 300


def test_default_has_all_places_while_nobody_else_has_one() -> None:
    dispatch = Dispatch(most=400)
    assert fill(dispatch, "default") == 400
    dispatch = Dispatch(most=400)
    dispatch.queue(key("a", b"f"))
    assert fill(dispatch, "default") == 300
    assert dispatch.admits(key("a", b"g"))


def test_a_refusal_names_the_share_of_functions() -> None:
    node = FaceNode()
    node.service.dispatch.most = 4
    loud, quiet = node.connect(namespace="loud"), node.connect(namespace="quiet")
    for number in range(3):
        loud.request(Type.CAN_DO, b"f%d" % number)
    name, (code, message) = loud.ask(Type.SUBMIT_JOB_BG, b"new", b"", b"")
    assert (name, code) == ("ERROR", "TOO_MANY_FUNCTIONS")
    assert "the namespace loud has 3 functions" in message
    assert "--max-functions" in message
    quiet.request(Type.CAN_DO, b"f")
    assert node.service.queue_of(key("quiet", b"f")) is not None

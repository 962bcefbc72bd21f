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

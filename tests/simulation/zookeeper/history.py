"""The history of the tree; a violation of a rule is detected at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.tree import Change

    from .ensemble import Ensemble

LIVE = (paths.PENDING, paths.RUNNING, paths.DELAYED)
JOURNAL_ALONE = 2
"""Changes of a batch without entries: the check of its worker, and the journal."""


class Broken(AssertionError):  # noqa: N818 - it is raised out of the run
    """A rule of the recipe is broken."""


class History:
    """Checks every multi that is applied."""

    content: Ensemble

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.batches: dict[str, int] = {}
        """The last batch of each worker."""
        self.places: dict[str, dict[str, None]] = {}
        """The place of the live task of each name."""
        self.assignments: dict[str, dict[str, None]] = {}
        """The workers to which each task is assigned."""
        self.stored: dict[int, str] = {}
        """All jobs that were stored, with the places of their results."""
        self.dropped: set[int] = set()
        """Foreground jobs that were dropped because no client waited for them."""
        self._waiters: dict[int, list[int]] = {}
        """The terms that wait for each job, as its result has them."""
        self.ended: dict[int, dict[str, Any]] = {}
        """The records with which jobs have ended."""
        self.undone: dict[int, set[str]] = {}
        """Earlier outcomes of jobs that were redriven: a client may receive them during the redrive."""
        self.published: set[int] = set()
        self.redriven: set[int] = set()
        self.tokens: set[bytes] = set()
        """The tokens of the settlements that were applied."""
        self.settled = 0

    def fault(self, what: str) -> None:
        """Record the violation of a rule."""
        self.broken.append(f"{what} (batch {self.content.commits})")

    def happened(self, changes: Sequence[Change]) -> None:
        """Check a multi that was applied."""
        who = self._writer(changes)
        touched: dict[str, None] = {}
        for at, change in enumerate(changes):
            parts = change.path.split("/")
            root = f"/{parts[1]}"
            if len(parts) < 4:
                continue
            if root == paths.QUEUES:
                self._assignment(change, parts[2], parts[3], touched)
            elif root in LIVE:
                self._place(change, root, parts[3], touched)
            elif root == paths.COMPLETED:
                if isinstance(change, Create):
                    self._end(records.decode(change.data))
            elif root == paths.RESULTS:
                self._result(change, who)
            if who is not None and self._is_masters(changes, at):
                self._check_master(who)
        for task in touched:
            self._check_task(task)

    # ---- writers ----

    def _writer(self, changes: Sequence[Change]) -> str | None:
        """Return the worker whose batch it is; None for a multi that is no batch."""
        if len(changes) < JOURNAL_ALONE:
            return None
        journal = changes[1]
        if not isinstance(journal, Write) or not journal.path.startswith(f"{paths.JOURNALS}/"):
            return None
        who = journal.path.rpartition("/")[2]
        batch = records.decode(journal.data)["batch"]
        if self.content.read(paths.worker(who)) is None:
            self.fault(f"a batch of {who}, whose term has ended, has happened")
        last = self.batches.get(who, 0)
        if len(changes) == JOURNAL_ALONE and batch == last:
            return who  # it only makes a late change fail
        if batch != last + 1:
            self.fault(f"batch {batch} of {who} happens after batch {last}")
        self.batches[who] = batch
        return who

    @staticmethod
    def _is_masters(changes: Sequence[Change], at: int) -> bool:
        """Return whether a change begins an assignment or a publication."""
        change, more = changes[at], changes[at + 1 : at + 3]
        if not isinstance(change, Delete):
            return False
        if change.path.startswith(f"{paths.PENDING}/"):
            return any(isinstance(one, Create) and one.path.startswith(f"{paths.RUNNING}/") for one in more)
        if change.path.startswith(f"{paths.COMPLETED}/"):
            return any(isinstance(one, Create | Write) and one.path.startswith(f"{paths.RESULTS}/") for one in more[:1])
        return False

    def _check_master(self, who: str) -> None:
        node = self.content.read(paths.MASTER_TERM)
        master = None if node is None else records.decode(node.data).get("worker")
        if master != who:
            self.fault(f"{who} assigns or publishes after {master} was elected")

    # ---- places of tasks ----

    def _assignment(self, change: Change, who: str, task: str, touched: dict[str, None]) -> None:
        workers = self.assignments.setdefault(task, {})
        if isinstance(change, Create):
            workers[who] = None
        elif isinstance(change, Delete):
            workers.pop(who, None)
        touched[task] = None

    def _place(self, change: Change, root: str, name: str, touched: dict[str, None]) -> None:
        task = name.split(".", 2)[2] if root == paths.DELAYED else name
        places = self.places.setdefault(task, {})
        if isinstance(change, Create):
            places[change.path] = None
            record = records.decode(change.data)
            if root != paths.RUNNING:
                self._record_tokens(record)
            if record["id"] in self.ended and record["id"] not in self.redriven:
                if root == paths.PENDING and self.ended[record["id"]]["state"] != "succeeded":
                    ended = self.ended.pop(record["id"])
                    self.undone.setdefault(record["id"], set()).add(ended["state"])
                    self.published.discard(record["id"])
                else:
                    self.fault(f"job {record['id']} has ended and begins again")
        elif isinstance(change, Delete):
            places.pop(change.path, None)
        touched[task] = None

    def _check_task(self, task: str) -> None:
        places, workers = self.places.get(task, {}), self.assignments.get(task, {})
        if len(places) > 1:
            self.fault(f"{task} is at {list(places)} at once")
        if len(workers) > 1:
            self.fault(f"{task} is assigned to {list(workers)} at once")
        node = self.content.read(paths.running(task))
        if node is None:
            if workers:
                self.fault(f"{task} does not run and is assigned to {list(workers)}")
        elif not workers:
            self.fault(f"{task} runs and is nobody's")
        else:
            record = records.decode(node.data)
            if paths.term_of(next(iter(workers))) != record["term"]:
                self.fault(f"{task} runs under {record['term']} and is assigned to {list(workers)}")
        if places:
            name, live = self.content.read(paths.name(task)), self.content.read(next(iter(places)))
            assert live is not None
            if name is None or records.decode(name.data).get("id") != records.decode(live.data)["id"]:
                self.fault(f"{task} is live without its name")

    # ---- outcomes ----

    def _end(self, record: dict[str, Any]) -> None:
        if record["id"] in self.ended:
            self.fault(f"job {record['id']} has ended twice")
        self.ended[record["id"]] = record
        self._record_tokens(record)
        self.settled += 1

    def _record_tokens(self, record: dict[str, Any]) -> None:
        for field in ("result", "error"):
            token = records.untext(record, field)
            if token:
                self.tokens.add(token)

    def _result(self, change: Change, who: str | None) -> None:
        job_id = int(change.path.rpartition(":")[2])
        if isinstance(change, Delete):
            self._drop(job_id, who)
        elif isinstance(change, Create | Write):
            record = records.decode(change.data)
            self._waiters[job_id] = record.get("waiters", [])
            if isinstance(change, Create):
                self.stored[job_id] = change.path
            if "state" not in record:
                return
            ended = self.ended.get(job_id)
            if ended is None:
                self.fault(f"job {job_id} is published and has not ended")
            elif (ended["state"], ended.get("result")) != (record["state"], record.get("result")):
                self.fault(f"job {job_id} is published with another outcome")
            self.published.add(job_id)

    def _drop(self, job_id: int, who: str | None) -> None:
        """Check that only the node that drops a job, and nodes whose terms have ended, wait for it."""
        self.dropped.add(job_id)
        for term in self._waiters.get(job_id, ()):
            node = self.content.read(f"{paths.TERMS}/{term}")
            assert node is not None
            waiter = paths.worker_name(node.data.decode(), term)
            if waiter != who and self.content.read(paths.worker(waiter)) is not None:
                self.fault(f"job {job_id} was dropped by {who} although {waiter} waits for it")

    def state(self, job_id: int) -> State:
        """Return the state in which a job has ended."""
        return State[self.ended[job_id]["state"].upper()]

"""Runs of workflows whose node and workers are killed at random, with accounts of all that was acknowledged and executed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring import ConflictError, JobError, MainspringError, NotFoundError
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_address
from mainspring.client.outcomes import failure

from .accounted_workflows import CHILD, note
from .power_cuts import cut_power, read_store
from .workflow_accounts import COMMITS, Account, Commits, Execution, audit
from .workflow_processes import WorkflowProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

CLIENTS = 6
KINDS = ("step", "step", "together", "activity", "activity", "gather", "sleep", "signal")
KINDS_WITH_OTHER_RUNS = (*KINDS, "child", "again")
TIMEOUT = 60.0
"""Seconds within which a node answers or a run ends, although processes are killed."""
WAIT = 5.0
"""Seconds of a wait for a run's end, after which its client looks whether it is parked."""
LONGEST_REST = 2.0
"""The most seconds between two disturbances."""
MOST_EVENTS = 40
"""The most events between two disturbances."""
PAGE = 1000
WORKERS = ("first", "second")


class Ledger:
    """The accounts of all runs; ``violations`` are broken promises."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.accounts: dict[str, Account] = {}
        self.violations: list[str] = []
        self.counts = Counter[str]()

    def add(self, account: Account) -> None:
        with self._lock:
            self.accounts[account.name] = account

    def note(self, kind: str, number: int = 1) -> None:
        """Count an event."""
        with self._lock:
            self.counts[kind] += number
            self._lock.notify_all()

    def await_progress(self, events: int) -> None:
        """Wait for further events, but not for long: disturbances must hit different moments under load."""
        with self._lock:
            wanted = self.counts.total() + events
            self._lock.wait_for(lambda: self.counts.total() >= wanted, LONGEST_REST)

    def await_count(self, kind: str, number: int, seconds: float) -> None:
        """Wait for a number of events of a kind."""
        with self._lock:
            assert self._lock.wait_for(lambda: self.counts[kind] >= number, seconds), f"{number} {kind}"

    def violate(self, account: Account, what: str) -> None:
        """Add a broken promise."""
        with self._lock:
            self.violations.append(f"{account.name} {account.plan}: {what}")


class AccountingClient(threading.Thread):
    """Starts runs, sends their signals, waits for their outcomes, and reads their histories."""

    def __init__(
        self, name: str, servers: str, ledger: Ledger, chance: random.Random, kinds: Sequence[str] = KINDS
    ) -> None:
        """``servers``: addresses separated by commas. Each request goes to any of them; if it does not listen, to the next."""
        super().__init__(name=name, daemon=True)
        addresses = deque(map(parse_address, servers.split(",")))
        self._clients = []
        for _ in range(len(addresses)):
            self._clients.append(Client([*addresses]))
            addresses.rotate(1)
        self._nodes = random.Random(name)
        self._ledger = ledger
        self._chance = chance
        self._kinds = kinds
        self.ending = threading.Event()
        self.parks = frozenset({"losses"})
        """The reasons for which a run may be parked."""
        self.defect: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.ending.is_set():
                number += 1
                plan = self._chance.choices(self._kinds, k=self._chance.randint(1, 8))
                self.follow(Account(f"{self.name}-{number}", [*plan, *self._chance.choice([(), (), (), ("wait",)])]))
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.defect = error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    @property
    def _client(self) -> Client:
        """A connection to any node."""
        return self._nodes.choice(self._clients)

    def follow(self, account: Account) -> None:
        """Start a run, and account for it."""
        name = account.name
        self._start(account)
        for value in account.signals:
            for _ in range(self._chance.choice([1, 1, 1, 2])):
                self._send("workflows.signal", key=name, name=note.name, value=value, request=value)
            self._ledger.note("signals")
        if account.cancelled:
            time.sleep(self._chance.choice([0.0, 0.0, 0.02, 0.1]))
            self._send("workflows.cancel", key=name, request=name)
            self._ledger.note("cancels")
        self._follow_to_end(account)

    def _follow_to_end(self, account: Account) -> None:
        """Wait for the end of a chain, and of its children."""
        shown = self._call("workflows.show", key=account.name)
        account.outcome = self._outcome(shown["handle"], account.name)
        shown = self._call("workflows.show", key=account.name)
        account.status = shown["status"]
        self._ledger.note(f"version {shown['version']}")
        links = [shown]
        while (previous := links[0]["previous_run"]) is not None:
            links.insert(0, self._call("workflows.show", key=previous))
        places: list[tuple[Any, ...]] = []
        children: list[str] = []
        for number, link in enumerate(links):
            self._read(account, number, link, places, children)
        doubled = [place for place, number in Counter(places).items() if number > 1]
        if doubled or len(set(account.recorded)) != sum(place[1] in _RESULTS for place in places):
            self._ledger.violate(account, f"records are doubled: {doubled}")
        self._ledger.note("closed")
        for name in children:
            self._follow_child(Account(name, CHILD, of_cancelled=account.cancelled))

    def _follow_child(self, child: Account) -> None:
        self._ledger.add(child)
        self._ledger.note("starts")
        end = time.monotonic() + TIMEOUT
        while True:  # the request for it is stored, and done later
            try:
                self._follow_to_end(child)
            except NotFoundError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                self._ledger.note("children")
                return

    def _call(self, method: str, **params: Any) -> Any:
        """Call until a node answers."""
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                return self._client.call(method, params)
            except (ConflictError, NotFoundError):
                raise
            except MainspringError as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"{method} {params}: {error}") from error
                time.sleep(0.01)

    def _send(self, method: str, **request: Any) -> None:
        """Send a request with a key until a node answers that the run has taken it, even if it has ended since."""
        if self._call(method, **request)["repeated"]:
            self._ledger.note("requests repeated")

    def _start(self, account: Account) -> None:
        params = {"function": "account", "args": [account.name, account.plan], "id": account.name}
        end = time.monotonic() + TIMEOUT
        while True:
            assert time.monotonic() < end
            try:
                self._client.call("workflows.start", params)
            except NotFoundError:
                time.sleep(0.01)  # no worker has registered the workflow yet
                continue
            except MainspringError:
                # The node was killed before its answer. A run that has ended already would not be joined, but begun again.
                try:
                    self._call("workflows.show", key=account.name)
                except NotFoundError:
                    continue
            break
        self._ledger.add(account)
        self._ledger.note("starts")

    def _outcome(self, handle: str, name: str) -> Any:
        """Wait for the outcome of a root job."""
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                outcome = self._client.outcome(handle, WAIT)
            except TimeoutError:
                shown = self._call("workflows.show", key=name)
                parked = shown["parked"] and shown["parked"]["kind"]
                assert not parked or parked in self.parks, shown
                if parked == "losses":
                    self._call("workflows.unpark", key=name)
                    self._ledger.note("parked after five losses")
                elif time.monotonic() > end:
                    raise TimeoutError(f"{name} does not end: {shown}") from None
            except JobError:
                raise
            except MainspringError:
                time.sleep(0.01)
            else:
                error = failure(outcome)
                return json.loads(outcome.data) if error is None else f"{type(error).__name__}: {error}"

    def _read(
        self, account: Account, link: int, shown: dict[str, Any], places: list[tuple[Any, ...]], children: list[str]
    ) -> None:
        """Note the history of a closed run, and check what needs nothing else.

        ``link``: its place in its chain. Add what is recorded to ``places``, and the names of its children to ``children``.
        """
        run = int(shown["run"].rpartition("@")[2])
        events = self._call("workflows.history", key=shown["run"], limit=PAGE, native=True)["items"]
        account.runs.append((shown["status"], len(events)))
        signaled: list[str] = []
        if [event["eventId"] for event in events] != list(range(1, len(events) + 1)):
            self._ledger.violate(account, "its events are not dense")
        kinds = Counter(event["eventType"] for event in events)
        closes = sum(kinds[close] for close in _CLOSES)
        if closes != 1 or events[-1]["eventType"] not in _CLOSES:
            self._ledger.violate(account, f"it is closed {closes} times, last {events[-1]['eventType']}")
        for event in events:
            kind, at = event["eventType"], (run, event["eventId"])
            attributes = event[kind[0].lower() + kind[1:] + "EventAttributes"]
            if kind == "ActivityTaskCompleted":
                places.append((link, kind, attributes["scheduledEventId"]))
                account.recorded[json.loads(attributes["result"])] = at
            elif kind == "MarkerRecorded" and attributes["markerName"] == "patch":
                self._ledger.note("patches")
            elif kind == "MarkerRecorded":
                places.append((link, kind, attributes["number"]))
                account.recorded[json.loads(attributes["details"])] = at
            elif kind == "WorkflowExecutionSignaled":
                signaled.append(json.loads(attributes["input"]))
            elif kind == "WorkflowExecutionCancelRequested":
                places.append((link, kind, 0))
            elif kind == "TimerFired":
                places.append((link, kind, attributes["startedEventId"]))
            elif kind == "StartChildWorkflowExecutionInitiated":
                children.append(attributes["workflowId"])
            elif kind in _ANSWERS:
                places.append((link, kind, attributes["initiatedEventId"]))
                if kind == "ChildWorkflowExecutionCompleted":
                    name = attributes["workflowExecution"]["workflowId"]
                    account.children[name] = json.loads(attributes["result"])[-1]
        # Signals that the code of earlier runs has not received are also in this history.
        received = account.received(link)
        if signaled != account.signals[received : received + len(signaled)]:
            self._ledger.violate(account, f"run {link} of the chain has the signals {signaled}")
        account.signaled = account.signals[:received] + signaled


_RESULTS = ("ActivityTaskCompleted", "MarkerRecorded")
_ANSWERS = (
    "ChildWorkflowExecutionStarted",
    "ChildWorkflowExecutionCompleted",
    "ChildWorkflowExecutionCanceled",
    "ExternalWorkflowExecutionSignaled",
    "ExternalWorkflowExecutionCancelRequested",
)
_CLOSES = [
    f"WorkflowExecution{kind}"
    for kind in ("Completed", "Canceled", "Failed", "Terminated", "TimedOut", "ContinuedAsNew")
]


class Findings(NamedTuple):
    """The findings of a run of the chaos."""

    violations: list[str]
    counts: Counter[str]
    logs: str

    def __str__(self) -> str:
        return (
            f"{dict(sorted(self.counts.items()))}\n{len(self.violations)} violations {self.violations[:5]}\n{self.logs}"
        )


class Followers:
    """Some clients of a store's nodes, which follow their runs until the end."""

    def __init__(self, servers: str, number: int, seed: int, kinds: Sequence[str] = KINDS) -> None:
        """``servers``: addresses separated by commas."""
        self._servers = servers
        self.ledger = Ledger()
        self.clients = [
            AccountingClient(f"c{number}", servers, self.ledger, random.Random(f"{seed} {number}"), kinds)
            for number in range(number)
        ]

    def start(self) -> None:
        """Let them start runs."""
        for client in self.clients:
            client.start()

    def end(self) -> list[str]:
        """Let them start no more runs, and wait until all have ended. Return descriptions of those that are stuck."""
        for client in self.clients:
            client.ending.set()
        for client in self.clients:
            if client.ident is not None:
                client.join(2 * TIMEOUT)
        stuck = [f"{client.name}: {client.defect!r}" for client in self.clients if client.defect is not None]
        stuck += [f"{client.name} hangs" for client in self.clients if client.is_alive()]
        if not stuck:
            for address in self._servers.split(","):
                self._take_census(address)
        return stuck

    def _take_census(self, address: str) -> None:
        """Compare a node's list of runs with the accounts."""
        client = Client([parse_address(address)])
        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        try:
            after = None
            while True:
                page = client.call("workflows.list", {"limit": PAGE, "cursor": after})
                for run in page["items"]:
                    runs[run["id"]].append(run)
                after = page["next"]
                if after is None:
                    break
        finally:
            client.close()
        for account in self.ledger.accounts.values():
            found = [(run["status"], run["events"]) for run in runs.pop(account.name, [])]
            if sorted(found) != sorted(account.runs):
                self.ledger.violate(account, f"the list has {found} for {account.runs}")
        if runs:
            self.ledger.violations.append(f"runs that nobody started: {list(runs)[:5]}")

    def audit(self, found: Iterable[Execution], commits: Commits) -> list[str]:
        """Compare executions with the accounts, and return all violations."""
        executions: dict[str, list[Execution]] = defaultdict(list)
        for execution in found:
            executions[execution.run].append(execution)
        for account in self.ledger.accounts.values():
            for what in audit(account, executions[account.name], commits):
                self.ledger.violate(account, what)
            self.ledger.note("results", len(account.recorded))
            self.ledger.note("runs continued as new", len(account.runs) - 1)
            self.ledger.note("executions", len(executions[account.name]))
        return self.ledger.violations


class WorkflowChaos(WorkflowProcesses):
    """A node, two workers, and clients; the caller disturbs them."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        journal: bool = False,
        plant: str | None = None,
        roles: Sequence[str] = ("node", *WORKERS),
        servers: str = "",
    ) -> None:
        """``journal``: the node writes one, so that the power can be cut. ``servers``: nodes in place of that one."""
        super().__init__(directory, roles, plant, servers)
        self.chance = random.Random(seed)
        self._store = (directory / "store.db").resolve()
        self._journal = directory / "journal" if journal else None
        self._on_disk: dict[int, bytes] = {}
        self.followers = Followers(self.address, CLIENTS, seed)
        self.ledger = self.followers.ledger

    def start(self, role: str, **order: Any) -> None:
        """Start a process."""
        if role == "node" and self._journal is not None:
            self._on_disk = read_store(self._store)
            order["journal"] = str(self._journal)
        super().start(role, **order)

    def suffer(
        self, disturb: Callable[[WorkflowChaos], None], seconds: float, rounds: int | None = None, runs: int = 0
    ) -> Findings:
        """Disturb for a time, or some times, let all runs end, and compare the accounts. ``runs``: the least to start."""
        try:
            self.followers.start()
            end = time.monotonic() + seconds
            while (time.monotonic() < end) if rounds is None else rounds:
                disturb(self)
                rounds = None if rounds is None else rounds - 1
            self.ledger.await_count("starts", runs, TIMEOUT)
        finally:
            stuck = self.followers.end()
        assert not stuck, f"stuck: {stuck}\n{self.log()}"
        violations = self.followers.audit(read_executions(self.effects), read_commits(self.directory))
        return Findings(violations, self.ledger.counts, self.log())

    # ---- disturbances ----

    def kill_some(self) -> None:
        """SIGKILL the node, a worker or all of them after a moment, and start them again; sometimes again at their start."""
        self.ledger.await_progress(self.chance.randrange(MOST_EVENTS))
        time.sleep(self.chance.uniform(0, 0.02))
        victims = self.chance.choice([("node",), ("node",), ("first",), ("second",), ("node", *WORKERS)])
        while True:
            self.ledger.note("kills", len(victims))
            self.kill(*victims)
            for victim in victims:
                self.start(victim)
            if self.chance.random() > 0.15:
                return
            time.sleep(self.chance.uniform(0, 0.1))

    def lose_power(self) -> None:
        """Cut the power after a moment, and start everything again."""
        assert self._journal is not None
        self.ledger.await_progress(self.chance.randrange(MOST_EVENTS, 3 * MOST_EVENTS))
        time.sleep(self.chance.uniform(0, 0.02))
        self.kill("node", *WORKERS)
        lost = cut_power(self._store, self._on_disk, self._journal, self.chance)
        self.ledger.note("power cuts")
        self.ledger.note("sectors lost", lost)
        for role in self.pids:
            self.start(role)


def read_executions(
    effects: Path, was_held: Callable[[int, float], bool] = lambda _pid, _at: False
) -> Iterator[Execution]:
    """Return the lines of a file of executions; ``was_held``: whether a process was held shortly before a time."""
    with effects.open() as file:
        for line in file:
            run, place, before, token, at = json.loads(line)
            yield Execution(run, place, before, token, at, late=was_held(int(token.partition(".")[0]), at))


def read_commits(directory: Path) -> Commits:
    """Return the commits of the nodes in a directory."""
    with (directory / COMMITS).open() as file:
        return Commits(file)

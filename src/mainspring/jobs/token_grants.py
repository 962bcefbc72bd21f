"""Grants of tokens and starts to a node of a fleet by the shared store, so that a limit applies to all nodes together.

A node requests as many tokens as its waiting jobs and free workers can use now. It reuses its tokens, and returns those that it
has not used for a second.

Jobs go to the node that has the tokens of their key. A node that gets none gives the key's jobs back to the store, which
announces them; the holder claims them and runs them. So no job waits in the memory of one node for a token at another.

Some jobs cannot go: foreground jobs, and jobs that a strategy reserves for their node. Their node waits, and the store
remembers its demand. The holder learns of it with its next request, at most a second later. From the next end of a job on it
then keeps no more than an even share, and returns the rest at once. A refused node repeats its request after pauses that grow up
to a second, or at the hint that follows a return. So tokens rotate if there are fewer tokens than nodes that need one.

A start, of a rate, is for immediate use: it expires soon after its grant.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import to_us
from mainspring.jobs.admission import UNBOUNDED
from mainspring.resources import rules
from mainspring.resources.rules import FUNCTION_POOL, pool_of
from mainspring.resources.store import Acquire, Grant, TokenRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import Account, AdmissionQueue, KeyQueue, OpenAccount
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.table import Context
    from mainspring.resources.rules import Rate

MIN_PAUSE_US: Final = 50_000
MAX_PAUSE_US: Final = 1_000_000
"""The first and the longest pause after a refusal."""
REVIEW_INTERVAL_US: Final = 1_000_000
"""The time between two reviews of a pool with tokens: unused tokens are returned, and other nodes may need some."""
ELSEWHERE_US: Final = 1_000_000
"""The time for which a node does not take new jobs of a key into memory whose tokens other nodes hold."""
POOLS_PER_OPERATION: Final = 1000
"""Pools in one operation."""


class GrantedAccount:
    """A node's tokens of one pool. Times are microseconds of its monotonic clock."""

    __slots__ = (
        "_keep",
        "_pause_us",
        "_peak",
        "asking",
        "concurrency",
        "contended",
        "elsewhere_us",
        "expiry_us",
        "leased",
        "rate",
        "retry_us",
        "reviewed_us",
        "starts",
    )

    def __init__(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.leased = 0
        """Tokens that are this node's."""
        self.starts = 0
        self.expiry_us = 0
        """When the starts lapse."""
        self.asking = False
        self.retry_us = 0
        """The earliest time of the next request after a refusal."""
        self.reviewed_us = now_us
        self.elsewhere_us = 0
        """Until when other nodes count as the holders of all tokens."""
        self.contended = False
        """Whether other nodes waited for tokens at the last grant."""
        self._pause_us = MIN_PAUSE_US
        self._peak = 0
        """The most jobs that ran at the same time since the last review."""
        self._keep: int | None = None
        """The most tokens to use, because other nodes need some; None: all."""

    # ---- the account, for the admission queue ----

    def free(self, running: int, now_us: int) -> int:
        """Return how many may start."""
        free = self.room(running)
        if free > 0 and self.rate is not None:
            free = min(free, self.starts if now_us < self.expiry_us else 0)
        return free

    def room(self, running: int) -> int:
        """Return for how many more jobs there are tokens."""
        self._peak = max(self._peak, running)
        if self.concurrency is None:
            return UNBOUNDED
        usable = self.leased if self._keep is None else min(self.leased, self._keep)
        return min(usable, self.concurrency) - running

    def consume(self, now_us: int) -> None:
        """Start one."""
        del now_us
        if self.rate is not None:
            self.starts -= 1

    def next_us(self, running: int, now_us: int) -> int | None:
        """Return None: time alone brings no tokens, they have to be requested."""
        del running, now_us
        return None

    def change(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        """Go on with what is leased."""
        del now_us
        self.concurrency, self.rate = concurrency, rate
        self.retry_us = 0

    def is_new(self, now_us: int) -> bool:
        """Return whether the account has no tokens, and no request is in progress or paused."""
        return not self.leased and not self.asking and now_us >= max(self.retry_us, self.elsewhere_us)

    def is_elsewhere(self, now_us: int) -> bool:
        """Return whether a request got no token a short time ago."""
        return now_us < self.elsewhere_us

    # ---- asking ----

    def lacks(self, running: int, more: int, now_us: int) -> bool:
        """Return whether a request for ``more`` jobs is needed now."""
        if more <= 0 or self.asking or now_us < self.retry_us:
            return False
        if self._keep is not None:
            return False  # it has its share, and soon less
        if self.concurrency is not None and self.leased < min(running + more, self.concurrency):
            return True
        room = self.room(running)
        return self.rate is not None and room > 0 and (now_us >= self.expiry_us or self.starts < min(more, room))

    def ask(
        self,
        function: bytes,
        pool: bytes,
        running: int,
        more: int,
        now_us: int,
        *,
        waits: bool = True,
        all_unused: bool = False,
        announced: bool = False,
    ) -> TokenRequest:
        """Return a request for tokens and starts for ``more`` jobs; from now on no more is used than is requested.

        With ``all_unused``, it also returns tokens that were used a short time ago.
        """
        self.asking = True
        self.reviewed_us = now_us
        tokens = demand = 0
        if self.concurrency is not None:
            tokens = demand = max(min(running + more, self.concurrency), running)
            if not more and not all_unused:
                tokens = max(tokens, min(self._peak, self.leased))  # recently used tokens may be used again
            if self._keep is not None:
                tokens = max(min(tokens, self._keep), running)
            self.leased = min(self.leased, tokens)
        self._peak = running
        starts = 0
        if self.rate is not None:
            have = self.starts if now_us < self.expiry_us else 0
            room = more if self.concurrency is None else max(min(more, tokens - running), 0)
            starts = max(min(room, _in_a_second(self.rate)) - have, 0)
        rate = None if self.rate is None else rules.grant_rate(self.rate)
        return TokenRequest(
            function, pool, tokens, self.concurrency or 0, starts, rate, max(demand, tokens), waits, announced
        )

    def granted(self, ask: TokenRequest, grant: Grant, now_us: int, store_us: int) -> bool:
        """Apply a grant; return whether the waiting jobs have to be given back. ``store_us`` is the store's time now."""
        self.asking = False
        kept, self._keep = self._keep, None
        refused = False
        self.contended = grant.short
        self.elsewhere_us = 0
        if ask.limit:
            fresh = grant.tokens > self.leased
            self.leased = grant.tokens
            refused = grant.tokens < ask.tokens
            if refused and not grant.tokens and not ask.waits:
                self.elsewhere_us = now_us + ELSEWHERE_US
                self.retry_us = 0
                return True
            fair = rules.fair_share(ask.limit, grant.claimants)
            if grant.short and self.leased > fair and not fresh:
                # New tokens are used first: with more nodes than tokens, they would only rotate otherwise.
                self._keep = fair
            elif kept is not None:
                # Nodes that needed the returned tokens come first, even after the longest pause.
                self.retry_us = now_us + MAX_PAUSE_US + MIN_PAUSE_US
                return False
        if ask.rate is not None and ask.starts:
            self.starts = grant.starts + (self.starts if now_us < self.expiry_us else 0)
            self.expiry_us = now_us + rules.GRANT_EXPIRY_US
            refused = refused or not grant.starts
        if not refused:
            self._pause_us = MIN_PAUSE_US
            self.retry_us = 0
            return False
        pause_us = self._pause_us
        self._pause_us = min(2 * self._pause_us, MAX_PAUSE_US)
        if ask.starts and not grant.starts and grant.tokens >= ask.tokens:
            pause_us = min(max(grant.next_us - store_us, 1_000), MAX_PAUSE_US)
        self.retry_us = now_us + pause_us
        return False

    def not_granted(self, now_us: int) -> None:
        """Nobody knows what the store has noted; it is not more than what was asked for, and not used."""
        self.asking = False
        self.retry_us = now_us + MAX_PAUSE_US

    def wanted_elsewhere(self, running: int) -> bool:
        """Return whether it has tokens that are free now, and that others want."""
        return self._keep is not None and self.leased > max(self._keep, running)

    def is_owed(self, running: int, *, idle: bool) -> bool:
        """Return whether to return tokens now: other nodes wait for them, and this one may not or cannot use them."""
        unused = self.contended and self.leased > 0 and idle
        return not self.asking and (unused or self.wanted_elsewhere(running))

    def hint(self) -> None:
        """Allow a request at once: there may be tokens again."""
        self.retry_us = 0

    def forget(self) -> None:
        """Forget all tokens, because the node's term has ended."""
        self.leased = self.starts = self.retry_us = 0
        self.elsewhere_us = 0
        self.asking = self.contended = False
        self._keep = None


class _Ask(NamedTuple):
    """A request under way to one pool; the key None is the function's own pool."""

    key: bytes | None
    more: int
    """The number of jobs of a key that wait for the grant."""
    request: TokenRequest


class GrantedAccounts:
    """A node's accounts of all pools, by queue and key; the key None is the function's own pool."""

    def __init__(self) -> None:
        self.of: dict[FunctionQueue, dict[bytes | None, GrantedAccount]] = {}

    def opener(self, queue: FunctionQueue) -> OpenAccount:
        """Return what opens a function's accounts."""

        def open_account(pool: bytes, concurrency: int | None, rate: Rate | None, now_us: int) -> Account:
            key = None if pool == FUNCTION_POOL else pool[1:]
            accounts = self.of.setdefault(queue, {})
            account = accounts.get(key)
            if account is None:
                account = accounts[key] = GrantedAccount(concurrency, rate, now_us)
            else:
                account.change(concurrency, rate, now_us)
            return account

        return open_account


class TokenGrants:
    """Requests the tokens that admission queues need. ``serve`` and ``serve_at`` hand out the jobs that may start then.

    ``give_back`` gives a waiting job back to the store. ``is_open`` returns whether any node may claim a function's jobs.
    """

    def __init__(
        self,
        context: Context,
        accounts: GrantedAccounts,
        serve: Callable[[FunctionQueue], None],
        serve_at: Callable[[FunctionQueue, int], None],
        give_back: Callable[[Held], None],
        is_open: Callable[[FunctionQueue], bool],
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._clock = context.clock
        self._accounts = accounts.of
        self._serve = serve
        self._serve_at = serve_at
        self._give_back = give_back
        self._is_open = is_open
        self._contended: dict[FunctionQueue, set[bytes | None]] = {}
        """The pools with tokens for which other nodes waited at the last grant."""
        self._in_flight: Counter[FunctionQueue] = Counter()
        """The number of jobs for which tokens of keys are requested."""
        self._run = 0
        """The number of lost terms: answers to earlier requests are ignored."""

    # ---- what is needed ----

    def serve(self, queue: FunctionQueue) -> None:
        """Request the tokens that waiting jobs need to start at free workers."""
        admission = queue.admission
        accounts = self._accounts.get(queue)
        if admission is None or accounts is None or self._dispatch.paused or admission.paused:
            return
        now_us = admission.now_us()
        if queue in self._contended:
            self._return_owed(queue, admission, accounts, now_us)
        places = queue.places()
        if not places:
            return
        asks: list[_Ask] = []
        own = accounts.get(None)
        if own is not None and admission.own is own:
            more = min(queue.size + queue.claimable(), places)
            if own.lacks(admission.running, more, now_us):
                asks.append(_Ask(None, 0, own.ask(queue.name, FUNCTION_POOL, admission.running, more, now_us)))
        if admission.short:
            self._ask_for_keys(queue, admission, accounts, asks, now_us)
        self._put(queue, asks)
        self._come_again(queue, admission, accounts, now_us)

    def _ask_for_keys(
        self,
        queue: FunctionQueue,
        admission: AdmissionQueue[Held],
        accounts: dict[bytes | None, GrantedAccount],
        asks: list[_Ask],
        now_us: int,
    ) -> None:
        """Request the tokens of keys: for as many jobs as the workers can run at once, so that other nodes get the others."""
        places = queue.places()
        slots = places + queue.running
        left = slots - self._in_flight[queue] - admission.startable(slots)
        for key in list(admission.short):
            key_queue, account = admission.key_queues.get(key), accounts.get(key)
            if key_queue is None or account is None or key_queue.account is not account or not key_queue.parked:
                admission.short.discard(key)
                continue
            more = min(key_queue.size, places, left)
            if account.lacks(key_queue.running, more, now_us):
                left -= more
                self._in_flight[queue] += more
                waits = self._has_to_wait(queue, key_queue)
                ask = account.ask(queue.name, pool_of(key), key_queue.running, more, now_us, waits=waits)
                asks.append(_Ask(key, more, ask))

    def _has_to_wait(self, queue: FunctionQueue, key_queue: KeyQueue[Held]) -> bool:
        """Return whether a key has jobs that only this node can run."""
        if not self._is_open(queue):
            return True
        return queue.foreground > 0 and any(not held.stored for held in _waiting(key_queue))

    def _return_owed(
        self,
        queue: FunctionQueue,
        admission: AdmissionQueue[Held],
        accounts: dict[bytes | None, GrantedAccount],
        now_us: int,
    ) -> None:
        """Return the tokens for which other nodes wait and that this node may not or cannot use."""
        asks: list[_Ask] = []
        places = queue.places()
        for key in list(self._contended[queue]):
            account = accounts.get(key)
            if account is None or not (account.contended or account.wanted_elsewhere(0)):
                self._contended[queue].discard(key)
                continue
            running, waiting = self._use(queue, admission, key)
            # A node may request the function's own tokens for jobs that another one claims. If it returned them at once, the
            # nodes could pass them on for ever.
            if account.is_owed(running, idle=key is not None and not running and not waiting):
                more = min(waiting, places)
                ask = account.ask(queue.name, _pool(key), running, more, now_us, all_unused=not waiting)
                asks.append(_Ask(key, 0, ask))
        if not self._contended[queue]:
            del self._contended[queue]
        self._put(queue, asks)

    @staticmethod
    def _use(queue: FunctionQueue, admission: AdmissionQueue[Held], key: bytes | None) -> tuple[int, int]:
        """Return how many jobs of a pool run, and how many wait for its tokens."""
        if key is None:
            return admission.running, queue.size + queue.claimable()
        key_queue = admission.key_queues.get(key)
        return (0, 0) if key_queue is None else (key_queue.running, key_queue.size)

    def _come_again(
        self,
        queue: FunctionQueue,
        admission: AdmissionQueue[Held],
        accounts: dict[bytes | None, GrantedAccount],
        now_us: int,
    ) -> None:
        """Serve the queue again when the first pause after a refusal is over."""
        waiting = [accounts[key] for key in admission.short if key in accounts]
        if admission.own is not None and None in accounts:
            waiting.append(accounts[None])
        times = [account.retry_us for account in waiting if account.retry_us > now_us]
        if times:
            self._serve_at(queue, min(times))

    # ---- asking ----

    def _put(self, queue: FunctionQueue, asks: list[_Ask]) -> None:
        for start in range(0, len(asks), POOLS_PER_OPERATION):
            self._put_part(queue, asks[start : start + POOLS_PER_OPERATION], self._run)

    def _put_part(self, queue: FunctionQueue, asks: list[_Ask], run: int) -> None:
        self._commits.put(
            Acquire(self._table.term, [ask.request for ask in asks], to_us(self._clock.wall())),
            lambda grants: self._granted(queue, asks, grants, run),
            lambda error: self._not_granted(queue, asks, error, run),
        )

    def _granted(self, queue: FunctionQueue, asks: list[_Ask], grants: list[Grant], run: int) -> None:
        if run != self._run:
            return
        self._came(queue, asks)
        accounts = self._accounts.get(queue, {})
        now_us, store_us = to_us(self._clock.monotonic()), to_us(self._clock.wall())
        for (key, _, request), grant in zip(asks, grants, strict=True):
            account = accounts.get(key)
            if account is None:
                continue
            elsewhere = account.granted(request, grant, now_us, store_us)
            if account.contended or account.wanted_elsewhere(0):
                self._contended.setdefault(queue, set()).add(key)
            if queue.admission is not None:
                queue.admission.granted(key)
                if elsewhere and key is not None:
                    self._give_key_back(queue.admission, key)
        self._serve(queue)

    def _give_key_back(self, admission: AdmissionQueue[Held], key: bytes) -> None:
        """Give a key's jobs back, for the node that has its tokens."""
        key_queue = admission.key_queues.get(key)
        if key_queue is not None:
            for held in [held for held in _waiting(key_queue) if held.stored]:
                self._give_back(held)

    def _not_granted(self, queue: FunctionQueue, asks: list[_Ask], error: StoreError, run: int) -> None:
        del error  # the request is repeated
        if run == self._run:
            self._came(queue, asks)
            accounts = self._accounts.get(queue, {})
            for ask in asks:
                if ask.key in accounts:
                    accounts[ask.key].not_granted(to_us(self._clock.monotonic()))

    def _came(self, queue: FunctionQueue, asks: list[_Ask]) -> None:
        self._in_flight[queue] -= sum(ask.more for ask in asks)
        if self._in_flight[queue] <= 0:
            del self._in_flight[queue]

    # ---- time ----

    def hint(self, queue: FunctionQueue) -> None:
        """Request tokens again, because another node may have returned some, or given back the jobs that need this node's."""
        accounts = self._accounts.get(queue, {})
        for account in accounts.values():
            account.hint()
        if queue.admission is not None and self._table.term and not queue.places():
            self._return_unused(queue, queue.admission, accounts)
        self.serve(queue)

    def _return_unused(
        self, queue: FunctionQueue, admission: AdmissionQueue[Held], accounts: dict[bytes | None, GrantedAccount]
    ) -> None:
        """Return the tokens that no worker here can use now, so that other nodes can run the announced jobs."""
        asks: list[_Ask] = []
        now_us = admission.now_us()
        for key, account in accounts.items():
            running, _ = self._use(queue, admission, key)
            if account.leased > running and not account.asking:
                ask = account.ask(queue.name, _pool(key), running, 0, now_us, all_unused=True, announced=True)
                asks.append(_Ask(key, 0, ask))
        self._put(queue, asks)

    def tick(self) -> None:
        """Return tokens that are unused or that other nodes need, and learn whether others need some."""
        if not self._table.term:
            return
        now_us = to_us(self._clock.monotonic())
        for queue, accounts in list(self._accounts.items()):
            admission = queue.admission
            places = 0 if self._dispatch.paused else queue.places()
            asks: list[_Ask] = []
            for key, account in list(accounts.items()):
                if account.asking:
                    continue
                key_queue = None if admission is None or key is None else admission.key_queues.get(key)
                holder = admission if key is None else key_queue
                running = 0 if holder is None else holder.running
                in_use = (
                    admission is not None
                    and (admission.own if key is None else key_queue and key_queue.account) is account
                )
                if not account.leased and not in_use:
                    if account.is_new(now_us):
                        del accounts[key]
                    continue
                waiting = 0
                if in_use and admission is not None and not admission.paused:
                    waiting = queue.size + queue.claimable() if key is None else key_queue.size if key_queue else 0
                since_us = now_us - account.reviewed_us
                idle = key is not None and not running and not waiting
                soon = idle or account.wanted_elsewhere(running)
                if not account.leased or since_us < (MIN_PAUSE_US if soon else REVIEW_INTERVAL_US):
                    continue
                more = min(waiting, places)
                ask = account.ask(queue.name, _pool(key), running, more, now_us, announced=not places)
                asks.append(_Ask(key, 0, ask))
            self._put(queue, asks)
            if not accounts:
                del self._accounts[queue]

    def forget(self) -> None:
        """The node's term has ended."""
        self._run += 1
        self._in_flight.clear()
        self._contended.clear()
        for accounts in self._accounts.values():
            for account in accounts.values():
                account.forget()


def _pool(key: bytes | None) -> bytes:
    return FUNCTION_POOL if key is None else pool_of(key)


def _waiting(key_queue: KeyQueue[Held]) -> list[Held]:
    return [held for ready in key_queue.ready for held in ready if held.queued]


def _in_a_second(rate: Rate) -> int:
    return max(rate.number * 1_000_000 // rate.per_us, 1)

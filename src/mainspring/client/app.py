"""The part of an App that connects to servers, and to the jobs on them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, TypeVar

from mainspring import namespaces
from mainspring.client import environment
from mainspring.client.completions import Completions
from mainspring.client.connections import Connections, check_limit, limit_or_default
from mainspring.client.environment import namespace_or_default, servers_or_default
from mainspring.client.events import EventReader, checked_filter
from mainspring.client.job import SubmittedJob, aresults, check_handle, results
from mainspring.client.operating import Functions, Jobs, Runs
from mainspring.client.options import Options, check_name, check_text, refusal, seconds
from mainspring.client.sockets import tls_of_environment
from mainspring.client.submission import Submission, Verbatim
from mainspring.codecs import NO_CODECS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mainspring.client.environment import Address
    from mainspring.client.job import Job
    from mainspring.client.options import Duration
    from mainspring.client.submission import Check
    from mainspring.codecs import Codecs

R = TypeVar("R")


class AppClient:
    """The servers of an App, and the jobs on them. ``check`` refuses options that the App's store does not support.

    Raises UsageError for a wrong ``server``, ``tls``, ``namespace`` or ``request_timeout``.
    """

    def __init__(
        self,
        server: str | None,
        tls: ssl.SSLContext | None,
        check: Check,
        namespace: str | None = None,
        request_timeout: Duration | None = None,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        if server is not None:
            check_text(server, "server", "HOST:PORT, or several with commas")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise refusal("tls", "an ssl.SSLContext", tls)
        if namespace is not None:
            check_text(namespace, "namespace", "its name")
            namespaces.check(namespace)
        self._server = server
        self._directory = environment.directory()  # code may change the working directory before the first connection
        self._tls = tls
        self._check = check
        self._namespace = namespace
        self._request_timeout = None if request_timeout is None else check_limit(request_timeout, "request_timeout")
        self.connections = Connections(
            self.servers, self.tls, lambda: self.namespace, lambda: limit_or_default(self._request_timeout), codecs
        )
        self.jobs = Jobs(self.connections)
        self.runs = Runs(self.connections)
        self.functions = Functions(self.connections)
        self.completions = Completions(self.connections)

    @property
    def namespace(self) -> str:
        """The namespace of the App's tasks, workflows and schedules, and of its jobs. Raises UsageError if that is invalid."""
        return namespace_or_default(self._namespace)

    def servers(self) -> tuple[Address, ...]:
        """Return the servers' addresses. Raises SettingsError."""
        return servers_or_default(self._server, self._directory)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for TLS; None: do not use TLS. Raises SettingsError.

        The environment's TLS files apply only to servers from the environment or the default one, not to a ``server`` argument.
        """
        return self._tls if self._tls is not None or self._server else tls_of_environment(self._directory)

    def connect_to(self, server: str | None) -> str | None:
        """Connect to other servers from now on, given as in ``App(server)``; return the previous ones.

        For tests, and for programs that get their server's address late.
        """
        if server is not None:
            check_text(server, "server", "HOST:PORT, or several with commas")
        before, self._server = self._server, server
        self._directory = environment.directory()
        self.connections.forget()
        return before

    def function(self, name: str) -> Submission[..., bytes]:
        """Return a function by its name, in any language.

        Its ``submit`` takes one payload: bytes, which are sent unchanged, or another value, which is sent as JSON. With keyword
        arguments, the payload is a JSON object. Its jobs' results are bytes.

        Raises UsageError for an invalid function name.
        """
        check_name(name)
        return Submission(name, Verbatim(name), self.connections, Options(), check=self._check)

    def job(self, handle: str) -> Job[bytes]:
        """Return a job by its handle, with its result as bytes. This sends nothing to the server.

        Raises UsageError for an invalid handle.
        """
        return SubmittedJob(self.connections, check_handle(handle), bytes)

    def results(self, jobs: Sequence[Job[R]], timeout: Duration | None = None) -> Iterator[R]:
        """Yield the results of many jobs in order, with many requests at once; ``timeout`` is for all jobs together.

        At the first job that did not succeed, raises as ``Job.result``.
        """
        return results(self.connections, jobs, None if timeout is None else seconds(timeout, "timeout"))

    def aresults(self, jobs: Sequence[Job[R]]) -> AsyncIterator[R]:
        """Yield the results of many jobs in order, as ``results`` does."""
        return aresults(self.connections, jobs)

    def events(
        self, *types: str, function: str | None = None, tag: str | None = None, cursor: str | None = None
    ) -> EventReader:
        """Return an iterator over events, for a plain loop or ``async for``, which never ends.

        ``types`` are names such as ``"job.failed"``, or patterns such as ``"job.*"``; without any, all types. ``function`` may be
        a pattern, too. With a ``cursor``, the store has the place of the program under this name: it goes on there after a
        restart, and gets each event in order, at least once. Without one, it begins with the events from now on.

        Raises UsageError for a type that is no text; the loop raises it for others that do not exist.
        """
        return EventReader(self.connections, checked_filter(types, function, tag), cursor)

    def close(self) -> None:
        """Close the connection of the blocking methods. The next call opens a new one."""
        self.connections.close()

    async def aclose(self) -> None:
        """Close the connection of the asyncio methods on the running loop."""
        await self.connections.aclose()

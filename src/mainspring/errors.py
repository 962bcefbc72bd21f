"""All errors of Mainspring, as one tree.

MainspringError
├── UsageError                what was asked for cannot be right, whatever the state of things
│   ├── PayloadError          a payload or a result cannot be read as what the task declares
│   └── SettingsError         a setting, an option or an address is wrong
├── ServerError               a server answered with an error, or could not be asked
│   ├── ConnectionLostError   no server could be reached, or the connection ended; the outcome is unknown
│   ├── RefusedError          the server refused one request and said why
│   ├── NotFoundError         no job has that handle
│   └── ConflictError         the job is not in a state that allows it
├── StoreError                the durable record failed
│   ├── StoreFullError        no space is left; nothing that was accepted is lost
│   ├── StoreBusyError        another node has the store, or another program has locked it
│   ├── StoreUnavailableError the store's server or file cannot be reached, or refuses connections
│   ├── StoreFencedError      the node's term was ended by other nodes, for they took it for dead
│   ├── StoreCorruptError     the store's content is damaged
│   ├── StoreBrokenError      the disk failed; the process must end
│   └── StoreForeignError     the file belongs to another program or to a newer version
├── WorkerFullError           a task waits for a job that its worker has no place for
├── IllegalTransitionError    a job was asked for a step that its state does not allow: a defect of ours
└── JobError                  how a job ended, for whoever waits for it
    ├── JobFailed             all attempts failed; carries the last error
    ├── JobCancelled          somebody cancelled it
    ├── JobExpired            it was not started in time
    └── JobLost               the server does not know the handle (any more)

Errors carry data; the faces turn them into codes of their protocol.
"""

from __future__ import annotations


class MainspringError(Exception):
    """The root of the tree."""


class UsageError(MainspringError):
    """A request that cannot be right, whatever the state of things."""


class PayloadError(UsageError):
    """A payload or a result cannot be read as what the task declares, or written as JSON."""


class SettingsError(UsageError):
    """A setting, an option or an address is wrong."""


class ServerError(MainspringError):
    """A server answered with an error, or could not be asked."""


class ConnectionLostError(ServerError):
    """No server could be reached, or the connection ended; the outcome of pending requests is unknown."""


class RefusedError(ServerError):
    """The server refused one request.

    ``code`` is the code of the protocol's ``ERROR`` packet.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(ServerError):
    """No job has that handle."""


class ConflictError(ServerError):
    """The job is not in a state that allows what was asked."""


class StoreError(MainspringError):
    """The durable record failed."""


class StoreFullError(StoreError):
    """No space is left; nothing that was accepted is lost."""


class StoreBusyError(StoreError):
    """Another node has the store, or another program has locked it: another try may help."""


class StoreUnavailableError(StoreError):
    """The store's server cannot be reached, or refuses connections; or the store's file is not in its place."""


class StoreFencedError(StoreError):
    """The node's term was ended: other nodes have its jobs, and nothing of the group has happened."""


class StoreCorruptError(StoreError):
    """The store's content is damaged."""


class StoreBrokenError(StoreError):
    """The disk failed, and what is on it is known only after a new start: the process must end.

    After a failed ``fsync`` the system may have thrown the unwritten pages away and forgotten about it, so that the next one
    succeeds and proves nothing.
    """


class StoreForeignError(StoreError):
    """The file belongs to another program, or to a newer version of this one."""


class WorkerFullError(MainspringError):
    """A task waits for a job that has not started, and all places of its worker are held by tasks that wait in the same way."""


class IllegalTransitionError(MainspringError):
    """A job was asked for a step that its state does not allow: a defect of Mainspring itself."""


class JobError(MainspringError):
    """How a job ended, for whoever waits for it; ``handle`` names the job."""

    def __init__(self, handle: str, message: str) -> None:
        super().__init__(message)
        self.handle = handle


class JobFailed(JobError):  # noqa: N818 - an outcome, named as users say it
    """All attempts failed.

    ``type_name``, ``reason`` and ``traceback`` are those of the last attempt; ``attempt`` is its number, 1 is the first.
    """

    def __init__(self, handle: str, type_name: str, reason: str, traceback: str | None, attempt: int) -> None:
        super().__init__(handle, f"job {handle} failed at attempt {attempt}: {type_name}: {reason}")
        self.type_name = type_name
        self.reason = reason
        self.traceback = traceback
        self.attempt = attempt


class JobCancelled(JobError):  # noqa: N818
    """Somebody cancelled the job."""


class JobExpired(JobError):  # noqa: N818
    """The job was not started in time."""


class JobLost(JobError):  # noqa: N818
    """The server does not know the handle: it never existed there, or its result is no longer kept."""

"""The criteria for jobs of a list or of an operation on many jobs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs.model import Job, Options, State, decode_failure
from mainspring.jobs.user_data import indexed_tags
from mainspring.namespaces import ANY, namespace_of
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_STATES = tuple(State)
_NO_OPTIONS = Options()


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Criteria for jobs. A job matches if it meets all of them; a criterion that is left out restricts nothing.

    Operations on many jobs store it as MessagePack, so a field is never renamed.
    """

    states: tuple[State, ...] = ()
    """Any of these states; none stands for all."""
    function: bytes | None = None
    functions: tuple[str, ...] = ()
    """Names or patterns such as ``pay*``, of which one has to match: a caller may be restricted to them (`access.caller`)."""
    namespace: str = ANY
    unique: bytes | None = None
    key: bytes | None = None
    """The concurrency key."""
    schedule: str | None = None
    """The schedule that made the job."""
    run: int | None = None
    """The run of a workflow to which the job belongs."""
    error_type: str | None = None
    """The type of the last failure."""
    tag: str | None = None
    """The only criterion that has an index of its own."""
    created_from_us: int = 0
    """The earliest time of submission; 0 for any."""
    created_to_us: int = 0
    """The time before which the job was submitted; 0 for any."""

    def matches(self, job: Job) -> bool:
        """Return whether a job matches."""
        return (
            (not self.states or job.state in self.states)
            and (self.function is None or job.function == self.function)
            and self.namespace in {ANY, namespace_of(job.function)}
            and (self.unique is None or job.unique == self.unique)
            and job.created_us >= self.created_from_us
            and (not self.created_to_us or job.created_us < self.created_to_us)
            and (self.key is None or job.key == self.key)
            and (not self.functions or matches_pattern(job.function, self.functions))
            and self._matches_options(job.options or _NO_OPTIONS)
            and (self.tag is None or self.tag in indexed_tags(job))
            and (self.error_type is None or (bool(job.error) and decode_failure(job.error).type == self.error_type))
        )

    def _matches_options(self, options: Options) -> bool:
        return (self.schedule is None or options.schedule == self.schedule) and (
            self.run is None or (options.run is not None and options.run[0] == self.run)
        )

    @property
    def in_options(self) -> tuple[bytes | None, bytes | None]:
        """Return bytes that the stored options of each matching job contain: for its schedule, and for its run."""
        schedule = None if self.schedule is None else self.schedule.encode()
        return schedule, None if self.run is None else msgspec.msgpack.encode(self.run)

    @property
    def error_prefix(self) -> bytes | None:
        """Return the first bytes of the stored error of each matching job."""
        return None if self.error_type is None else b'{"type":' + msgspec.json.encode(self.error_type) + b","


def matches_pattern(function: bytes, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches a function's name."""
    name = function_text(function)
    return any(fnmatchcase(name, pattern) for pattern in patterns)

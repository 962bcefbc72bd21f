"""The things that some stores lack, and the sentences that refuse requests for them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Feature(StrEnum):
    """A thing that some stores lack (`storage.engine.Engine.lacks`), with the sentence that refuses a request for it."""

    ACCESS = "access", "this node's store keeps no tokens, acts and marks: use a store on SQLite or PostgreSQL"
    """Credentials and the audit (`access.store`), also marks and acknowledgements."""
    COMPLETIONS = (
        "completions",
        "this node's store is on ZooKeeper, which keeps no completion tokens: use SQLite or PostgreSQL",
    )
    """Completion tokens (`jobs.completion_rules`)."""
    CONFLICTS = (
        "conflicts",
        (
            "this node's store is on ZooKeeper, which only joins live jobs: leave out on_conflict and debounce, or use SQLite"
            " or PostgreSQL"
        ),
    )
    """Submits by a rule about the live job of their unique (`conflicts.rules`)."""
    EVENTS = (
        "events",
        "this node's store keeps no events: a store on SQLite or PostgreSQL, or in memory, does",
    )
    """The event log (`event_log.store`)."""
    DEADLINES = (
        "deadlines",
        (
            "this node's store is on ZooKeeper, which keeps no deadlines: leave out deadline and start_within, or use SQLite"
            " or PostgreSQL"
        ),
    )
    """The times by which jobs should have begun and ended (`jobs.lateness`)."""
    EXTERNAL = (
        "external",
        "this node's store is on ZooKeeper, which keeps no work that runs elsewhere: use SQLite or PostgreSQL",
    )
    """Work that runs elsewhere, watched by workers (`external.store`)."""
    JOB_CHANGES = "job_changes", "this node's store changes no jobs: cancel the job, and submit another one"
    """Rescheduled waiting jobs, and jobs redriven later or with other arguments (`jobs.store.Reschedule`, `Redrive`). Clients
    delete jobs on such a store alone; `DeleteEnded` is done by all, for jobs that are kept for a shorter time."""
    LIMITS = (
        "limits",
        "this node's store is on ZooKeeper, which keeps no limits, pauses or keys of functions: use SQLite or PostgreSQL",
    )
    """Limits, pauses and keys of functions."""
    LINES = "lines", "this node's store has no lines of pending jobs"
    """Lines of pending jobs, whose first jobs can be read (`queries.FirstInLine`)."""
    LOGS = "logs", "this node's store keeps no logs of jobs: a store on SQLite or PostgreSQL, or in memory, does"
    """The logs of jobs (`job_logs.service`)."""
    NAMESPACES = (
        "namespaces",
        "this node's store has the namespace 'default' alone: SQLite, PostgreSQL and memory keep others, and ZooKeeper does not",
    )
    """Functions of other namespaces than ``default``."""
    OPERATIONS = (
        "operations",
        (
            "this node's store is on ZooKeeper, which keeps no operations on many jobs, nor backfills: use one request for"
            " each job, and trigger schedules"
        ),
    )
    """Operations on many jobs, and backfills (`bulk.store`)."""
    RECORDS = "records", "this node's store is on ZooKeeper, and shows arguments only of jobs in the node's memory"
    """Arguments and attempts of ended jobs (`queries.Recall`)."""
    REQUEST_KEYS = (
        "request_keys",
        "this node's store keeps no request keys (SQLite, PostgreSQL and memory do): leave out request_key",
    )
    """Answers to requests with a key, in the transaction of the act (`access.idempotency`)."""
    SERIES = (
        "series",
        "this node's store is on ZooKeeper, which keeps no series of functions: use a store on SQLite or PostgreSQL",
    )
    """Series of functions (`series`)."""
    VALUES = (
        "values",
        "this node's store keeps no published values: a store on SQLite or PostgreSQL, or in memory, does",
    )
    """Published values of jobs and runs (`values.service`)."""
    STREAMS = (
        "streams",
        "this node's store keeps no streams: a store on SQLite or PostgreSQL, or in memory, does",
    )
    """Streams of jobs and runs (`streams.service`)."""
    WORKFLOWS = "workflows", "this node's store keeps no workflows: a store on SQLite or PostgreSQL, or in memory, does"
    """Runs of workflows: `jobs.slices.RunTransaction`, jobs with `Options.forget`, which are deleted at their end, and requests
    to stop held jobs (`jobs.store.RequestStop`)."""

    refusal: str
    """Why a request that needs it is refused."""

    def __new__(cls, word: str, refusal: str) -> Self:  # noqa: D102 - as of all enumerations with attributes
        feature = str.__new__(cls, word)
        feature._value_ = word
        feature.refusal = refusal
        return feature

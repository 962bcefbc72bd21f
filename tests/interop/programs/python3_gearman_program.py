# ruff: noqa: T201 - it prints its answers
"""The library `python3-gearman`: see README.md. It supports only text."""

from __future__ import annotations

import sys
from typing import Any

import python3_gearman  # type: ignore[import-not-found, unused-ignore]


def client(port: int, mode: str, jobs: list[str]) -> None:
    client = python3_gearman.GearmanClient([f"127.0.0.1:{port}"])
    wanted = []
    for text in jobs:
        function, data = text.split("=")
        wanted.append({"task": function, "data": bytes.fromhex(data).decode()})
    background = mode == "background"
    for request in client.submit_multiple_jobs(wanted, background=background, poll_timeout=20.0):
        function = request.job.task
        for data in request.data_updates:
            print(function, "data", data.encode().hex())
        for data in request.warning_updates:
            print(function, "warning", data.encode().hex())
        if request.status:
            print(function, "status", request.status["numerator"], request.status["denominator"])
        if request.exception is not None:
            print(function, "exception", request.exception.encode().hex())
        if request.state == python3_gearman.JOB_COMPLETE:
            print(function, "complete", request.result.encode().hex())
        elif request.state == python3_gearman.JOB_FAILED:
            print(function, "failed")
        elif request.state == python3_gearman.JOB_CREATED and background:
            print(function, "created")
        else:
            raise SystemExit(f"{function}: {request.state}")


def worker(port: int, prefix: str) -> None:
    worker = python3_gearman.GearmanWorker([f"127.0.0.1:{port}"])

    def fail(_: Any, job: Any) -> str:
        worker.send_job_failure(job)
        return ""

    def progress(_: Any, job: Any) -> str:
        worker.send_job_data(job, "part")
        worker.send_job_warning(job, "careful")
        worker.send_job_status(job, 1, 2)
        return "whole"

    worker.register_task(f"{prefix}-upper", lambda _, job: job.data.upper())
    worker.register_task(f"{prefix}-progress", progress)
    worker.work()


if __name__ == "__main__":
    if sys.argv[2] == "worker":
        worker(int(sys.argv[1]), sys.argv[3])
    else:
        client(int(sys.argv[1]), sys.argv[3], sys.argv[4:])

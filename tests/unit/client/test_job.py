"""The handles on jobs that submits return."""

from __future__ import annotations

from mainspring import App


def test_a_submitted_job_takes_no_memory_for_a_dictionary() -> None:
    app = App()

    @app.task
    def count(number: int) -> int:
        return number

    for job in (count.job("H:node:1"), app.job("H:node:1")):
        assert not hasattr(job, "__dict__"), "submit_many would be slower: it creates very many jobs"

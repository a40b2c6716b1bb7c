"""A job whose client leaves while it is stored is made, and counts."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fusionray.errors import StoreFull
from fusionray.serving.auth.callers import Caller
from fusionray.serving.http.jobs.starting import admit_job
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import CreatedJob
from tests.support.waiting import wait_for


class Jobs:
    """Jobs whose store waits for `go_on` before it answers, or raises."""

    def __init__(self, answer: CreatedJob | Exception) -> None:
        self.answer = answer
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.refunds: list[int] = []
        self.woken = threading.Event()
        self.store = self.requests = self
        self.worker = SimpleNamespace(wake=self.woken.set)

    def create(self, owner: str, new: NewJob) -> CreatedJob:
        """Store a job, slowly."""
        self.begun.set()
        assert self.go_on.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def admit(self, caller: Caller, num_images: int) -> str:
        """Admit everybody."""
        return "receipt"

    def refund(self, admitted: str, num_images: int) -> None:
        """Write down what is given back."""
        self.refunds.append(num_images)


NEW = NewJob({}, b"source", [b"target"] * 3)
MADE: Any = SimpleNamespace(job="job")


async def leave(jobs: Any) -> None:
    request = asyncio.create_task(admit_job(Caller("ann"), jobs, NEW, None))
    await asyncio.to_thread(jobs.begun.wait, 20)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert (jobs.refunds, jobs.woken.is_set()) == ([], False)
    jobs.go_on.set()
    await asyncio.to_thread(wait_for, lambda: jobs.refunds or jobs.woken.is_set())


def test_a_client_that_leaves_gets_no_images_back_for_a_job_that_is_made() -> None:
    jobs = Jobs(CreatedJob(MADE, is_new=True))
    asyncio.run(leave(jobs))
    assert (jobs.refunds, jobs.woken.is_set()) == ([], True)


@pytest.mark.parametrize("answer", [StoreFull("full"), CreatedJob(MADE, is_new=False)])
def test_a_job_that_is_not_made_counts_for_nothing(answer: CreatedJob | Exception) -> None:
    jobs = Jobs(answer)
    asyncio.run(leave(jobs))
    assert (jobs.refunds, jobs.woken.is_set()) == ([3], False)

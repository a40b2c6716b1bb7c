"""Jobs with films, as a client of a service starts them and waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.waiting import wait_for

SOURCE = encode(draw_person(9, 160), "PNG")
# The cluster starts a process for each film, on a machine that does other things.
END_SECONDS = 250.0


def start(
    client: httpx.Client, film: bytes | None, headers: dict[str, str] | None = None, **form: Any
) -> httpx.Response:
    """Start a job with a film, whose name says that it is a picture, or with what the form names."""
    files = [] if {"identity", "source_uri"} & form.keys() else [("source", ("a", SOURCE))]
    files += [] if film is None else [("target", ("holiday.jpg", film))]
    if not files:
        # A form of many parts, as all routes that take files have.
        files = [(name, (None, value)) for name, value in form.items()]
        form = {}
    return client.post("/v1/jobs", files=files, data=form, headers=headers)


def start_one(client: httpx.Client, film: bytes | None, **form: Any) -> str:
    """Start a job that is accepted; return its ID."""
    started = start(client, film, **form)
    assert started.status_code == 202, started.text
    job: str = started.json()["job"]
    return job


def look(client: httpx.Client, job: str) -> dict[str, Any]:
    """Return the JSON of a job."""
    document: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
    return document


def wait_for_end(client: httpx.Client, job: str) -> dict[str, Any]:
    """Wait until a job has ended; return its JSON."""
    wait_for(lambda: look(client, job)["ended_at"], END_SECONDS)
    return look(client, job)


def wait_for_stage(client: httpx.Client, job: str, stage: str) -> None:
    """Wait until the film of a job is in a stage, and has some of its frames done."""

    def is_there() -> bool:
        document = look(client, job)
        assert document["ended_at"] is None, document
        return document["video"]["stage"] == stage and document["video"]["frames_done"] > 0

    wait_for(is_there, END_SECONDS)


def reason_of(response: httpx.Response) -> tuple[int, str]:
    """Return the status and the reason of a refusal."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["reason"]


def remove_jobs(client: httpx.Client) -> None:
    """Remove all jobs."""
    while jobs := client.get("/v1/jobs", params={"limit": 200}).json()["jobs"]:
        for job in jobs:
            client.delete(f"/v1/jobs/{job['job']}")


def job_folder(folder: Path, job: str) -> Path:
    """Return the folder of a job in the folder of a service."""
    return folder / "runs" / "jobs" / "jobs" / job

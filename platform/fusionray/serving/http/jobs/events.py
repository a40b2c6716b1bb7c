"""The route that tells each change of a job, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from fusionray.errors import UnknownJob
from fusionray.serving.http.forms import JobId, find_caller
from fusionray.serving.http.openapi import problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.jobs.documents import describe_job
from fusionray.serving.problems import explain
from fusionray.serving.tasks.job_service import JobService

EVENTS = "text/event-stream"
STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {EVENTS: {"schema": {"type": "string"}}},
        "description": "`event: progress` at each change with the JSON of the job as `data`, at last `event: end` "
        "(or `event: removed`); comments in between keep the connection",
    }
}
# A look reads the job's folder, because any replica may work on the job.
LOOK_SECONDS = 0.5
# Less than the time-outs of HAProxy (75 s) and of usual proxies and clients.
HEARTBEAT_SECONDS = 10.0
HEARTBEAT = ": still there\n\n"

Look = Callable[[], Awaitable[dict[str, Any]]]


def add_event_route(api: FastAPI, jobs: JobService) -> None:
    """Add the route of events."""

    @api.get(
        "/v1/jobs/{job}/events",
        summary="Follow a job by server-sent events",
        response_class=Response,
        responses=STREAM_RESPONSE | problems(404),
    )
    async def follow(request: Request, job: JobId) -> Response:
        loop, owner = asyncio.get_running_loop(), find_caller(request).name

        async def look() -> dict[str, Any]:
            return describe_job(await loop.run_in_executor(None, jobs.store.status, job, owner))

        try:
            first = await look()
        except UnknownJob as error:
            return answer(explain(error))
        # The second header tells proxies such as nginx to pass on each event at once.
        headers = {**NO_STORE, "X-Accel-Buffering": "no"}
        return StreamingResponse(follow_job(first, look), headers=headers, media_type=EVENTS)


async def follow_job(state: dict[str, Any], look: Look) -> AsyncIterator[str]:
    """Yield an event for the state, one for each change, and one for the end; comments if nothing changes."""
    told: dict[str, Any] | None = None
    told_at = time.monotonic()
    while True:
        if state != told:
            told, told_at = state, time.monotonic()
            yield write_event("progress" if state["ended_at"] is None else "end", state)
            if state["ended_at"] is not None:
                return
        elif time.monotonic() - told_at >= HEARTBEAT_SECONDS:
            told_at = time.monotonic()
            yield HEARTBEAT
        await asyncio.sleep(LOOK_SECONDS)
        try:
            state = await look()
        except UnknownJob:
            yield write_event("removed", {"job": state["job"]})
            return


def write_event(name: str, data: dict[str, Any]) -> str:
    """Write one event.

    Source: HTML Living Standard, section 9.2 (server-sent events).
    """
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"

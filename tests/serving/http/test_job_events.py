from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusionray.errors import UnknownJob
from fusionray.serving.http.jobs import events


def follow(states: list[dict[str, Any] | None]) -> list[str]:
    """Follow a job through states; None: it is removed."""

    async def look() -> dict[str, Any]:
        state = states.pop(0)
        if state is None:
            raise UnknownJob("no such job")
        return state

    async def read() -> list[str]:
        return [event async for event in events.follow_job(await look(), look)]

    return asyncio.run(read())


def test_nothing_new_is_told_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.0)
    waiting = {"job": "j", "done": 0, "ended_at": None}
    told = follow([waiting, waiting, waiting, {**waiting, "done": 1}, None])
    assert told == [
        events.write_event("progress", waiting),
        events.HEARTBEAT,
        events.HEARTBEAT,
        events.write_event("progress", {**waiting, "done": 1}),
        events.write_event("removed", {"job": "j"}),
    ]
    assert all(event.endswith("\n\n") for event in told)

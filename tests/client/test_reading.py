"""JSON becomes answers; what a service of this version does not send is named."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from fusionray.client.answers import FoundFaces, Item, Job, KeptIdentity, NewKey, Usage
from fusionray.client.events import read_events
from fusionray.client.reading import build_answer, read_boxes, read_problem, read_timing
from fusionray.errors import AnswerInvalid

JOB: dict[str, Any] = {
    "job": "a1",
    "status": "done",
    "total": 2,
    "done": 1,
    "failed": 1,
    "created_at": "2026-11-24T10:00:00+00:00",
    "ended_at": "2026-11-24T10:00:05+00:00",
    "expires_at": "2026-11-25T10:00:05+00:00",
    "reason": None,
    "webhook": {
        "host": "example.org",
        "state": "delivered",
        "attempts": [{"at": "2026-11-24T10:00:06+00:00", "status": 204, "error": None}],
    },
}


def test_a_job_has_times_and_nested_values() -> None:
    job = build_answer(Job, JOB | {"of_a_newer_service": 1})
    assert (job.job, job.total, job.has_ended) == ("a1", 2, True)
    assert job.created_at == datetime(2026, 11, 24, 10, tzinfo=UTC)
    assert job.webhook is not None
    assert [attempt.status for attempt in job.webhook.attempts] == [204]
    assert not build_answer(Job, JOB | {"ended_at": None, "webhook": None}).has_ended


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total": "2"}, "Job.total: the service sent str for int"),
        ({"total": True}, "Job.total: the service sent bool for int"),
        ({"created_at": "yesterday"}, "Job.created_at: the service sent 'yesterday' for a time"),
        ({"webhook": []}, "Job.webhook: the service sent no JSON object"),
        ({"webhook": {"host": "h", "state": "s"}}, "Job.webhook.attempts: the service did not send it"),
        ({"webhook": {"host": "h", "state": "s", "attempts": 3}}, "Job.webhook.attempts: the service sent no list"),
    ],
)
def test_a_field_that_is_not_understood_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(AnswerInvalid, match=words):
        build_answer(Job, JOB | change)


def test_numbers_of_json_become_floats_where_floats_are_meant() -> None:
    face = {"index": 0, "box": [1, 2, 3, 4], "landmarks": [[1, 2.5]] * 5, "score": 1}
    (found,) = build_answer(FoundFaces, {"width": 9, "height": 9, "faces": [face]}).faces
    assert (found.box, found.landmarks[0], found.score, found.similarity) == ((1, 2, 3, 4), (1.0, 2.5), 1.0, None)
    assert isinstance(found.landmarks[0][0], float)
    with pytest.raises(AnswerInvalid, match="box: the service sent no list of the expected length"):
        build_answer(FoundFaces, {"width": 9, "height": 9, "faces": [face | {"box": [1, 2, 3]}]})


def test_a_limit_that_is_null_is_none() -> None:
    usage = {"name": "ann", "admin": False, "expires": None, "models": ["a"], "images_per_day": None}
    limit = {"limit": 60, "used": 1, "remaining": 9, "reset_seconds": 1}
    told = build_answer(Usage, usage | {"requests_per_minute": limit})
    assert (told.models, told.images_per_day) == (("a",), None)
    assert told.requests_per_minute is not None
    assert told.requests_per_minute.remaining == 9


def test_the_problem_of_an_item_can_be_raised() -> None:
    problem = {"status": 422, "reason": "no_face", "detail": "no face was found", "picture": "target", "title": "t"}
    item = build_answer(Item, {"index": 2, "status": "failed", "problem": problem})
    assert item.problem is not None
    assert (item.problem.status, item.problem.reason, item.problem.picture) == (422, "no_face", "target")
    assert str(item.problem) == "no face was found (422 no_face)"


def test_secrets_are_not_shown() -> None:
    assert "id_secret" not in repr(KeptIdentity("id_secret"))
    assert "fr_secret" not in repr(NewKey("ann", "fr_secret"))


def test_headers_become_boxes_and_milliseconds() -> None:
    assert read_boxes("1,2,3,4;5,6,7,8") == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert read_boxes("") == ()
    assert read_timing("decode;dur=8.40, total;dur=216") == {"decode": 8.4, "total": 216.0}


@pytest.mark.parametrize("document", [None, [], "text", {"status": "x", "reason": 3}])
def test_a_refusal_without_a_problem_document_is_told_by_its_status(document: Any) -> None:
    refused = read_problem(document, 408)
    assert (refused.status, refused.reason, refused.detail) == (408, "request_timeout", "Request Timeout")
    assert read_problem(document, 799).reason == "refused"


def test_events_tell_each_change_and_comments_nothing() -> None:
    running, done = dict(JOB, ended_at=None), dict(JOB)
    lines = [
        "event: progress",
        f"data: {json.dumps(running)}",
        "",
        ": still there",
        "",
        "event: end",
        f"data: {json.dumps(done)}",
    ]
    lines += ["", "event: removed", 'data: {"job": "a1"}', ""]
    assert [state.has_ended for state in read_events(lines)] == [False, True]
    with pytest.raises(AnswerInvalid, match="its data is no JSON"):
        list(read_events(["event: end", "data: {"]))

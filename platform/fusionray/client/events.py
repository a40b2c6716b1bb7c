"""Server-sent events: the changes of a job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from fusionray.client.answers import Job
from fusionray.client.reading import build_answer
from fusionray.errors import AnswerInvalid

# Events whose data is the JSON of the job.
JOB_EVENTS = frozenset({"progress", "end"})


def read_events(lines: Iterable[str]) -> Iterator[Job]:
    """Yield the job at each event of a stream, until it closes.

    Source: HTML Living Standard, section 9.2.6; the service sends each `data` as one line.

    Raises: AnswerInvalid.
    """
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name in JOB_EVENTS:
            try:
                document = json.loads(value)
            except ValueError:
                raise AnswerInvalid("event of a job: its data is no JSON; is it a fusionray service?") from None
            yield build_answer(Job, document)

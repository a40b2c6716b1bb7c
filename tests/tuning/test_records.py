from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.tuning.records import (
    Attempt,
    CheckpointTransfer,
    SearchRecords,
    TrialReport,
    repeated_images,
    trained_images,
)
from tests.tuning.tiny_search import build_record


@pytest.fixture
def records(tmp_path: Path) -> SearchRecords:
    return SearchRecords(str(tmp_path / "search"))


def test_a_new_search_has_no_records(records: SearchRecords) -> None:
    assert records.trials() == []
    assert records.attempts("tiny-000") == []
    assert records.transfers("tiny-000") == []
    assert records.spent_seconds() == 0


def test_trials_come_back_in_their_order(records: SearchRecords) -> None:
    written = [build_record(number, "finished", [0.5, 0.6]) for number in (2, 0, 1)]
    for record in written:
        records.write(record)
    records.write_spent(12.5)
    assert records.trials() == sorted(written, key=lambda record: record.number)
    assert records.spent_seconds() == 12.5


def test_attempts_and_transfers_belong_to_their_trial(records: SearchRecords) -> None:
    for number in range(1, 12):
        records.write_attempt("a", number, Attempt(run="/a", first_images=number, last_images=number))
    records.write_attempt("a", 3, Attempt(run="/a", first_images=3, last_images=99, ended="interrupted"))
    transfer = CheckpointTransfer(
        run="/b-g1", source_trial="a", checkpoint="/a/checkpoint-3", images=3, settings={"x": [1, 2]}
    )
    records.write_transfer("b", 1, transfer)
    assert [attempt.first_images for attempt in records.attempts("a")] == list(range(1, 12))
    assert records.attempts("a")[2].last_images == 99
    assert records.transfers("b") == [transfer]
    assert records.transfers("a") == []
    assert records.trials() == []


def test_a_repeated_report_replaces_the_former(records: SearchRecords) -> None:
    record = build_record(0, "running", [0.5, 0.6, 0.7])
    again = record.with_report(TrialReport(images=128, value=0.9, run="/runs/tiny-000"))
    assert [(report.images, report.value) for report in again.reports] == [(64, 0.5), (128, 0.9)]
    assert again.last is not None
    assert again.last.value == 0.9


def test_repeated_images_are_counted_for_each_restart() -> None:
    first = Attempt(run="/a", first_images=0, last_images=150)
    again = Attempt(run="/a", first_images=128, last_images=140)
    third = Attempt(run="/a", first_images=128, last_images=256, ended="finished")
    assert repeated_images([first]) == []
    assert repeated_images([first, again, third]) == [22, 22]
    assert trained_images([first, again, third]) == 150 + 12 + 128


def test_a_run_that_starts_from_a_copy_repeats_nothing() -> None:
    attempts = [
        Attempt(run="/a", first_images=0, last_images=200, ended="interrupted"),
        Attempt(run="/a-g1", first_images=128, last_images=256, ended="finished"),
    ]
    assert repeated_images(attempts) == []


def test_messages_of_a_training_are_kept_in_order(records: SearchRecords) -> None:
    records.write_attempt("a", 1, Attempt(run="/a", first_images=0, last_images=0))
    records.log("a", ["one", "two"])
    records.log("a", ["three"])
    assert (Path(records.folder) / "a" / "log.txt").read_text() == "one\ntwo\nthree\n"
    assert len(records.attempts("a")) == 1

"""The result of a search, from records alone, without running trials."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fusionray.config import load_config
from fusionray.errors import TrainingFailed
from fusionray.reporting.figures import Figures
from fusionray.tracking.runs import open_run
from fusionray.tracking.store import make_client
from fusionray.training.config import TrainConfig
from fusionray.tuning.monitor import changed, format_table
from fusionray.tuning.plan import SearchPlan
from fusionray.tuning.records import Attempt, CheckpointTransfer, SearchRecords, TrialRecord
from fusionray.tuning.result import SearchResult, conclude, write_preset
from fusionray.tuning.search import AshaScheduler, TrialSearcher, build_scheduler
from tests.support.page_shape import check_page
from tests.tuning.tiny_search import BATCH, EVERY, RATE, build_plan, build_record, build_search

TRIALS = [
    build_record(0, "finished", [0.50, 0.60], {RATE: 1e-3, BATCH: 8}),
    build_record(1, "finished", [0.55, 0.75], {RATE: 2e-3, BATCH: 16}),
    build_record(2, "stopped", [0.90], {RATE: 1e-4, BATCH: 8}),
    build_record(3, "failed", [], {RATE: 1e-2, BATCH: 8}),
    build_record(4, "finished", [0.45, 0.55], {RATE: 5e-3, BATCH: 8}),
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> SearchPlan:
    plan = build_plan(tmp_path_factory.mktemp("search"), trials=5)
    uri = plan.train.tracking.uri
    assert uri is not None
    return replace(plan, parent_run=open_run(uri, "fusionray", "tiny", {}, key="search"))


def write_trials(plan: SearchPlan, trials: list[TrialRecord]) -> SearchRecords:
    records = SearchRecords(plan.folder)
    for record in trials:
        records.write(record)
        last = record.last.images if record.last else 0
        records.write_attempt(record.name, 1, Attempt(run=record.name, first_images=0, last_images=last))
    return records


@pytest.fixture(scope="module")
def result(plan: SearchPlan) -> SearchResult:
    records = write_trials(plan, TRIALS)
    failed = Attempt(run=TRIALS[3].name, first_images=0, last_images=0, ended="failed", error="no such encoder")
    records.write_attempt(TRIALS[3].name, 1, failed)
    again = Attempt(run=TRIALS[1].name, first_images=64, last_images=128, ended="finished")
    records.write_attempt(TRIALS[1].name, 2, again)
    records.write_spent(90)
    return conclude(plan)


def test_the_best_trial_is_the_finished_one_with_the_best_last_value(result: SearchResult) -> None:
    assert result.best.name == "tiny-001"
    figures = result.figures.figures
    assert figures["best_value"].value == 0.75
    assert figures["gain_over_default"].value == pytest.approx(0.15)
    assert figures["gain_over_default"].holds is True
    assert "0.15 better than the default" in result.summary
    assert [figures[f"trials_{status}"].value for status in ("finished", "stopped", "failed")] == [3, 1, 1]


def test_trained_and_repeated_images_are_reported(result: SearchResult) -> None:
    figures = result.figures.figures
    assert figures["images_trained"].value == 128 + (128 + 64) + 64 + 0 + 128
    assert figures["repeated_images"].value == 64
    assert figures["restarts"].value == 1
    assert figures["search_minutes"].value == 1.5


def test_the_best_preset_is_a_training_with_its_settings(plan: SearchPlan, result: SearchResult) -> None:
    config = load_config(TrainConfig, file=result.preset)
    assert config.recipe.optimizer.base_lr == 2e-3  # type: ignore[union-attr]
    assert config.engine.global_batch == 16
    assert config.run.name == "tiny-best"
    assert config.budget == plan.train.budget
    assert Path(result.preset).read_text().startswith("# The best of the search 'tiny': tiny-001")


def test_followers_of_a_setting_are_in_the_preset(tmp_path: Path) -> None:
    follower = "recipe.optimizer.weight_decay"
    space = {RATE: {"loguniform": [1e-4, 1e-2], "also": [follower]}}
    config = build_search(tmp_path, space=space)
    (tmp_path / "best.yaml").write_text(write_preset(config, TRIALS[1]))
    optimizer = load_config(TrainConfig, file=tmp_path / "best.yaml").recipe.optimizer  # type: ignore[union-attr]
    assert optimizer.weight_decay == optimizer.base_lr == 2e-3


def test_the_report_shows_trials_curves_and_importance(plan: SearchPlan, result: SearchResult) -> None:
    shape = check_page((Path(plan.folder) / "report.html").read_text())
    assert shape.words_of("verification_auc of each trial over the images seen")
    assert shape.words_of("Settings of 4 trials, and the verification_auc of each")
    # The best and the default stand out, others do not; the one that was stopped is dotted; the failed one has no line.
    for name, dots in (("parallel", 0), ("learning", 7)):
        svg = (Path(plan.folder) / f"{name}.svg").read_text()
        lines = sorted(re.findall(r'<polyline class="line ([^"]*)"', svg))
        assert lines == ["main", "other", "other dotted", "second"], name
        assert "best: tiny-001" in svg
        assert svg.count("<circle") == dots, name
    text = (Path(plan.folder) / "report.md").read_text()
    rows = re.findall(r"^\| (tiny-\d+) \| (\w+) \| (\d+) \| (\S*) \| (\d+) \|", text, re.MULTILINE)
    assert ("tiny-001", "finished", "128", "0.75", "2") in rows
    assert ("tiny-002", "stopped", "64", "0.9", "1") in rows
    assert len(rows) == 5
    assert "| tiny-003 | no such encoder |" in text
    written = Figures.model_validate_json((Path(plan.folder) / "figures.json").read_bytes())
    assert written == result.figures


def test_figures_and_report_are_logged_to_the_run_of_the_search(plan: SearchPlan, result: SearchResult) -> None:
    client = make_client(str(plan.train.tracking.uri))
    run = client.get_run(plan.parent_run)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["best_value"] == 0.75
    names = {artifact.path for artifact in client.list_artifacts(plan.parent_run)}
    assert {"report.html", "figures.json", "best.yaml", "parallel.svg"} <= names


def test_transferred_checkpoints_are_listed(plan: SearchPlan, result: SearchResult) -> None:
    transfer = CheckpointTransfer(
        run="/r", source_trial="tiny-001", checkpoint="/c", images=64, settings={RATE: 8e-4, BATCH: 8}
    )
    SearchRecords(plan.folder).write_transfer("tiny-004", 1, transfer)
    conclude(plan)
    text = (Path(plan.folder) / "report.md").read_text()
    assert "| tiny-004 | tiny-001 | 64 | 8 | 0.0008 |" in text or "| tiny-004 | tiny-001 | 64 | 0.0008 | 8 |" in text


def test_a_default_that_stays_the_best_is_reported(tmp_path: Path, plan: SearchPlan) -> None:
    other = replace(plan, folder=str(tmp_path))
    write_trials(other, [TRIALS[0], TRIALS[4]])
    found = conclude(other)
    assert found.best.number == 0
    assert found.figures.figures["gain_over_default"].holds is False
    assert "the default is the best" in found.summary
    assert found.figures.not_measured["importance"].startswith("fewer than four trials")


def test_without_a_finished_default_there_is_nothing_to_compare_with(tmp_path: Path, plan: SearchPlan) -> None:
    other = replace(plan, folder=str(tmp_path))
    write_trials(other, [TRIALS[0].model_copy(update={"status": "running"}), TRIALS[1]])
    found = conclude(other)
    assert "gain_over_default" not in found.figures.figures
    assert "did not finish" in found.figures.not_measured["gain_over_default"]
    assert "the default did not finish" in found.summary


@pytest.mark.parametrize(
    ("trials", "words"),
    [([TRIALS[3]], "tiny-003 failed: no such encoder"), ([TRIALS[2]], "no trial finished; raise max_minutes")],
)
def test_a_search_without_a_finished_trial_says_why(
    tmp_path: Path, plan: SearchPlan, trials: list[TrialRecord], words: str
) -> None:
    other = replace(plan, folder=str(tmp_path))
    records = write_trials(other, trials)
    failed = Attempt(run="r", first_images=0, last_images=0, ended="failed", error="no such encoder")
    records.write_attempt(TRIALS[3].name, 1, failed)
    with pytest.raises(TrainingFailed, match=words):
        conclude(other)


def test_the_table_has_a_line_for_each_trial(plan: SearchPlan, result: SearchResult) -> None:
    table = format_table(plan, SearchRecords(plan.folder), 90)
    assert table[0] == "tune tiny: 5 of 5 trials ended, best 0.75 (tiny-001), 1.5 minutes"
    assert table[1].split()[:4] == ["trial", "status", "images", "verification_auc"]
    assert table[3].split()[:4] == ["tiny-001", "finished", "128/128", "0.75"]
    assert len(table) == 7


def test_the_table_is_printed_again_when_a_trial_changes() -> None:
    former = ["tune: 0.1 minutes", "trial status", "a running 0/9", "b running 1/9"]
    assert not changed(former, ["tune: 0.2 minutes", "trial status", "a running 5/9", "b running 1/9"])
    assert changed(former, ["tune: 0.2 minutes", "trial status", "a finished 9/9", "b running 1/9"])
    assert changed([], former)


def test_a_new_start_keeps_ended_trials_and_continues_the_others(tmp_path: Path, plan: SearchPlan) -> None:
    other = replace(plan, folder=str(tmp_path))
    write_trials(other, [*TRIALS[:4], build_record(4, "running", [0.5])])
    searcher = TrialSearcher(other)
    assert searcher.unfinished == ["tiny-003", "tiny-004"]
    assert searcher.number_left == 0
    assert not searcher.is_finished()


def test_a_default_that_fails_before_any_report_ends_the_search(tmp_path: Path, plan: SearchPlan) -> None:
    searcher = TrialSearcher(replace(plan, folder=str(tmp_path)))
    first = searcher.propose(0)
    searcher.update(first)
    assert first.name == "tiny-000"
    searcher.on_trial_complete("tiny-000", error=True)
    assert searcher.is_finished()
    assert [record.status for record in SearchRecords(str(tmp_path)).trials()] == ["failed"]
    # The next start tries it again.
    assert TrialSearcher(replace(plan, folder=str(tmp_path))).unfinished == ["tiny-000"]


def test_a_trial_that_ends_is_finished_stopped_or_only_interrupted(tmp_path: Path, plan: SearchPlan) -> None:
    searcher = TrialSearcher(replace(plan, folder=str(tmp_path)))
    report = {plan.config.metric: 0.5, "metrics/loss": 1.0, "images": EVERY, "run": "r"}
    ends = {
        "finished": {**report, "done": True, "complete": True, "tracking_run": "abc"},
        "stopped": {**report, "done": True},
        "waiting": {"done": True},
    }
    for number, result in enumerate(ends.values()):
        searcher.update(searcher.propose(number))
        searcher.on_trial_complete(f"tiny-{number:03d}", result)
    records = SearchRecords(str(tmp_path)).trials()
    assert [record.status for record in records] == list(ends)
    assert records[0].tracking_run == "abc"
    assert records[0].reports[0].metrics == {"loss": 1.0}
    assert records[2].reports == ()


def test_asha_continues_from_earlier_reports(tmp_path: Path) -> None:
    plan = build_plan(tmp_path, asha={"grace_images": EVERY, "factor": 2}, trials=5)
    write_trials(plan, [build_record(0, "finished", [0.2, 0.3]), build_record(1, "finished", [0.8, 0.9])])
    scheduler = build_scheduler(plan)
    assert isinstance(scheduler, AshaScheduler)
    decisions = {}
    for name, value in (("tiny-002", 0.4), ("tiny-003", 0.95)):
        trial = type("Trial", (), {"trial_id": name})()
        scheduler.on_trial_add(None, trial)
        decisions[name] = scheduler.on_trial_result(None, trial, {"milestone": EVERY, plan.config.metric: value})
    assert decisions == {"tiny-002": "STOP", "tiny-003": "CONTINUE"}


def test_asha_never_stops_the_default(tmp_path: Path) -> None:
    plan = build_plan(tmp_path, asha={"grace_images": EVERY, "factor": 2}, trials=5)
    write_trials(plan, [build_record(1, "finished", [0.8, 0.9]), build_record(2, "finished", [0.8, 0.9])])
    scheduler = build_scheduler(plan)
    for name, wanted in (("tiny-000", "CONTINUE"), ("tiny-003", "STOP")):
        trial = type("Trial", (), {"trial_id": name})()
        scheduler.on_trial_add(None, trial)
        assert scheduler.on_trial_result(None, trial, {"milestone": EVERY, plan.config.metric: 0.1}) == wanted

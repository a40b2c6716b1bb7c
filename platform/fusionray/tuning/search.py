"""The search algorithm and the scheduler for Ray Tune: they propose trials, and stop, pause or replace them.

Both are built from the records, not from Tune's pickles: a new start of the search first continues the unfinished
trials, then proposes the remaining ones, and replays earlier reports to the scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import SearchAlgorithm

from fusionray.storage import filesystem as storage
from fusionray.tuning.plan import SearchPlan, milestone, trial_name
from fusionray.tuning.records import DONE_STATUSES, SearchRecords, TrialRecord, TrialReport
from fusionray.tuning.sampler import perturb_settings, propose
from fusionray.tuning.space import Settings, default_settings

# Attribute of Tune's results that counts images; Tune's own training_iteration starts again at each start.
TIME_ATTRIBUTE = "milestone"
METRICS_PREFIX = "metrics/"


class TrialSearcher(SearchAlgorithm):  # type: ignore[misc]
    """Propose trials to Tune, limit how many run at once, and record their results."""

    def __init__(self, plan: SearchPlan) -> None:
        self.plan = plan
        self.records = SearchRecords(plan.folder)
        self.trials = {record.name: record for record in self.records.trials()}
        self.unfinished = [record.name for record in self.trials.values() if record.status not in DONE_STATUSES]
        self.live: set[str] = set()
        self.spec: dict[str, Any] = {}
        self.broken = False

    def add_configurations(self, experiments: Any) -> None:
        """Store the specification that Tune requires in every trial."""
        (experiment,) = experiments
        self.spec = experiment.spec

    @property
    def total_samples(self) -> int:
        """Count the trials of the search."""
        return self.plan.config.trials

    def is_finished(self) -> bool:
        """Return whether no trial is left to propose."""
        return bool(self._finished) or self.broken or not (self.unfinished or self.number_left)

    @property
    def number_left(self) -> int:
        """Count the trials that were not proposed yet."""
        return max(0, self.plan.config.trials - len(self.trials))

    def next_trial(self) -> Trial | None:
        """Return the next trial, unfinished ones first; None while the maximum number of trials runs."""
        if self.is_finished() or len(self.live) >= self.plan.config.max_concurrent_trials:
            return None
        record = self.trials[self.unfinished.pop(0)] if self.unfinished else self.propose(len(self.trials))
        settings = self.settings_of(record)
        self.update(record.model_copy(update={"status": "running", "settings": settings}))
        self.live.add(record.name)
        return Trial(
            self.spec["run"],
            config={"settings": settings},
            trial_id=record.name,
            experiment_tag=str(record.number),
            stopping_criterion=self.spec["stop"],
            checkpoint_config=self.spec["checkpoint_config"],
            max_failures=self.spec["max_failures"],
            trial_dirname_creator=self.spec["trial_dirname_creator"],
            storage=self.spec["storage"],
        )

    def propose(self, number: int) -> TrialRecord:
        """Propose a trial from the current records."""
        config = self.plan.config
        default = default_settings(config.space, self.plan.train)
        settings = propose(config, default, list(self.trials.values()), number)
        return TrialRecord(name=trial_name(config.name, number), number=number, settings=settings)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Record an evaluation."""
        record = self.trials[trial_id]
        report = read_report(result, self.plan)
        if report is None:
            return
        if record.last is not None and record.last.run != report.run:
            record = record.model_copy(update={"settings": self.settings_of(record)})
        self.update(record.with_report(report))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record how a trial ended; an interrupted one stays unfinished."""
        self.live.discard(trial_id)
        if result:
            self.on_trial_result(trial_id, result)
        record = self.trials[trial_id]
        if error:
            self.update(record.model_copy(update={"status": "failed"}))
            # If the unchanged training fails, its variants would fail too: end the search with the error.
            self.broken |= record.number == 0 and not any(other.reports for other in self.trials.values())
        elif result and result.get("complete"):
            tracking_run = str(result["tracking_run"])
            self.update(record.model_copy(update={"status": "finished", "tracking_run": tracking_run}))
        elif result and self.plan.config.metric in result:
            self.update(record.model_copy(update={"status": "stopped"}))

    def settings_of(self, record: TrialRecord) -> Settings:
        """Return the current settings of a trial: those of its last transfer, if there is one."""
        transfers = self.records.transfers(record.name)
        return transfers[-1].settings if transfers else record.settings

    def update(self, record: TrialRecord) -> None:
        self.trials[record.name] = record
        self.records.write(record)


def read_report(result: dict[str, Any], plan: SearchPlan) -> TrialReport | None:
    """Read an evaluation from a flattened result of Tune; None if it has none, or the training has diverged.

    Records are JSON, which knows neither NaN nor infinity.
    """
    if not math.isfinite(result.get(plan.config.metric, math.nan)):
        return None
    metrics = {
        key.removeprefix(METRICS_PREFIX): float(value)
        for key, value in result.items()
        if key.startswith(METRICS_PREFIX) and math.isfinite(value)
    }
    run = storage.join(plan.train.run.output, result["run"])
    return TrialReport(images=result["images"], value=float(result[plan.config.metric]), run=run, metrics=metrics)


def build_scheduler(plan: SearchPlan) -> TrialScheduler:
    """Build the scheduler, and replay the reports of earlier starts of the search."""
    config = plan.config
    if config.search == "pbt":
        interval = config.population.interval_images or plan.train.budget.validate_every_images
        return PopulationBasedTraining(
            time_attr=TIME_ATTRIBUTE,
            perturbation_interval=interval,
            quantile_fraction=config.population.quantile,
            custom_explore_fn=PerturbFn(plan),
            # Synchronous: the result does not depend on the speed of the members.
            synch=True,
            require_attrs=False,
            log_config=False,
        )
    if config.asha is None:
        return FIFOScheduler()
    scheduler = AshaScheduler(
        trial_name(config.name, 0),
        max_t=plan.images,
        grace_period=config.asha.grace_images,
        reduction_factor=config.asha.factor,
    )
    scheduler.set_search_properties(config.metric, config.mode)
    scheduler.replay(SearchRecords(plan.folder).trials(), plan.train.budget.validate_every_images)
    return scheduler


class PerturbFn:
    """Perturb the settings that belong to a checkpoint for the member that continues from it; each call differs."""

    def __init__(self, plan: SearchPlan) -> None:
        records = SearchRecords(plan.folder)
        self.config = plan.config
        self.num_calls = sum(len(records.transfers(record.name)) for record in records.trials())

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """Perturb the settings in a trial's configuration."""
        self.num_calls += 1
        random = np.random.default_rng([self.config.seed, self.config.trials, self.num_calls])
        return {**config, "settings": perturb_settings(self.config, config["settings"], random)}


class AshaScheduler(AsyncHyperBandScheduler):  # type: ignore[misc]
    """ASHA that replays earlier reports, and never stops the default trial.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning".
    """

    def __init__(self, default_trial: str, **settings: Any) -> None:
        super().__init__(time_attr=TIME_ATTRIBUTE, **settings)
        self.default_trial = default_trial

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Set metric and mode; Tune sets them again after the replay."""
        return bool(super().set_search_properties(metric, mode, **spec)) or (metric, mode) == (self._metric, self._mode)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide whether a trial continues; the default always does, because all others are compared with it."""
        decision: str = super().on_trial_result(tune_controller, trial, result)
        return str(TrialScheduler.CONTINUE) if trial.trial_id == self.default_trial else decision

    def replay(self, records: Sequence[TrialRecord], interval: int) -> None:
        """Add the reports of earlier starts of the search to the rungs."""
        for record in records:
            stand_in = SimpleNamespace(trial_id=record.name)
            self.on_trial_add(None, stand_in)
            for report in record.reports:
                result = {TIME_ATTRIBUTE: milestone(report.images, interval), self._metric: report.value}
                self.on_trial_result(None, stand_in, result)

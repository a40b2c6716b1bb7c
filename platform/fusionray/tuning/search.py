"""The search as Ray Tune sees it: who proposes trials, and who stops, pauses or replaces them.

Both stand on the records, not on what Tune pickles: a new start of the search takes up the unfinished trials, then
proposes what is left, and tells the scheduler what the trials before reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import SearchAlgorithm

from fusionray.storage import filesystem as storage
from fusionray.tuning.plan import SearchPlan, milestone, trial_name
from fusionray.tuning.records import DONE, Records, Report, TrialRecord
from fusionray.tuning.sampler import mutate, propose
from fusionray.tuning.space import Settings, default_settings

# Tune gives every trial's results this attribute, in images; its own training_iteration begins anew at each start.
TIME_ATTRIBUTE = "milestone"
METRICS_PREFIX = "metrics/"


class TrialSearcher(SearchAlgorithm):  # type: ignore[misc]
    """Propose trials to Tune, at most so many at once, and keep the records of what becomes of them."""

    def __init__(self, plan: SearchPlan) -> None:
        self.plan = plan
        self.records = Records(plan.folder)
        self.trials = {record.name: record for record in self.records.trials()}
        self.unfinished = [record.name for record in self.trials.values() if record.status not in DONE]
        self.live: set[str] = set()
        self.spec: dict[str, Any] = {}
        self.broken = False

    def add_configurations(self, experiments: Any) -> None:
        """Take what Tune wants to be part of every trial."""
        (experiment,) = experiments
        self.spec = experiment.spec

    @property
    def total_samples(self) -> int:
        """Count the trials that this start has to deal with."""
        return self.plan.config.trials

    def is_finished(self) -> bool:
        """Tell whether nothing is left to be proposed."""
        return bool(self._finished) or self.broken or not (self.unfinished or self.number_left)

    @property
    def number_left(self) -> int:
        """Count the trials that were never proposed."""
        return max(0, self.plan.config.trials - len(self.trials))

    def next_trial(self) -> Trial | None:
        """Give the next trial, unfinished ones first; None while as many as may run do."""
        if self.is_finished() or len(self.live) >= self.plan.config.at_once:
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
        """Make a trial of what is known now."""
        config = self.plan.config
        default = default_settings(config.space, self.plan.train)
        settings = propose(config, default, list(self.trials.values()), number)
        return TrialRecord(name=trial_name(config.name, number), number=number, settings=settings)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Keep an evaluation."""
        record = self.trials[trial_id]
        report = read_report(result, self.plan)
        if report is None:
            return
        if record.last is not None and record.last.run != report.run:
            record = record.model_copy(update={"settings": self.settings_of(record)})
        self.update(record.told(report))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Keep how a trial ended; one that was only halted stays unfinished."""
        self.live.discard(trial_id)
        if result:
            self.on_trial_result(trial_id, result)
        record = self.trials[trial_id]
        if error:
            self.update(record.model_copy(update={"status": "failed"}))
            # What fails as it stands fails with other settings, too: the reason is told, and nobody waits for it again.
            self.broken |= record.number == 0 and not any(other.reports for other in self.trials.values())
        elif result and result.get("whole"):
            tracking_run = str(result["tracking_run"])
            self.update(record.model_copy(update={"status": "finished", "tracking_run": tracking_run}))
        elif result and read_report(result, self.plan):
            self.update(record.model_copy(update={"status": "stopped"}))

    def settings_of(self, record: TrialRecord) -> Settings:
        """Say which settings a trial has now: those of the checkpoint that it last took over."""
        handovers = self.records.handovers(record.name)
        return handovers[-1].settings if handovers else record.settings

    def update(self, record: TrialRecord) -> None:
        self.trials[record.name] = record
        self.records.write(record)


def read_report(result: dict[str, Any], plan: SearchPlan) -> Report | None:
    """Read an evaluation from a flattened result of Tune; None where it holds none."""
    if plan.config.metric not in result:
        return None
    metrics = {
        key.removeprefix(METRICS_PREFIX): float(value)
        for key, value in result.items()
        if key.startswith(METRICS_PREFIX)
    }
    run = storage.join(plan.train.run.output, result["run"])
    return Report(images=result["images"], value=float(result[plan.config.metric]), run=run, metrics=metrics)


def build_scheduler(plan: SearchPlan) -> TrialScheduler:
    """Build who decides about running trials, and tell it what earlier starts of the search reported."""
    config = plan.config
    if config.search == "pbt":
        interval = config.population.interval_images or plan.train.budget.validate_every_images
        return PopulationBasedTraining(
            time_attr=TIME_ATTRIBUTE,
            perturbation_interval=interval,
            quantile_fraction=config.population.quantile,
            custom_explore_fn=PerturbFn(plan),
            # All members wait for each other: the result does not hang on which of them was faster.
            synch=True,
            require_attrs=False,
            log_config=False,
        )
    if config.halving is None:
        return FIFOScheduler()
    scheduler = Halving(
        trial_name(config.name, 0),
        max_t=plan.images,
        grace_period=config.halving.grace_images,
        reduction_factor=config.halving.factor,
    )
    scheduler.set_search_properties(config.metric, config.mode)
    scheduler.replay(Records(plan.folder).trials(), plan.train.budget.validate_every_images)
    return scheduler


class PerturbFn:
    """Give a member that takes over a checkpoint settings near those it was made with; each time others."""

    def __init__(self, plan: SearchPlan) -> None:
        records = Records(plan.folder)
        self.config = plan.config
        self.asked = sum(len(records.handovers(record.name)) for record in records.trials())

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """Change the settings in a trial's configuration."""
        self.asked += 1
        random = np.random.default_rng([self.config.seed, self.config.trials, self.asked])
        return {**config, "settings": mutate(self.config, config["settings"], random)}


class Halving(AsyncHyperBandScheduler):  # type: ignore[misc]
    """ASHA that can be told what happened before, and lets the default training see its whole budget.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning".
    """

    def __init__(self, spared: str, **settings: Any) -> None:
        super().__init__(time_attr=TIME_ATTRIBUTE, **settings)
        self.spared = spared

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode; Tune says them again after the replay."""
        return bool(super().set_search_properties(metric, mode, **spec)) or (metric, mode) == (self._metric, self._mode)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide whether a trial goes on; the one that all others are compared with does."""
        decision: str = super().on_trial_result(tune_controller, trial, result)
        return str(TrialScheduler.CONTINUE) if trial.trial_id == self.spared else decision

    def replay(self, records: Sequence[TrialRecord], interval: int) -> None:
        """Tell the rungs what trials reported in earlier starts of the search."""
        for record in records:
            stand_in = SimpleNamespace(trial_id=record.name)
            self.on_trial_add(None, stand_in)
            for report in record.reports:
                result = {TIME_ATTRIBUTE: milestone(report.images, interval), self._metric: report.value}
                self.on_trial_result(None, stand_in, result)

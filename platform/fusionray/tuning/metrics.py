"""Prometheus metrics of a search. Ray exports them with the prefix `ray_fusionray_tune_`, while its driver lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from fusionray.ray_cluster.lasting_gauge import LastingGauge
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.records import Status, TrialRecord
from fusionray.tuning.result import choose_best


class SearchMetrics:
    """Metrics of one search."""

    def __init__(self, config: TuneConfig) -> None:
        self.config = config
        self.trials = LastingGauge("fusionray_tune_trials", "Trials of a search by status.", ("search", "status"))
        self.budget = LastingGauge("fusionray_tune_trials_budget", "Trials that a search will have.", ("search",))
        self.best = LastingGauge(
            "fusionray_tune_best", "Best value so far of the search's metric.", ("search", "metric")
        )
        self.spent = LastingGauge(
            "fusionray_tune_spent_seconds", "Time that a search took, over all its starts.", ("search",)
        )

    def set(self, trials: Sequence[TrialRecord], spent_seconds: float) -> None:
        """Set all metrics."""
        config, search = self.config, {"search": self.config.name}
        found = Counter(record.status for record in trials)
        for status in get_args(Status):
            self.trials.set(found[status], {**search, "status": status})
        self.budget.set(config.trials, search)
        self.spent.set(spent_seconds, search)
        best = choose_best(trials, config.mode)
        if best is not None and best.last is not None:
            self.best.set(best.last.value, {**search, "metric": config.metric})

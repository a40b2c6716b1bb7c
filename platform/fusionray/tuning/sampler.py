"""Propose the next trial: a pure function of a search's settings, its records, and the number of the trial.

A search that is killed needs nothing but its records to continue. Does not import Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusionray.tuning.config import TuneConfig
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.space import Range, Settings, Space

if TYPE_CHECKING:
    import optuna

# Factor that makes higher values better.
MODE_SIGNS = {"min": -1.0, "max": 1.0}


def propose(config: TuneConfig, default: Settings, records: Sequence[TrialRecord], number: int) -> Settings:
    """Propose the settings of a trial: first the unchanged training, then what the search algorithm chooses."""
    if number == 0:
        return default
    random = np.random.default_rng([config.seed, number])
    if config.search == "tpe" and number >= config.startup_trials:
        return propose_by_tpe(config, records, seed=int(random.integers(2**31)))
    return {key: values.sample(random) for key, values in config.space.items()}


def propose_by_tpe(config: TuneConfig, records: Sequence[TrialRecord], *, seed: int) -> Settings:
    """Propose settings by Optuna's tree-structured Parzen estimator (TPE).

    Source: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization", section 4.
    """
    import optuna

    # constant_liar: running trials count as bad ones, so that trials proposed meanwhile are not close to them.
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, constant_liar=True)
    study = build_study(config.space, config.mode, records, sampler)
    asked = study.ask(fixed_distributions=distributions(config.space))
    return {key: from_optuna(values, asked.params[key]) for key, values in config.space.items()}


def build_study(
    space: Space, mode: str, records: Sequence[TrialRecord], sampler: optuna.samplers.BaseSampler | None = None
) -> optuna.Study:
    """Build an Optuna study: finished trials with their last value, stopped and running ones with their reports."""
    import optuna

    states = {
        "finished": optuna.trial.TrialState.COMPLETE,
        "stopped": optuna.trial.TrialState.PRUNED,
        "running": optuna.trial.TrialState.RUNNING,
        "waiting": optuna.trial.TrialState.RUNNING,
        "failed": optuna.trial.TrialState.FAIL,
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler, direction="minimize" if mode == "min" else "maximize")
    for record in records:
        state = states[record.status]
        if record.status in ("finished", "stopped") and record.last is None:
            state = optuna.trial.TrialState.FAIL
        complete = state == optuna.trial.TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=record.last.value if complete and record.last else None,
                params={key: to_optuna(values, record.settings[key]) for key, values in space.items()},
                distributions=distributions(space),
                intermediate_values={report.images: report.value for report in record.reports},
            )
        )
    return study


def distributions(space: Space) -> dict[str, Any]:
    """Convert a space to Optuna's distributions."""
    return {key: distribution(values) for key, values in space.items()}


def distribution(values: Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if values.choice is not None:
        # By index, because Optuna does not support lists as choices, such as betas.
        return CategoricalDistribution(tuple(range(len(values.choice))))
    if values.integer is not None:
        return IntDistribution(*values.integer)
    return FloatDistribution(*values.bounds, log=values.loguniform is not None)


def to_optuna(values: Range, value: Any) -> Any:
    """Convert a setting to Optuna's value."""
    return value if values.choice is None else values.choice.index(value)


def from_optuna(values: Range, value: Any) -> Any:
    """Convert Optuna's value to a setting."""
    return values.round_to_range(value) if values.choice is None else values.choice[value]


def perturb_settings(config: TuneConfig, settings: Settings, random: np.random.Generator) -> Settings:
    """Perturb the settings of a good member for one that continues from its checkpoint.

    Source: Jaderberg et al. 2017, "Population Based Training of Neural Networks", explore.
    """
    return {
        key: values.sample(random)
        if random.random() < config.population.resample
        else values.perturb(settings[key], random)
        for key, values in config.space.items()
    }

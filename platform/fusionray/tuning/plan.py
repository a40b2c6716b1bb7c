"""What every trial of a search is told, and the training that it makes of its settings. Knows no Ray."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.storage import filesystem as storage
from fusionray.training.config import TrainConfig, WorkersConfig
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.space import Settings, configure

TRIALS_FOLDER = "trials"


@dataclass(frozen=True)
class SearchPlan:
    """A search whose places are absolute, whose shards are prepared and whose encoders are trained."""

    config: TuneConfig
    train: TrainConfig
    folder: str
    parent_run: str

    @property
    def images(self) -> int:
        """Give the images of a whole trial."""
        return self.train.budget.images


def search_folder(config: TuneConfig) -> str:
    """Say where a search keeps its trials, records and report."""
    return storage.join(config.output, config.name)


def trial_name(search: str, number: int) -> str:
    """Name a trial; the name is also that of its first run, in the folder of trials and in the tracker."""
    return f"{search}-{number:03d}"


def configure_trial(plan: SearchPlan, run: str, settings: Settings) -> TrainConfig:
    """Make the training of a trial: the plan's, with the settings, under a name of its own.

    Raises: ConfigInvalid.
    """
    config = configure(plan.train, plan.config.space, settings, f"trial {run}")
    return config.model_copy(update={"run": config.run.model_copy(update={"name": run})})


def share_cores(workers: WorkersConfig, at_once: int, cores: int, nodes: int) -> WorkersConfig:
    """Give each of the trials that train side by side its part of a node's cores, where nobody said how many.

    Each would take all of them: two trials of two threads on two cores wait for each other more than they compute.
    """
    beside = -(-at_once * workers.num_workers // nodes)
    if workers.threads is not None or at_once == 1:
        return workers
    # Bound, they would all sit on the same cores: no trial knows of the others.
    return workers.model_copy(update={"threads": max(1, cores // beside), "bind": False})


def milestone(images: int, interval: int) -> int:
    """Name a report by the multiple of the interval that it was due at.

    Batches of other sizes pass a multiple at other images, and trials are compared where all of them report.
    """
    return images // interval * interval

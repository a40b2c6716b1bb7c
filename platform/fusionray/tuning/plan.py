"""The plan that all trials of a search share, and the training of each trial. Does not import Ray."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.storage import filesystem as storage
from fusionray.training.config import TrainConfig, WorkersConfig
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.space import Settings, configure

TRIALS_FOLDER = "trials"


@dataclass(frozen=True)
class SearchPlan:
    """A search with absolute folders, prepared shards and trained encoders."""

    config: TuneConfig
    train: TrainConfig
    folder: str
    parent_run: str

    @property
    def images(self) -> int:
        """Return the number of images of a whole trial."""
        return self.train.budget.images


def search_folder(config: TuneConfig) -> str:
    """Return the folder of a search's trials, records and report."""
    return storage.join(config.output, config.name)


def trial_name(search: str, number: int) -> str:
    """Name a trial, its first run, and its tracking run."""
    return f"{search}-{number:03d}"


def configure_trial(plan: SearchPlan, run: str, settings: Settings) -> TrainConfig:
    """Build the training of a trial: the plan's, with the trial's settings, under the name `run`.

    Raises: ConfigInvalid.
    """
    config = configure(plan.train, plan.config.space, settings, f"trial {run}")
    return config.model_copy(update={"run": config.run.model_copy(update={"name": run})})


def share_cores(workers: WorkersConfig, num_trials: int, cores: int, nodes: int) -> WorkersConfig:
    """Divide a node's cores among the trials that train at once, unless the number of threads is configured.

    Otherwise each trial would use all cores: on two cores, two trials of two threads wait more than they compute.
    """
    # A head that has just started may not see its own node yet.
    workers_per_node = -(-num_trials * workers.num_workers // max(1, nodes))
    if workers.threads is not None or num_trials == 1:
        return workers
    # Unbound: trials do not know of each other, so all of them would bind to the same cores.
    return workers.model_copy(update={"threads": max(1, cores // workers_per_node), "bind": False})


def describe_gpu_shortage(workers: WorkersConfig, num_trials: int, gpus: float) -> str | None:
    """Say in one line that not all trials can train at once on the cluster's GPUs; None if they can, or need none.

    Trials themselves claim no GPU: their workers do, one each, and wait for them.
    """
    needed = workers.min_workers or workers.num_workers
    fitting = int(gpus // needed)
    if workers.device == "cpu" or not 0 < fitting < num_trials:
        return None
    return (
        f"{num_trials} trials at once, of {needed} GPUs each, are more than the cluster's {gpus:g} GPUs: {fitting} "
        "train at a time, and the others wait for them; lower max_concurrent_trials or train.workers.num_workers"
    )


def milestone(images: int, interval: int) -> int:
    """Round the images of a report down to a multiple of the interval.

    Trials with different batch sizes report at different images, but ASHA and PBT compare them at equal ones.
    """
    return images // interval * interval

"""A fusion run of seconds, as a settings file: what faults are tried on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fusionray.checkpoint.info import newest_checkpoint, read_info
from fusionray.config import merge_trees
from fusionray.tracking.store import make_client
from tests.support.tiny_fusion import SIZE, build_config, save_encoder
from tests.support.tiny_shards import write_tiny_shards

NAME = "tiny"
BATCH = 8
IMAGES, CHECKPOINT_IMAGES, LOG_IMAGES = 800, 80, 40


def write_run(folder: Path, output: Path, **changes: Any) -> Path:
    """Write settings of a run of two workers into `output`; all runs share shards and an encoder in `folder`."""
    shards, encoder = folder / "shards", folder / "encoder"
    if not shards.exists():
        write_tiny_shards(shards, pictures=8, size=SIZE, synthetic=True)
        save_encoder(encoder)
    tree = {
        "run": {"name": NAME, "output": str(output)},
        "data": {"shards": str(shards), "size": SIZE, "shuffle_buffer_rows": 16, "validation_images": 8},
        "recipe": build_config(identity_encoder=str(encoder)).model_dump(mode="json"),
        "engine": {"global_batch": BATCH},
        "budget": {
            "images": IMAGES,
            "checkpoint_every_images": CHECKPOINT_IMAGES,
            "log_every_images": LOG_IMAGES,
            "validate_every_images": 10**9,
        },
        "workers": {"num_workers": 2, "cpus_per_worker": 0.5, "threads": 1, "bind": False, "warm_spares": False},
    }
    output.mkdir(parents=True, exist_ok=True)
    path = output / "settings.yaml"
    path.write_text(yaml.safe_dump(merge_trees(tree, changes)))
    return path


def count_images(output: Path) -> int:
    """Count the images of the newest checkpoint of the run; 0 before the first."""
    newest = newest_checkpoint(str(output / NAME))
    return 0 if newest is None else read_info(newest).images_seen


def find_runs(uri: str) -> tuple[Any, list[str]]:
    """Find the run in the tracker; none before it has begun, never more than one."""
    client = make_client(uri)
    experiment = client.get_experiment_by_name("fusionray")
    ids = [] if experiment is None else [experiment.experiment_id]
    found = client.search_runs(ids, filter_string=f"attributes.run_name = '{NAME}'") if ids else []
    assert len(found) < 2, "a run that goes on stays one run in the tracker"
    return client, [run.info.run_id for run in found]


def read_steps(uri: str, key: str = "grad_norm_generator") -> list[int]:
    """Read where the run has entries of a metric in the tracker, in order of position."""
    client, (run,) = find_runs(uri)
    return sorted(entry.step for entry in client.get_metric_history(run, key))

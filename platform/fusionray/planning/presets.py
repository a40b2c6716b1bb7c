"""A plan before any run: the state of a preset's networks, and a rate that was measured elsewhere."""

from __future__ import annotations

from fusionray.errors import ConfigInvalid
from fusionray.planning.measured import GRADIENT_BYTES, MeasuredRun
from fusionray.training.config import PRESET_PREFIX
from fusionray.training.dry_run.dry_run import build_dry_recipe, load_dry_config
from fusionray.training.dry_run.footprint import FLOAT_BYTES
from fusionray.training.engine.optimizers.build import count_states

# Assumed, since nobody has run it: a copy to the host over PCIe, a write to network storage, bytes/s; noise of a GPU.
COPY_RATE, WRITE_RATE = 10e9, 0.5e9
SPREAD = 0.02


def describe_preset(place: str, images_per_second: float | None) -> MeasuredRun:
    """Describe a run of `preset:NAME` that one worker computes at so many images/s.

    Raises: ConfigInvalid if the preset is unknown, or nobody says how fast it is.
    """
    if images_per_second is None:
        raise ConfigInvalid(
            f"{place}: has no measured times; set images_per_second to those of one worker, or give a run instead"
        )
    config = load_dry_config(None, [], place.removeprefix(PRESET_PREFIX))
    recipe, _ = build_dry_recipe(config)
    counts = {name: sum(value.numel() for value in network.parameters()) for name, network in recipe.networks.items()}
    stored = sum(
        counts[name] * (1 + count_states(network, recipe.optimizers[name]) + (name in recipe.ema_names))
        for name, network in recipe.networks.items()
    )
    stored += sum(value.numel() for network in recipe.frozen.values() for value in network.parameters())
    checkpoint_bytes = int(stored * FLOAT_BYTES)
    batch = config.engine.global_batch
    if not isinstance(batch, int):
        raise ConfigInvalid(f"{place}: leaves engine.global_batch to the machine; give a run instead")
    local_batch = batch / config.workers.num_workers
    return MeasuredRun(
        folder=place,
        num_workers=1,
        local_batch=local_batch,
        compute_seconds=local_batch / images_per_second,
        spread=SPREAD,
        parameters=sum(counts.values()),
        exchanged_bytes=sum(counts.values()) * GRADIENT_BYTES[config.engine.parallel.compression],
        messages=len(counts),
        checkpoint_bytes=checkpoint_bytes,
        stall_seconds=checkpoint_bytes / COPY_RATE,
        save_seconds=checkpoint_bytes / WRITE_RATE,
        config=config,
    )

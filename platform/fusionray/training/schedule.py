"""Learning-rate schedule and EMA decay, both measured in images.

All functions are pure functions of the images seen by all workers, so ranks agree, and the curves are the same for any
batch size and number of workers.
"""

from __future__ import annotations

import math

from pydantic import Field

from fusionray.config import Section, in_unit

REFERENCE_BATCH = 32
# No preset has a larger batch.
LINEAR_IMAGES = 512


class ScheduleConfig(Section):
    """Learning-rate schedule: linear warm-up, then cosine decay."""

    warmup_images: int = Field(
        0, ge=0, description="Images over which the learning rate grows from warmup_factor x base_lr to base_lr."
    )
    warmup_factor: float = Field(0.1, gt=0, le=1, description="Share of the learning rate at the first image.")
    final_lr: float = Field(1e-6, ge=0, description="Learning rate at the last image.")
    linear_images: int = Field(
        LINEAR_IMAGES,
        ge=REFERENCE_BATCH,
        description="Largest global batch in proportion to which the learning rate grows; beyond, it grows with the "
        "square root of the batch.",
        json_schema_extra=in_unit("images"),
    )


def scale_lr(base_lr: float, global_batch: int, linear_images: int = LINEAR_IMAGES) -> float:
    """Return base_lr x global_batch / 32, and beyond `linear_images` by the square root of what the batch is larger.

    Source: Goyal et al. 2017 for the linear rule; Malladi et al. 2022 for the square root, which is Adam's own rule and
    the more careful one for any optimiser.
    """
    return base_lr * math.sqrt(global_batch * min(global_batch, linear_images)) / REFERENCE_BATCH


def learning_rate(config: ScheduleConfig, peak_lr: float, images_seen: int, total_images: int) -> float:
    """Return the learning rate after `images_seen` of `total_images` images."""
    if images_seen < config.warmup_images:
        return peak_lr * (config.warmup_factor + (1 - config.warmup_factor) * images_seen / config.warmup_images)
    span = max(1, total_images - config.warmup_images)
    progress = min(1.0, (images_seen - config.warmup_images) / span)
    final = min(config.final_lr, peak_lr)
    return final + (peak_lr - final) * (1 + math.cos(math.pi * progress)) / 2


def ema_decay(half_life_images: float, batch_images: int, images_seen: int) -> float:
    """Return the EMA decay for one step of `batch_images` images.

    The half-life ramps up with the images seen; otherwise the random first weights would stay in the EMA for long.

    Source: StyleGAN3 training loop (EMA half-life in kimg with ramp-up), Karras et al. 2021.
    """
    if half_life_images <= 0:
        return 0.0
    half_life = min(half_life_images, max(1.0, images_seen * 0.05))
    return float(0.5 ** (batch_images / half_life))

"""The lines that a dry run prints."""

from __future__ import annotations

from collections.abc import Mapping

from fusionray.recipes.recipe import OptimizerConfig
from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.footprint import Footprint
from fusionray.training.dry_run.plan import MemoryPlan
from fusionray.training.schedule import scale_lr

GIB = 2**30


def describe_networks(footprint: Footprint, inference_flops: int) -> list[str]:
    """Describe trained and frozen networks and the cost of a sample."""
    trained = ", ".join(f"{name} {count(network.parameters)}" for name, network in footprint.networks.items())
    frozen = ", ".join(f"{name} {count(number)}" for name, number in footprint.frozen.items()) or "none"
    phases = ", ".join(
        f"{phase.name} {flops(phase.flops)}" + (f" every {phase.interval} steps" if phase.interval > 1 else "")
        for phase in footprint.phases
    )
    return [
        f"parameters: {trained}; frozen: {frozen}",
        f"FLOPs per sample: {flops(footprint.flops)} a training step ({phases}); {flops(inference_flops)} inference",
        f"activations kept for the backward pass, per sample: {footprint.activation_bytes / GIB:.2f} GiB",
    ]


def describe_plan(config: TrainConfig, plan: MemoryPlan) -> list[str]:
    """Describe strategy and batch, and the memory of every strategy."""
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in vars(plan.estimate).items() if size)
    others = ", ".join(f"{name} {estimate.total / GIB:.2f}" for name, estimate in plan.by_strategy.items())
    automatic = "auto" in (config.engine.batch_size, config.engine.global_batch)
    how = "estimated; the run measures it" if automatic else "as set"
    batch = (
        f"{plan.batch_size} a worker at once ({how})" if plan.batch_size else "not even one image is estimated to fit"
    )
    return [
        f"strategy: {plan.strategy} ({plan.reason})",
        f"images a step: {plan.global_batch} over {plan.num_ranks} worker(s), {batch}",
        f"tensors a worker: {plan.estimate.total / GIB:.2f} GiB ({parts}), of {plan.limit_bytes / GIB:.1f} GiB that it "
        "may use; allocator and work space come in addition",
        f"tensors a worker by strategy, {plan.compared_ranks} workers, GiB: {others}",
    ]


def describe_rates(optimizers: Mapping[str, OptimizerConfig], global_batch: int, linear_images: int) -> str:
    """Describe the peak learning rates after scaling to the global batch."""
    rates = ", ".join(
        f"{name} {scale_lr(optimizer.base_lr, global_batch, linear_images):.3g}"
        for name, optimizer in optimizers.items()
    )
    return f"peak learning rates at {global_batch} images a step: {rates}"


def describe_step(losses: Mapping[str, float], seconds: float, images: int) -> str:
    """Describe the result of the real step."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
    return f"one step of {images} random image(s), all phases due: {seconds:.1f} s; {shown}"


def count(number: float) -> str:
    """Format a number of parameters."""
    return f"{number / 1e6:.2f} M"


def flops(number: float) -> str:
    """Format a number of FLOPs."""
    return f"{number / 1e12:.2f} TFLOP" if number >= 1e12 else f"{number / 1e9:.2f} GFLOP"

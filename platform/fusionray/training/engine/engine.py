"""The engine: runs any recipe on one device, alone or as a rank of a process group. Knows torch, not Ray."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusionray.checkpoint.sharding import full_tensor
from fusionray.hardware.profiles import HardwareProfile, detect_profile
from fusionray.nets.blocks import count_parameters
from fusionray.recipes.recipe import Phase, Recipe
from fusionray.training.config import EngineConfig
from fusionray.training.engine.batches.batch_partition import BatchPartition, fewest_images
from fusionray.training.engine.cuda_graphs import CudaRecorder, GraphCache
from fusionray.training.engine.memory import memory_limit
from fusionray.training.engine.network_setup import place_networks, wrap_networks
from fusionray.training.engine.nonfinite_steps import NonfiniteSteps
from fusionray.training.engine.optimizers.build import build_optimizer, create_states, step_if
from fusionray.training.engine.optimizers.muon import MatrixDivision
from fusionray.training.engine.parallel.ranks import find_host_group, mean_over_ranks, smallest, start_communicator
from fusionray.training.engine.passes import Passes
from fusionray.training.engine.precision import Precision
from fusionray.training.engine.resolve import check_optimizers, resolve
from fusionray.training.engine.rng import seed_part
from fusionray.training.engine.running_statistics import RunningStatistics, copy_statistics
from fusionray.training.engine.step_report import StepReport
from fusionray.training.schedule import ema_decay, learning_rate, scale_lr
from fusionray.training.timing.step_timer import StepTimer
from fusionray.types import Batch

ResultT = TypeVar("ResultT")


class Engine:
    """Own networks, optimisers and EMA networks; turn local batches into optimisation steps.

    Random numbers of a step follow from (seed, images seen, rank) alone: a resumed run needs no generator state.
    """

    def __init__(
        self,
        recipe: Recipe[Any],
        config: EngineConfig,
        *,
        total_images: int,
        device: torch.device,
        seed: int = 0,
        profile: HardwareProfile | None = None,
        num_local: int = 1,
    ) -> None:
        self.recipe = recipe
        self.config = config
        self.total_images = total_images
        self.device = device
        self.seed = seed
        self.profile = profile or detect_profile(device)
        self.step_timer = StepTimer(device)
        self.images_seen = self.num_steps = 0
        self.nonfinite_steps = NonfiniteSteps(config.max_nonfinite_steps)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.host_group = find_host_group()
        start_communicator(device)
        self.memory_bytes = memory_limit(device, config.memory_share, config.memory_gib, num_local)
        self.chosen = resolve(
            config,
            self.profile,
            device,
            num_parameters=sum(count_parameters(network) for network in recipe.networks.values()),
            num_ranks=self.num_ranks,
            memory_bytes=smallest(self.memory_bytes, self.host_group),
        )
        check_optimizers({name: settings.kind for name, settings in recipe.optimizers.items()}, self.chosen)
        self.precision = Precision(self.chosen.precision, device)
        self.precision.apply_to_process()
        self.networks, self.ema_networks = place_networks(recipe, config=config, chosen=self.chosen, device=device)
        self.wrapped = wrap_networks(
            recipe, self.networks, self.ema_networks, config=config, chosen=self.chosen, device=device
        )
        division = MatrixDivision(self.rank, self.num_ranks, partial(self.step_timer.part, "communication"))
        self.optimizers = {
            name: build_optimizer(
                network,
                recipe.optimizers[name],
                dtype=self.precision.dtype,
                sharded=self.chosen.strategy == "zero",
                division=division,
            )
            for name, network in self.networks.items()
        }
        self.scalers = {phase.name: self.precision.build_scaler() for phase in recipe.phases}
        self.statistics = RunningStatistics(self.networks.values())
        self.batch_partition = BatchPartition(
            config,
            self.statistics,
            device,
            rank=self.rank,
            num_ranks=self.num_ranks,
            fewest=fewest_images(self.networks.values()),
        )
        self.passes = Passes(
            recipe=recipe,
            networks=self.networks,
            wrapped=self.wrapped,
            optimizers=self.optimizers,
            scalers=self.scalers,
            partition=self.batch_partition,
            statistics=self.statistics,
            precision=self.precision,
            step_timer=self.step_timer,
            device=device,
            compiled=self.chosen.compile,
            reseed=self.reseed,
            graphs=GraphCache(CudaRecorder(device), self.step_timer, self.notes.append)
            if self.chosen.cuda_graphs
            else None,
        )
        if any(wrapped.needs_dry_pass for wrapped in self.wrapped.values()):
            # A dry pass shows whether the memory suffices, so all that a step needs must be there.
            for optimizer in self.optimizers.values():
                create_states(optimizer)

    @property
    def global_batch(self) -> int:
        """Images of a step over all ranks; 0 until the batch-size search has set it."""
        return self.batch_partition.global_batch

    @property
    def local_batch_images(self) -> int:
        """Most images of a step that this rank computes."""
        return self.batch_partition.local_batch_images

    @property
    def batch_size(self) -> int:
        """Images that this rank computes at once."""
        return self.batch_partition.batch_size

    @property
    def skipped_steps(self) -> int:
        """Steps with non-finite gradients since the run began; each was skipped."""
        return self.nonfinite_steps.total

    @property
    def notes(self) -> list[str]:
        """Messages for the user. The caller shows and clears them."""
        return self.batch_partition.notes

    def step(self, local_batch: Batch) -> StepReport:
        """Run every phase that is due once on this rank's part of a global batch (uint8 crops on the CPU).

        After an out-of-memory error the engine halves `batch_size` and computes the interrupted phase again.

        Raises: TrainingFailed after more than `max_nonfinite_steps` non-finite steps in a row, or if memory runs out.
        """
        expected = self.local_batch_images
        assert 0 <= expected - len(local_batch) <= 1, f"a local batch has {expected} images, not {len(local_batch)}"
        losses: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        rates = self.set_learning_rates()
        micros = self.batch_partition.retry("prepare", local_batch, self.passes.prepare)
        for phase in self.recipe.phases:
            if self.num_steps % phase.interval == 0:
                micros, parts = self.passes.compute_gradients(phase, micros)
                losses |= parts
                norms[phase.name] = self.update(phase)
        self.images_seen += self.global_batch
        self.num_steps += 1
        with self.step_timer.part("optimizer"):
            self.update_ema()
        if self.num_ranks > 1 and losses:
            with self.step_timer.part("communication"):
                losses = mean_over_ranks(losses)
        self.recipe.adapt(losses, self.global_batch)
        report = StepReport(losses, norms, rates, self.step_timer.clock)
        self.nonfinite_steps.add(report)
        # On a GPU, the next step is queued before the host reads the report of this one.
        self.settle(lag=1 if self.device.type == "cuda" else 0)
        return report

    def update(self, phase: Phase[Any]) -> Tensor:
        """Clip and apply a phase's gradients, or skip them if one is not finite; return their norm, a scalar."""
        optimizer, scaler = self.optimizers[phase.trains], self.scalers[phase.name]
        with self.step_timer.part("optimizer"):
            if scaler.is_enabled():
                scaler.unscale_(optimizer)
            # Gradients are equal on all ranks after the exchange, so all ranks make the same decision.
            norm = full_tensor(
                nn.utils.clip_grad_norm_(self.networks[phase.trains].parameters(), self.config.clip_norm)
            )
            bad = ~torch.isfinite(norm)
            step_if(optimizer, scaler, bad.float())
            self.statistics.restore(condition=bad)
            if scaler.is_enabled():
                scaler.update()
        return norm

    def reseed(self, part: str, salt: str) -> None:
        """Seed torch for a part of the step, so that a repeated part draws the same numbers."""
        seed_part(self.seed, self.images_seen, self.rank, part + salt)

    def set_learning_rates(self) -> dict[str, float]:
        """Set every optimiser's rate from the images seen."""
        rates = {}
        for name, optimizer in self.optimizers.items():
            schedule = self.config.schedule
            peak = scale_lr(self.recipe.optimizers[name].base_lr, self.global_batch, schedule.linear_images)
            rates[name] = learning_rate(schedule, peak, self.images_seen, self.total_images)
            for group in optimizer.param_groups:
                group["lr"] = rates[name]
        return rates

    def settle(self, *, lag: int = 0) -> None:
        """Count the non-finite steps among all but the newest `lag` ones.

        Raises: TrainingFailed after more than `max_nonfinite_steps` in a row.
        """
        if self.nonfinite_steps.settle(self.images_seen, lag=lag):
            for wrapped in self.wrapped.values():
                wrapped.reset()

    @torch.no_grad()
    def update_ema(self) -> None:
        """Update the EMA networks; running statistics are copied."""
        decay = ema_decay(self.config.ema_half_life_images, self.global_batch, self.images_seen)
        for name, ema_network in self.ema_networks.items():
            network = self.networks[name]
            torch._foreach_lerp_(list(ema_network.parameters()), list(network.parameters()), 1 - decay)
            copy_statistics(network, to=ema_network)

    def inference_networks(self) -> dict[str, nn.Module]:
        """Return the networks for inference: the EMA network in eval mode if there is one, with unsharded parameters.

        All ranks must call it; afterwards one rank can use them alone.
        """
        return {
            name: self.wrapped[name].gathered(self.ema_networks.get(name, network))
            for name, network in self.networks.items()
        }

    def describe(self) -> str:
        """Say in one line how the steps are computed."""
        parts = [f"{self.num_ranks} worker(s) x {self.local_batch_images} images a step"]
        if self.batch_size < self.local_batch_images:
            parts.append(f"{self.batch_size} at once")
        if self.num_ranks > 1:
            parts.append(f"{self.chosen.strategy} ({self.chosen.strategy_reason})")
            moments = {"during" if wrapped.overlaps else "after" for wrapped in self.wrapped.values()}
            parts.append(f"gradients exchanged {' and '.join(sorted(moments, reverse=True))} the backward pass")
        if self.config.activation_checkpointing:
            parts.append("activation checkpointing")
        if self.passes.graphs is not None:
            parts.append("passes as CUDA graphs")
        return ", ".join(parts)

    def choices(self) -> dict[str, Any]:
        """Return the resolved settings under the names of the hardware profile."""
        return {
            "precision": self.chosen.precision,
            "tf32": self.profile.tf32 and self.chosen.precision != "fp32",
            "channels_last": self.chosen.channels_last,
            "compile": self.chosen.compile,
            "cuda_graphs": self.chosen.cuda_graphs,
        }

"""The engine: runs any recipe on one device, alone or as a rank of a process group. Knows torch, not Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fusionray.hardware.profiles import HardwareProfile, detect_profile
from fusionray.nets.blocks import count_parameters
from fusionray.recipes.recipe import Phase, PhaseInput, Recipe
from fusionray.training.config import EngineConfig
from fusionray.training.engine.batch_partition import BatchPartition, fewest_images
from fusionray.training.engine.memory import memory_limit
from fusionray.training.engine.microbatching import MicroBatch, cut
from fusionray.training.engine.network_setup import place_networks, share_networks
from fusionray.training.engine.nonfinite_steps import NonfiniteSteps
from fusionray.training.engine.optimizers import build_optimizer, step_if
from fusionray.training.engine.precision import Precision
from fusionray.training.engine.resolve import check_optimizers, resolve
from fusionray.training.engine.rng import seed_part
from fusionray.training.engine.running_statistics import RunningStatistics, copy_statistics
from fusionray.training.engine.schedule import average_decay, learning_rate, scale_lr
from fusionray.training.engine.step_report import StepReport
from fusionray.training.timing.step_timer import StepTimer
from fusionray.types import Batch

# Runs of a phase, at one batch size, after which its memory is taken to be known: the second one has optimiser states.
REHEARSALS = 2


class Engine:
    """Own networks, optimisers and averages; turn shares of global batches into optimisation steps.

    Randomness of a step is drawn from (seed, images seen, rank) alone: a resumed run needs no generator state.
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
        self.ledger = StepTimer(device)
        self.images_seen = self.num_steps = 0
        self.bad_steps = NonfiniteSteps(config.max_nonfinite_steps)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.host_group = find_host_group()
        self.memory_bytes = memory_limit(device, config.memory_share, config.memory_gib, num_local)
        self.chosen = resolve(
            config,
            self.profile,
            device,
            num_parameters=sum(count_parameters(network) for network in recipe.networks.values()),
            num_ranks=self.num_ranks,
            memory_bytes=self.memory_bytes,
        )
        check_optimizers({name: settings.kind for name, settings in recipe.optimizers.items()}, self.chosen)
        self.precision = Precision(self.chosen.precision, device)
        self.precision.set_matmul_mode()
        self.networks, self.averages = place_networks(recipe, config=config, chosen=self.chosen, device=device)
        self.wrapped = share_networks(
            recipe, self.networks, self.averages, config=config, chosen=self.chosen, device=device
        )
        self.optimizers = {
            name: build_optimizer(
                network,
                recipe.optimizers[name],
                dtype=self.precision.dtype,
                sharded=self.chosen.strategy == "zero",
            )
            for name, network in self.networks.items()
        }
        self.scalers = {phase.name: self.precision.build_scaler() for phase in recipe.phases}
        self.statistics = RunningStatistics(self.networks.values())
        self.division = BatchPartition(
            config,
            self.statistics,
            device,
            rank=self.rank,
            num_ranks=self.num_ranks,
            fewest=fewest_images(self.networks.values()),
        )
        self.rehearsed: dict[tuple[str, int], int] = {}

    @property
    def global_batch(self) -> int:
        """Images of a step over all ranks; 0 while they are still to be found."""
        return self.division.global_batch

    @property
    def share_images(self) -> int:
        """Most images of a step that this rank computes."""
        return self.division.share_images

    @property
    def batch_size(self) -> int:
        """Images that this rank computes at once."""
        return self.division.batch_size

    @property
    def skipped_steps(self) -> int:
        """Steps that were left out since the run began."""
        return self.bad_steps.total

    @property
    def notes(self) -> list[str]:
        """Lines that whoever runs the engine is to say, and to clear."""
        return self.division.notes

    def step(self, share: Batch) -> StepReport:
        """Run every phase that is due once over this rank's share of a global batch (uint8 crops on the CPU).

        An out-of-memory halves `batch_size` and the interrupted phase is computed again.

        Raises: TrainingFailed after more than `max_nonfinite_steps` non-finite steps in a row, or if memory runs out.
        """
        assert 0 <= self.share_images - len(share) <= 1, f"a share has {self.share_images} images, not {len(share)}"
        losses: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        rates = self.set_learning_rates()
        micros = self.division.retry("prepare", share, self.prepare)
        for phase in self.recipe.phases:
            if self.num_steps % phase.interval == 0:
                micros, parts = self.compute_gradients(phase, micros)
                losses |= parts
                norms[phase.name] = self.update(phase)
        self.images_seen += self.global_batch
        self.num_steps += 1
        with self.ledger.part("optimizer"):
            self.update_averages()
        losses = self.mean_over_ranks(losses)
        self.recipe.adapt(losses, self.global_batch)
        report = StepReport(losses, norms, rates)
        self.bad_steps.add(report)
        # A GPU is given the next step before the host looks at this one.
        self.settle(lag=1 if self.device.type == "cuda" else 0)
        return report

    def prepare(self, share: Batch) -> list[MicroBatch]:
        """Move the share to the device and make of it what the phases see."""
        self.reseed("prepare")
        # What memory that runs out here would take back must not be the former step.
        self.statistics.keep()
        with self.ledger.part("host_to_device"):
            parts = [part.to(self.device) for part in cut(share, self.batch_size)]
        with self.ledger.part("forward"), torch.no_grad():
            # Of the mean over ranks, so that images weigh alike where shares are not equal.
            mean_share = self.global_batch / self.num_ranks or len(share)
            return [MicroBatch(self.recipe.prepare(part), len(part) / mean_share) for part in parts]

    def compute_gradients(
        self, phase: Phase[Any], micros: list[MicroBatch]
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Leave a phase's gradients in its network, averaged over ranks; returns the micro-batches and mean losses."""
        wrapped = self.wrapped[phase.trains]
        if wrapped.rehearses:
            # A rank that runs out of memory in mid-exchange leaves the others waiting: rehearse until it suffices.
            while self.rehearsed.get((phase.name, self.batch_size), 0) < REHEARSALS:
                micros, _ = self.division.retry(phase.name, micros, partial(self.accumulate, phase))
                key = (phase.name, self.batch_size)
                self.rehearsed[key] = self.rehearsed.get(key, 0) + 1
                self.statistics.take_back()
        accumulate = partial(self.accumulate, phase, exchanging=wrapped.overlaps)
        result = self.division.retry(phase.name, micros, accumulate, together=wrapped.overlaps)
        if not wrapped.overlaps:
            with self.ledger.part("communication"):
                wrapped.exchange()
        return result

    def accumulate(
        self, phase: Phase[Any], micros: list[MicroBatch], *, exchanging: bool = False
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Add up a phase's gradients over the micro-batches; `exchanging` them during the last one's backward pass."""
        self.reseed(phase.name)
        wrapped = self.wrapped[phase.trains]
        self.select(phase.trains)
        self.statistics.keep()
        self.optimizers[phase.trains].zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for index, micro in enumerate(micros):
            now = exchanging and index == len(micros) - 1
            wrapped.beside = self.ledger.beside if now else None
            networks = {**self.networks, phase.trains: wrapped.module if now else wrapped.network}
            # The forward pass belongs inside: the wrapper decides there whether to synchronise.
            with contextlib.nullcontext() if now else wrapped.accumulating():
                with self.ledger.part("forward"), self.precision.autocast(), self.eager(phase):
                    losses = phase.loss(PhaseInput(networks, self.recipe.frozen, micro.batch, micro.shared))
                with self.ledger.part("backward"):
                    total = self.scalers[phase.name].scale(losses.total * micro.weight)
                    total.backward()  # type: ignore[no-untyped-call]
            for name, value in losses.parts.items():
                part = value.detach().float() * micro.weight
                sums[name] = sums[name] + part if name in sums else part
        return micros, sums

    def update(self, phase: Phase[Any]) -> Tensor:
        """Clip and apply a phase's gradients, unless one is not finite; returns their norm."""
        optimizer, scaler = self.optimizers[phase.trains], self.scalers[phase.name]
        with self.ledger.part("optimizer"):
            if scaler.is_enabled():
                scaler.unscale_(optimizer)
            # Gradients are equal on all ranks after the exchange, so all ranks decide alike.
            norm = whole(nn.utils.clip_grad_norm_(self.networks[phase.trains].parameters(), self.config.clip_norm))
            bad = ~torch.isfinite(norm)
            step_if(optimizer, scaler, bad.float())
            self.statistics.take_back(where=bad)
            if scaler.is_enabled():
                scaler.update()
        return norm

    def select(self, name: str) -> None:
        """Let gradients flow to one network's parameters only: the others would be paid for and thrown away."""
        for other, network in self.networks.items():
            network.requires_grad_(other == name)

    def reseed(self, part: str) -> None:
        """Draw what follows from the position alone, the same when a part is computed again."""
        seed_part(self.seed, self.images_seen, self.rank, part)

    def eager(self, phase: Phase[Any]) -> contextlib.AbstractContextManager[Any]:
        """Leave compiled graphs aside where a gradient is differentiated: they cannot follow."""
        if self.chosen.compile and phase.second_order:
            stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
            return stance
        return contextlib.nullcontext()

    def set_learning_rates(self) -> dict[str, float]:
        """Set every optimiser's rate from the images seen."""
        rates = {}
        for name, optimizer in self.optimizers.items():
            peak = scale_lr(self.recipe.optimizers[name].base_lr, self.global_batch)
            rates[name] = learning_rate(self.config.schedule, peak, self.images_seen, self.total_images)
            for group in optimizer.param_groups:
                group["lr"] = rates[name]
        return rates

    def settle(self, *, lag: int = 0) -> None:
        """Count the bad steps among all but the newest `lag` ones.

        Raises: TrainingFailed after more than `max_nonfinite_steps` in a row.
        """
        if self.bad_steps.settle(self.images_seen, lag=lag):
            for wrapped in self.wrapped.values():
                wrapped.forget()

    @torch.no_grad()
    def update_averages(self) -> None:
        """Let the averages follow their networks; statistics are copied."""
        decay = average_decay(self.config.ema_half_life_images, self.global_batch, self.images_seen)
        for name, average in self.averages.items():
            network = self.networks[name]
            torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
            copy_statistics(network, to=average)

    def mean_over_ranks(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Average loss parts over ranks; they stay on the device."""
        if not losses or self.num_ranks == 1:
            return dict(losses)
        values = torch.stack(list(losses.values()))
        with self.ledger.part("communication"):
            dist.all_reduce(values)
        return dict(zip(losses, (values / self.num_ranks).unbind(), strict=True))

    def inference_networks(self) -> dict[str, nn.Module]:
        """Return the networks as they leave training: the average in eval mode where one is kept, each in one piece.

        All ranks call it; afterwards one rank can use them alone.
        """
        return {
            name: self.wrapped[name].gathered(self.averages.get(name, network))
            for name, network in self.networks.items()
        }

    def describe(self) -> str:
        """Say in one line how the steps are computed."""
        parts = [f"{self.num_ranks} worker(s) x {self.share_images} images a step"]
        if self.batch_size < self.share_images:
            parts.append(f"{self.batch_size} at once")
        if self.num_ranks > 1:
            parts.append(f"{self.chosen.strategy} ({self.chosen.strategy_reason})")
            moments = {"during" if wrapped.overlaps else "after" for wrapped in self.wrapped.values()}
            parts.append(f"gradients exchanged {' and '.join(sorted(moments, reverse=True))} the backward pass")
        if self.config.recompute:
            parts.append("activations recomputed")
        return ", ".join(parts)

    def choices(self) -> dict[str, Any]:
        """Return what the settings made of the hardware profile, by its names."""
        return {
            "precision": self.chosen.precision,
            "tf32": self.profile.tf32 and self.chosen.precision != "fp32",
            "channels_last": self.chosen.channels_last,
            "compile": self.chosen.compile,
        }


def whole(value: Tensor) -> Tensor:
    """Gather a scalar that is kept in parts."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def find_host_group() -> dist.ProcessGroup | None:
    """Return the group in which ranks agree on decisions of the host; None where there is nobody to agree with.

    Beside NCCL it is one of its own: such decisions must not wait for what the device still has to do.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

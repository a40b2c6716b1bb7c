"""The engine's steps, hand-written for one device: the baseline for the cost of the engine's features."""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import Tensor, nn

from fusionray.benchmarks.setup import FusionRecipe
from fusionray.recipes.recipe import PhaseInput
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.rng import seed_part
from fusionray.training.schedule import ema_decay, learning_rate, scale_lr
from fusionray.types import PairBatch


class BareLoop:
    """The engine's networks, losses, precision, random draws, optimizers, clipping and EMA, without its other features.

    It has no ranks, no accumulation, no checks for non-finite steps or full memory, no step timer and no reports.
    """

    def __init__(self, recipe: FusionRecipe, like: Engine) -> None:
        """Take a recipe that nothing else uses, and the settings of an engine that computes its local batch at once."""
        assert like.batch_size == like.local_batch_images == like.global_batch
        self.recipe = recipe
        self.config = like.config
        self.precision = like.precision
        self.device, self.seed = like.device, like.seed
        self.batch, self.total_images = like.global_batch, like.total_images
        self.images_seen = self.num_steps = 0
        layout = torch.channels_last if like.chosen.channels_last else torch.contiguous_format
        self.networks: dict[str, nn.Module] = {}
        for name, network in (*recipe.networks.items(), *recipe.frozen.items(), *recipe.adaptive.items()):
            network.to(self.device).to(memory_format=layout)  # type: ignore[call-overload]
            if name in recipe.networks:
                self.networks[name] = network
            else:
                network.eval().requires_grad_(False)
        self.ema_networks = {name: copy.deepcopy(self.networks[name]).eval() for name in recipe.ema_names}
        self.compiled = like.chosen.compile
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, network in self.networks.items():
            if self.compiled:
                network.compile(dynamic=False)
            settings = recipe.optimizers[name]
            decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
            free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
            groups = [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": free, "weight_decay": 0.0},
            ]
            self.optimizers[name] = torch.optim.AdamW(groups, lr=settings.base_lr, betas=settings.betas, fused=True)
        self.scalers = {phase.name: like.precision.build_scaler() for phase in recipe.phases}

    def step(self, batch: PairBatch) -> dict[str, Tensor]:
        """Take one step; return the parts of the losses."""
        for name, optimizer in self.optimizers.items():
            schedule = self.config.schedule
            peak = scale_lr(self.recipe.optimizers[name].base_lr, self.batch, schedule.linear_images)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(schedule, peak, self.images_seen, self.total_images)
        seed_part(self.seed, self.images_seen, 0, "prepare")
        with torch.no_grad():
            prepared = self.recipe.prepare(batch.to(self.device))
        shared: dict[str, Tensor] = {}
        parts: dict[str, Tensor] = {}
        for phase in self.recipe.phases:
            if self.num_steps % phase.interval:
                continue
            seed_part(self.seed, self.images_seen, 0, phase.name)
            for name, network in self.networks.items():
                network.requires_grad_(name == phase.trains)
            optimizer, scaler = self.optimizers[phase.trains], self.scalers[phase.name]
            optimizer.zero_grad(set_to_none=True)
            eager = torch.compiler.set_stance("force_eager") if self.compiled and phase.second_order else None
            with eager or contextlib.nullcontext(), self.precision.autocast():
                losses = phase.loss(PhaseInput(self.networks, self.recipe.frozen, prepared, shared))
            scaler.scale(losses.total).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.networks[phase.trains].parameters(), self.config.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            parts |= {name: value.detach() for name, value in losses.parts.items()}
        self.images_seen += self.batch
        self.num_steps += 1
        self.average()
        self.recipe.adapt(parts, self.batch)
        return parts

    @torch.no_grad()
    def average(self) -> None:
        """Update the averages."""
        decay = ema_decay(self.config.ema_half_life_images, self.batch, self.images_seen)
        for name, average in self.ema_networks.items():
            network = self.networks[name]
            torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
            for kept, new in zip(average.buffers(), network.buffers(), strict=True):
                kept.copy_(new)

"""The public recipe: how face swappers are commonly trained, with the losses and networks of our own steps.

Source: facefusion/facefusion-labs, hyperswap/src/training.py (read, not copied), a LightningModule with manual
optimization. Adopted: both losses are computed before either network is updated; the discriminator sees real and fused
pictures in two passes; the generator's loss is differentiated for the discriminator's parameters too, because the graph
is recorded before `toggle_optimizer` turns them off; AdamW with torch's defaults; contiguous memory; no compilation;
float32 on a CPU.

Replaced, so that both sides compute the same: its losses, networks, weight decay and clipping by value, by ours; the
gradients that its generator step leaves in the discriminator are dropped. It has no gradient penalty and no rendered
truth, so neither side has. It has no EMA of weights, which only our side computes. Its README sets
`precision = 16-mixed`, which needs a GPU; `amp` computes in our precision instead.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from fusionray.benchmarks.setup import FusionRecipe
from fusionray.recipes.losses import adversarial_discriminator_loss
from fusionray.recipes.recipe import PhaseInput
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.rng import seed_part
from fusionray.training.schedule import scale_lr
from fusionray.types import PairBatch


class PlainRecipe:
    """The public recipe in one process, on one device, with one batch a step."""

    def __init__(self, recipe: FusionRecipe, like: Engine, *, amp: bool = False) -> None:
        """Take a recipe of its own without a gradient penalty; use batch, clipping and random draws of an engine."""
        assert [phase.name for phase in recipe.phases] == ["generator", "discriminator"]
        self.recipe = recipe
        self.clip_norm = like.config.clip_norm
        self.amp = like.precision if amp else None
        self.device, self.seed, self.batch = like.device, like.seed, like.global_batch
        self.images_seen = 0
        for module in (*recipe.networks.values(), *recipe.frozen.values(), *recipe.adaptive.values()):
            module.to(self.device)
        for module in recipe.frozen.values():
            module.eval().requires_grad_(False)
        self.optimizers = {
            name: torch.optim.AdamW(
                network.parameters(),
                lr=scale_lr(recipe.optimizers[name].base_lr, self.batch, like.config.schedule.linear_images),
                betas=recipe.optimizers[name].betas,
                weight_decay=recipe.optimizers[name].weight_decay,
            )
            for name, network in recipe.networks.items()
        }
        # Each loss has its own scale, as in our engine.
        self.scalers = {name: like.precision.build_scaler() if amp else None for name in recipe.networks}

    def step(self, batch: PairBatch) -> dict[str, Tensor]:
        """Take one step; return the parts of the losses."""
        recipe = self.recipe
        seed_part(self.seed, self.images_seen, 0, "prepare")
        with torch.no_grad():
            prepared = recipe.prepare(batch.to(self.device))
        seed_part(self.seed, self.images_seen, 0, "generator")
        shared: dict[str, Tensor] = {}
        with self.amp.autocast() if self.amp else contextlib.nullcontext():
            generator = recipe.generator_loss(PhaseInput(recipe.networks, recipe.frozen, prepared, shared))
            seed_part(self.seed, self.images_seen, 0, "discriminator")
            real, fake = (
                recipe.networks["discriminator"](seen) for seen in recipe.augment(prepared.reference, shared["fused"])
            )
            discriminator = adversarial_discriminator_loss(real, fake)
        self.update("generator", generator.total)
        self.optimizers["discriminator"].zero_grad()
        self.update("discriminator", discriminator)
        self.images_seen += self.batch
        parts = {**generator.parts, "discriminator": discriminator}
        return {name: value.detach() for name, value in parts.items()}

    def update(self, name: str, loss: Tensor) -> None:
        """Differentiate for all parameters in the graph; clip and update one network."""
        optimizer, scaler = self.optimizers[name], self.scalers[name]
        if scaler is not None:
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
        else:
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.recipe.networks[name].parameters(), self.clip_norm)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()

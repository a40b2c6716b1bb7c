"""The passes of a step: prepare its micro-batches, and compute the gradients of each phase."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from fusionray.recipes.recipe import Phase, PhaseInput, Recipe
from fusionray.training.engine.batches.batch_partition import BatchPartition
from fusionray.training.engine.batches.microbatching import MicroBatch, cut
from fusionray.training.engine.cuda_graphs import GraphCache, Part
from fusionray.training.engine.parallel.single_rank import SingleRank
from fusionray.training.engine.precision import Precision
from fusionray.training.engine.running_statistics import RunningStatistics
from fusionray.training.timing.step_timer import StepTimer
from fusionray.types import Batch

ResultT = TypeVar("ResultT")


@dataclass(eq=False)
class Passes:
    """Compute gradients with the networks of an engine, by CUDA graphs if there are any.

    `reseed(part, salt)` seeds torch for a part of the step. What runs out of memory is repeated with fewer images at
    once, and with the same random numbers.
    """

    recipe: Recipe[Any]
    networks: Mapping[str, nn.Module]
    wrapped: Mapping[str, SingleRank]
    optimizers: Mapping[str, torch.optim.Optimizer]
    scalers: Mapping[str, GradScaler]
    partition: BatchPartition
    statistics: RunningStatistics
    precision: Precision
    step_timer: StepTimer
    device: torch.device
    compiled: bool
    reseed: Callable[[str, str], None]
    graphs: GraphCache | None = None
    # (phase, batch size) of the dry passes that were made.
    dry_passes: set[tuple[str, int]] = field(default_factory=set)

    def prepare(self, local_batch: Batch) -> list[MicroBatch]:
        """Cut the local batch, move it to the device, and let the recipe prepare it."""
        # Snapshot the statistics first: an out-of-memory error here must not restore those of the previous step.
        self.statistics.snapshot()
        with self.step_timer.part("host_to_device"):
            parts = [part.to(self.device) for part in cut(local_batch, self.partition.batch_size)]
        # Relative to the mean over ranks, so that images have equal weight if local batches differ in size.
        mean_images = self.partition.global_batch / self.partition.num_ranks or len(local_batch)
        given = [MicroBatch(part, len(part) / mean_images) for part in parts]
        part = Part("prepare", self.prepare_parts, partial(self.reseed, "prepare"), lambda: None, is_first=True)
        return self.run_part(part, given)

    def prepare_parts(self, given: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Let the recipe prepare parts of a batch on the device."""
        with self.step_timer.part("forward"), torch.no_grad():
            return [MicroBatch(self.recipe.prepare(micro.batch), micro.weight) for micro in given]

    def compute_gradients(
        self, phase: Phase[Any], micros: list[MicroBatch]
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Compute a phase's gradients, averaged over ranks, in its network; return micro-batches and mean losses."""
        wrapped = self.wrapped[phase.trains]
        if wrapped.needs_dry_pass and (phase.name, self.partition.batch_size) not in self.dry_passes:
            # A rank that runs out of memory during the exchange blocks the others: first run a pass without exchange.
            micros, _ = self.partition.retry(phase.name, micros, partial(self.accumulate, phase))
            self.dry_passes.add((phase.name, self.partition.batch_size))
            self.statistics.restore()
        accumulate = partial(self.accumulate, phase, exchanging=wrapped.overlaps)
        result = self.partition.retry(phase.name, micros, accumulate, together=wrapped.overlaps)
        if not wrapped.overlaps:
            with self.step_timer.part("communication"):
                wrapped.exchange()
        return result

    def accumulate(
        self, phase: Phase[Any], micros: list[MicroBatch], *, exchanging: bool = False
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Accumulate a phase's gradients; `exchanging`: exchange them in the backward pass of the last micro-batch."""
        part = Part(
            phase.name,
            partial(self.run_passes, phase, exchanging=exchanging),
            partial(self.reseed, phase.name),
            self.statistics.restore,
            list(self.networks[phase.trains].parameters()),
        )
        return self.run_part(part, micros)

    def run_part(self, part: Part[ResultT], micros: Sequence[MicroBatch]) -> ResultT:
        """Run a part of a step by its CUDA graph, if there are any, else by itself."""
        if self.graphs is not None:
            return self.graphs.run(part, micros)
        part.seed("")
        return part.compute(micros)

    def run_passes(
        self, phase: Phase[Any], micros: Sequence[MicroBatch], *, exchanging: bool
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Run a phase's forward and backward passes over all micro-batches; those that it returns share more."""
        wrapped = self.wrapped[phase.trains]
        micros = [replace(micro, shared=dict(micro.shared)) for micro in micros]
        self.select(phase.trains)
        self.statistics.snapshot()
        self.optimizers[phase.trains].zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for index, micro in enumerate(micros):
            now = exchanging and index == len(micros) - 1
            wrapped.overlapped_span = self.step_timer.overlapped_span if now else None
            # The wrapper in any case: inside its forward pass networks are compiled in pieces, so that the exchange of
            # gradients can begin before the last of them is computed.
            networks = {**self.networks, phase.trains: wrapped.module}
            # The forward pass must be inside: there the wrapper decides whether to synchronise.
            with contextlib.nullcontext() if now else wrapped.accumulating():
                with self.step_timer.part("forward"), self.precision.autocast(), self.eager(phase):
                    losses = phase.loss(PhaseInput(networks, self.recipe.frozen, micro.batch, micro.shared))
                with self.step_timer.part("backward"):
                    total = self.scalers[phase.name].scale(losses.total * micro.weight)
                    total.backward()  # type: ignore[no-untyped-call]
            for name, value in losses.parts.items():
                part = value.detach().float() * micro.weight
                sums[name] = sums[name] + part if name in sums else part
        return micros, sums

    def eager(self, phase: Phase[Any]) -> contextlib.AbstractContextManager[Any]:
        """Run without compiled graphs if the phase differentiates a gradient: they do not support that."""
        if self.compiled and phase.second_order:
            stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
            return stance
        return contextlib.nullcontext()

    def select(self, name: str) -> None:
        """Compute gradients only for one network's parameters: those of the others would be discarded."""
        for other, network in self.networks.items():
            network.requires_grad_(other == name)

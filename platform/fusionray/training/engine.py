"""The engine: runs any recipe on one device, alone or as a rank of a process group. Knows torch, not Ray."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fusionray.errors import TrainingFailed
from fusionray.nets.blocks import count_parameters, recompute_activations
from fusionray.ops.hardware import HardwareProfile, detect_profile
from fusionray.recipes.recipe import Phase, PhaseInput, Recipe
from fusionray.training.ledger import Ledger
from fusionray.training.memory import even_chunks, is_out_of_memory, memory_limit
from fusionray.training.microbatch import MicroBatch, cut, recut
from fusionray.training.optimizers import build_optimizer, step_if
from fusionray.training.precision import Precision
from fusionray.training.report import StepReport
from fusionray.training.schedule import average_decay, learning_rate, scale_lr
from fusionray.training.settings import EngineConfig
from fusionray.training.strategies import Whole, choose_strategy, share_network
from fusionray.types import Batch

ResultT = TypeVar("ResultT")
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
        self.ledger = Ledger(device)
        self.images_seen = self.num_steps = self.bad_steps = self.skipped_steps = 0
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        # Decisions of the host travel beside the device's own collectives, and do not wait for them.
        self.host_group = dist.new_group(backend="gloo") if self.num_ranks > 1 else None
        self.global_batch = config.global_batch if isinstance(config.global_batch, int) else 0
        self.batch_size = 0
        if self.global_batch:
            self.set_global_batch(self.global_batch)
        layout = config.channels_last
        self.channels_last = self.profile.channels_last if layout == "auto" else layout
        self.precision = Precision(self.profile.precision if config.precision == "auto" else config.precision, device)
        self.precision.set_matmul_mode()
        self.memory_bytes = memory_limit(device, config.memory_share, config.memory_gib, num_local)
        overlap = config.parallel.overlap
        # PowerSGD is a hook of torch's wrapper, which exchanges during the backward pass.
        wanted = device.type == "cuda" or config.parallel.compression == "powersgd" if overlap == "auto" else overlap
        self.overlap = wanted and self.num_ranks > 1
        self.rehearsed: dict[tuple[str, int], int] = {}
        self.unread: list[StepReport] = []
        self.notes: list[str] = []
        self.build_networks()

    def build_networks(self) -> None:
        """Place the recipe's networks on the device, share them between the ranks, give them optimisers."""
        recipe, config = self.recipe, self.config
        for module in (*recipe.frozen.values(), *recipe.adaptive.values()):
            self.place(module).eval().requires_grad_(False)
            # Gradients pass through the frozen encoder, too: its activations are kept like any other.
            recompute_activations(module, config.recompute)
        self.networks: dict[str, nn.Module] = {name: self.place(net) for name, net in recipe.networks.items()}
        self.averages = {
            name: copy.deepcopy(self.networks[name]).eval().requires_grad_(False) for name in recipe.averaged
        }
        num_parameters = sum(count_parameters(network) for network in self.networks.values())
        self.strategy, self.strategy_reason = choose_strategy(
            config.parallel, num_parameters, self.num_ranks, self.memory_bytes
        )
        if self.strategy == "fsdp" and self.precision.name == "fp16":
            raise ValueError("engine.precision=fp16 cannot be scaled over sharded parameters; use bf16, or zero")
        if config.parallel.compression == "powersgd" and config.parallel.overlap is False:
            raise ValueError("engine.parallel.compression=powersgd needs engine.parallel.overlap=true, or auto")
        if config.parallel.static_graph and self.num_ranks > 1 and not (self.overlap and config.batch_size is None):
            # The wrapper counts gradients that are not exchanged, too, and would silently exchange too early.
            raise ValueError(
                "engine.parallel.static_graph=true needs engine.parallel.overlap=true and no engine.batch_size: "
                "a static graph knows no accumulation"
            )
        self.compiled = bool(self.profile.compile if config.compile == "auto" else config.compile)
        # One wrapper a network: a wrapper around several would wait for gradients of those that do not train now.
        self.wrapped: dict[str, Whole] = {}
        for name, network in self.networks.items():
            recompute_activations(network, config.recompute)
            if self.compiled:
                network.compile(dynamic=False)
            self.wrapped[name] = share_network(
                self.strategy,
                network,
                self.averages.get(name),
                config.parallel,
                self.device,
                overlap=self.overlap,
                one_graph=sum(phase.trains == name for phase in recipe.phases) == 1,
                second_order=any(phase.trains == name and phase.second_order for phase in recipe.phases),
            )
        self.optimizers = {
            name: build_optimizer(
                network, recipe.optimizers[name], sharded=self.strategy == "zero" and self.num_ranks > 1
            )
            for name, network in self.networks.items()
        }
        self.scalers = {phase.name: self.precision.build_scaler() for phase in recipe.phases}
        self.statistics = [buffer for network in self.networks.values() for buffer in network.buffers()]
        self.kept = [buffer.clone() for buffer in self.statistics]

    def place(self, network: nn.Module) -> nn.Module:
        """Move a network to the device, its convolutions in the layout that the device computes fastest."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return network.to(self.device).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def set_global_batch(self, images: int) -> None:
        """Fix the images of a step over all ranks.

        Raises: ValueError if they do not divide into equal shares.
        """
        if images % self.num_ranks:
            raise ValueError(
                f"engine.global_batch={images} does not divide into equal shares of {self.num_ranks} workers"
            )
        self.global_batch = images
        wanted = self.config.batch_size
        self.batch_size = min(self.share_images, wanted) if isinstance(wanted, int) else self.share_images

    def set_batch_size(self, images: int) -> None:
        """Fix the images that this rank computes at once; its share is cut into equal parts of at most so many."""
        self.batch_size = even_chunks(self.share_images, images)

    @property
    def share_images(self) -> int:
        """Images of a step that this rank computes."""
        return self.global_batch // self.num_ranks

    def step(self, share: Batch) -> StepReport:
        """Run every phase that is due once over this rank's share of a global batch (uint8 crops on the CPU).

        An out-of-memory halves `batch_size` and the interrupted phase is computed again.

        Raises: TrainingFailed after more than `max_bad_steps` non-finite steps in a row, or if one image does not fit.
        """
        assert len(share) == self.share_images, f"a share has {self.share_images} images, not {len(share)}"
        losses: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        rates = self.set_learning_rates()
        micros = self.retry("prepare", share, self.prepare)
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
        self.unread.append(report)
        # A GPU is given the next step before the host looks at this one.
        self.settle(lag=1 if self.device.type == "cuda" else 0)
        return report

    def prepare(self, share: Batch) -> list[MicroBatch]:
        """Move the share to the device and make of it what the phases see."""
        self.reseed("prepare")
        # What memory that runs out here would take back must not be the former step.
        self.keep_statistics()
        with self.ledger.part("host_to_device"):
            parts = [part.to(self.device) for part in cut(share, self.batch_size)]
        with self.ledger.part("forward"), torch.no_grad():
            return [MicroBatch(self.recipe.prepare(part), len(part) / len(share)) for part in parts]

    def compute_gradients(
        self, phase: Phase[Any], micros: list[MicroBatch]
    ) -> tuple[list[MicroBatch], dict[str, Tensor]]:
        """Leave a phase's gradients in its network, averaged over ranks; returns the micro-batches and mean losses."""
        wrapped = self.wrapped[phase.trains]
        if wrapped.rehearses:
            # A rank that runs out of memory in mid-exchange leaves the others waiting: rehearse until it suffices.
            while self.rehearsed.get((phase.name, self.batch_size), 0) < REHEARSALS:
                micros, _ = self.retry(phase.name, micros, partial(self.accumulate, phase))
                key = (phase.name, self.batch_size)
                self.rehearsed[key] = self.rehearsed.get(key, 0) + 1
                self.restore_statistics()
        accumulate = partial(self.accumulate, phase, exchanging=wrapped.overlaps)
        result = self.retry(phase.name, micros, accumulate, together=wrapped.overlaps)
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
        self.keep_statistics()
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
            self.restore_statistics(bad)
            if scaler.is_enabled():
                scaler.update()
        return norm

    def retry(self, name: str, given: Any, compute: Callable[[Any], ResultT], *, together: bool = False) -> ResultT:
        """Compute something; where memory runs out, halve this rank's batch size and compute it again.

        Ranks may differ in it: parts weigh by their rows, and all shares are equal. `together`: the computation
        exchanges data with other ranks, which wait where this one cannot go on.

        Raises: TrainingFailed if one image at a time does not fit, or memory ran out in mid-exchange.
        """
        while True:
            failure: BaseException
            try:
                return compute(given)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # its frames hold the tensors that filled the memory
            if together and self.num_ranks > 1:
                raise TrainingFailed(
                    f"memory ran out in '{name}' on rank {self.rank} while gradients were exchanged; the run goes on "
                    f"from its last checkpoint: set engine.batch_size={max(1, self.batch_size // 2)}, or auto"
                ) from failure
            self.halve(name, failure)
            self.restore_statistics()
            if isinstance(given, list):
                given = recut(given, self.batch_size)

    def halve(self, name: str, failure: BaseException) -> None:
        """Go on with half as many images at once."""
        if self.batch_size <= 1:
            raise TrainingFailed(
                f"memory ran out in '{name}' with a single image at a time; set engine.recompute=true, use "
                "engine.parallel.strategy=fsdp with more workers, or a smaller preset"
            ) from failure
        former, self.batch_size = self.batch_size, even_chunks(self.share_images, self.batch_size // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.notes.append(
            f"memory ran out in '{name}' with {former} images at once: going on with {self.batch_size}, the same "
            "global batch"
        )

    def select(self, name: str) -> None:
        """Let gradients flow to one network's parameters only: the others would be paid for and thrown away."""
        for other, network in self.networks.items():
            network.requires_grad_(other == name)

    def reseed(self, part: str) -> None:
        """Draw what follows from the position alone, the same when a part is computed again."""
        torch.manual_seed(mix_seed(self.seed, self.images_seen, self.rank, sum(part.encode())))

    def eager(self, phase: Phase[Any]) -> contextlib.AbstractContextManager[Any]:
        """Leave compiled graphs aside where a gradient is differentiated: they cannot follow."""
        if self.compiled and phase.second_order:
            stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
            return stance
        return contextlib.nullcontext()

    @torch.no_grad()
    def keep_statistics(self) -> None:
        """Remember running statistics: a batch that is left out must leave nothing in them."""
        if self.statistics:
            torch._foreach_copy_(self.kept, self.statistics)

    @torch.no_grad()
    def restore_statistics(self, bad: Tensor | bool = True) -> None:
        """Take the running statistics back to what was kept, where `bad`, without asking the host."""
        for buffer, kept in zip(self.statistics, self.kept, strict=True):
            buffer.copy_(kept if bad is True else torch.where(torch.as_tensor(bad), kept, buffer))

    def set_learning_rates(self) -> dict[str, float]:
        """Set every optimiser's rate from the images seen."""
        rates = {}
        for name, optimizer in self.optimizers.items():
            peak = scale_lr(self.recipe.optimizers[name].base_lr, self.global_batch)
            rates[name] = learning_rate(self.config.schedule, peak, self.images_seen, self.total_images)
            for group in optimizer.param_groups:
                group["lr"] = rates[name]
        return rates

    def settle(self, lag: int = 0) -> None:
        """Count the bad steps among all but the newest `lag` reports."""
        while len(self.unread) > lag:
            skipped = self.unread.pop(0).skipped
            self.bad_steps = self.bad_steps + 1 if skipped else 0
            self.skipped_steps += bool(skipped)
            if skipped:
                for wrapped in self.wrapped.values():
                    wrapped.forget()
            if self.bad_steps > self.config.max_bad_steps:
                raise TrainingFailed(
                    f"{self.bad_steps} steps in a row had non-finite gradients (last: {', '.join(skipped)}) after "
                    f"{self.images_seen} images; lower base_lr, use engine.precision=fp32, or look for damaged data"
                )

    @torch.no_grad()
    def update_averages(self) -> None:
        """Let the averages follow their networks; statistics are copied."""
        decay = average_decay(self.config.average_half_life_images, self.global_batch, self.images_seen)
        for name, average in self.averages.items():
            network = self.networks[name]
            torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
            for kept, new in zip(average.buffers(), network.buffers(), strict=True):
                kept.copy_(new)

    def mean_over_ranks(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Average loss parts over ranks; they stay on the device."""
        if not losses or self.num_ranks == 1:
            return dict(losses)
        values = torch.stack(list(losses.values()))
        with self.ledger.part("communication"):
            dist.all_reduce(values)
        return dict(zip(losses, (values / self.num_ranks).unbind(), strict=True))

    def inference_networks(self) -> dict[str, nn.Module]:
        """Return the networks as they leave training: averaged where an average is kept, in eval mode.

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
            parts.append(f"{self.strategy} ({self.strategy_reason})")
            parts.append("gradients exchanged " + ("during" if self.overlap else "after") + " the backward pass")
        if self.config.recompute:
            parts.append("activations recomputed")
        return ", ".join(parts)

    def choices(self) -> dict[str, Any]:
        """Return what the settings made of the hardware profile, by its names."""
        return {
            "precision": self.precision.name,
            "tf32": self.profile.tf32 and self.precision.name != "fp32",
            "channels_last": self.channels_last,
            "compile": self.compiled,
        }


def whole(value: Tensor) -> Tensor:
    """Gather a scalar that is kept in parts."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def mix_seed(seed: int, images_seen: int, rank: int, part: int = 0) -> int:
    """Derive an independent 63-bit seed for a part of a step, a rank, a position of the run."""
    mixed = (seed * 0x9E3779B97F4A7C15 + images_seen * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) % 2**64
    mixed = (mixed + part * 0xD1B54A32D192ED03) % 2**64
    mixed ^= mixed >> 31
    return (mixed * 0xD6E8FEB86659FD93 % 2**64) >> 1

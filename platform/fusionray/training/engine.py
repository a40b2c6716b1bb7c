"""The engine: runs any recipe on one device, alone or as a rank of a process group. Knows torch, not Ray."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fusionray.errors import CheckpointMissing, TrainingFailed
from fusionray.recipes.recipe import OptimizerConfig, Phase, PhaseInput, Recipe
from fusionray.training.schedule import average_decay, learning_rate, scale_lr
from fusionray.training.settings import EngineConfig
from fusionray.types import Batch


@dataclass(frozen=True)
class StepReport:
    """What one step did: mean loss parts over micro-batches and ranks, gradient norms, rates, skipped phases."""

    losses: dict[str, float]
    grad_norms: dict[str, float]
    learning_rates: dict[str, float]
    skipped: tuple[str, ...]


class Engine:
    """Own networks, optimisers and averages; turn micro-batches into optimisation steps.

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
    ) -> None:
        self.recipe = recipe
        self.config = config
        self.total_images = total_images
        self.device = device
        self.seed = seed
        self.images_seen = 0
        self.bad_steps = 0
        self.num_steps = 0
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        shares = self.num_ranks * config.accumulate
        if config.global_batch % shares:
            raise ValueError(
                f"engine.global_batch={config.global_batch} does not divide into {self.num_ranks} workers x "
                f"engine.accumulate={config.accumulate} micro-batches"
            )
        self.micro_batch = config.global_batch // shares
        self.dtype = choose_dtype(config.precision, device)
        for network in recipe.frozen.values():
            place(network, device).eval().requires_grad_(False)
        self.networks: dict[str, nn.Module] = {
            name: place(network, device) for name, network in recipe.networks.items()
        }
        self.averages = {
            name: copy.deepcopy(self.networks[name]).eval().requires_grad_(False) for name in recipe.averaged
        }
        # One wrapper a network: a wrapper around several would wait for gradients of those that do not train now.
        self.wrapped = {name: wrap(network, device) for name, network in self.networks.items()}
        self.optimizers = {
            name: build_optimizer(self.networks[name], recipe.optimizers[name]) for name in self.networks
        }

    @property
    def batch_images(self) -> int:
        """Images that one step takes from all ranks together."""
        return self.config.global_batch

    def step(self, micro_batches: Sequence[Batch]) -> StepReport:
        """Run every phase that is due once over this rank's micro-batches.

        Raises: TrainingFailed after more than `max_bad_steps` non-finite steps in a row.
        """
        assert len(micro_batches) == self.config.accumulate
        torch.manual_seed(mix_seed(self.seed, self.images_seen, self.rank))
        with torch.no_grad():
            prepared = [self.recipe.prepare(batch.to(self.device)) for batch in micro_batches]
        shared: list[dict[str, Tensor]] = [{} for _ in prepared]
        losses: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        skipped = []
        rates = self.set_learning_rates()
        for phase in self.recipe.phases:
            if self.num_steps % phase.interval:
                continue
            losses |= self.accumulate(phase, prepared, shared)
            norm = nn.utils.clip_grad_norm_(self.networks[phase.trains].parameters(), self.config.clip_norm)
            norms[phase.name] = norm
            # Gradients are equal on all ranks after the all-reduce, so all ranks decide alike.
            if torch.isfinite(norm):
                self.optimizers[phase.trains].step()
            else:
                skipped.append(phase.name)
        self.count_bad(skipped)
        self.images_seen += self.batch_images
        self.num_steps += 1
        self.update_averages()
        return StepReport(
            losses=self.mean_over_ranks(losses),
            grad_norms={name: float(value) for name, value in norms.items()},
            learning_rates=rates,
            skipped=tuple(skipped),
        )

    def accumulate(
        self, phase: Phase[Any], prepared: Sequence[Batch], shared: Sequence[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Add up the gradients of a phase, each micro-batch weighing 1 / number of micro-batches."""
        self.select(phase.trains)
        self.optimizers[phase.trains].zero_grad(set_to_none=True)
        networks = {**self.networks, phase.trains: self.wrapped[phase.trains]}
        sums: dict[str, Tensor] = {}
        for index, (batch, memory) in enumerate(zip(prepared, shared, strict=True)):
            # The forward pass belongs inside: the wrapper decides there whether to synchronise.
            with self.synchronise(phase.trains, last=index == len(prepared) - 1):
                with self.autocast():
                    losses = phase.loss(PhaseInput(networks, self.recipe.frozen, batch, memory))
                (losses.total / len(prepared)).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.parts.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value.detach().float() / len(
                    prepared
                )
        return sums

    def select(self, name: str) -> None:
        """Let gradients flow to one network's parameters only: the others would be paid for and thrown away."""
        for other, network in self.networks.items():
            network.requires_grad_(other == name)

    @contextlib.contextmanager
    def synchronise(self, name: str, *, last: bool) -> Iterator[None]:
        """Exchange gradients between ranks after the last micro-batch only."""
        wrapper = self.wrapped[name]
        if isinstance(wrapper, DistributedDataParallel) and not last:
            with wrapper.no_sync():
                yield
        else:
            yield

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the chosen precision."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def set_learning_rates(self) -> dict[str, float]:
        """Set every optimiser's rate from the images seen."""
        rates = {}
        for name, optimizer in self.optimizers.items():
            peak = scale_lr(self.recipe.optimizers[name].base_lr, self.config.global_batch)
            rates[name] = learning_rate(self.config.schedule, peak, self.images_seen, self.total_images)
            for group in optimizer.param_groups:
                group["lr"] = rates[name]
        return rates

    def count_bad(self, skipped: Sequence[str]) -> None:
        self.bad_steps = self.bad_steps + 1 if skipped else 0
        if self.bad_steps > self.config.max_bad_steps:
            raise TrainingFailed(
                f"{self.bad_steps} steps in a row had non-finite gradients (last: {', '.join(skipped)}) after "
                f"{self.images_seen} images; lower base_lr, use engine.precision=fp32, or look for damaged data"
            )

    @torch.no_grad()
    def update_averages(self) -> None:
        decay = average_decay(self.config.average_half_life_images, self.batch_images, self.images_seen)
        for name, average in self.averages.items():
            network = self.networks[name]
            for kept, new in zip(average.parameters(), network.parameters(), strict=True):
                kept.lerp_(new, 1 - decay)
            for kept_buffer, new_buffer in zip(average.buffers(), network.buffers(), strict=True):
                kept_buffer.copy_(new_buffer)

    def mean_over_ranks(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        if not losses:
            return {}
        values = torch.stack(list(losses.values()))
        if self.num_ranks > 1:
            dist.all_reduce(values)
            values /= self.num_ranks
        return dict(zip(losses, values.tolist(), strict=True))

    def inference_networks(self) -> dict[str, nn.Module]:
        """Return the networks as they leave training: averaged where an average is kept, in eval mode."""
        return {name: self.averages.get(name, network) for name, network in self.networks.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all state: networks, averages, optimisers, position. Tensors, numbers and strings only."""
        return {
            "networks": {name: network.state_dict() for name, network in self.networks.items()},
            "averages": {name: network.state_dict() for name, network in self.averages.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "images_seen": self.images_seen,
            "num_steps": self.num_steps,
            "bad_steps": self.bad_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state, made by any number of ranks.

        Raises: CheckpointMissing if the state is of other networks.
        """
        try:
            for name, network in self.networks.items():
                network.load_state_dict(state["networks"][name])
            for name, average in self.averages.items():
                average.load_state_dict(state["averages"][name])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            self.images_seen = int(state["images_seen"])
            self.num_steps = int(state["num_steps"])
            self.bad_steps = int(state["bad_steps"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointMissing(
                f"the checkpoint does not fit these networks ({str(error).splitlines()[0]}); use its own configuration"
            ) from None


def place(network: nn.Module, device: torch.device) -> nn.Module:
    """Move a network to a device, its convolutions in the layout that both CPUs and tensor cores compute fastest."""
    return network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def wrap(network: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a network for gradient exchange where there is a process group."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return network
    return DistributedDataParallel(
        network, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )


def build_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build an optimiser; gains, biases and norms are not decayed."""
    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": free, "weight_decay": 0.0}]
    if config.kind == "sgd":
        return torch.optim.SGD(groups, lr=config.base_lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.base_lr, betas=config.betas)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Choose the compute type; `auto` is bf16 where the device multiplies it natively, else float32."""
    if precision == "auto":
        native = torch.cuda.is_bf16_supported() if device.type == "cuda" else cpu_multiplies_bf16()
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def cpu_multiplies_bf16() -> bool:
    """Tell whether the CPU has bf16 dot products; emulated ones are slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def mix_seed(seed: int, images_seen: int, rank: int) -> int:
    """Derive an independent 63-bit seed for a rank at a position of the run."""
    mixed = (seed * 0x9E3779B97F4A7C15 + images_seen * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) % 2**64
    mixed ^= mixed >> 31
    return (mixed * 0xD6E8FEB86659FD93 % 2**64) >> 1

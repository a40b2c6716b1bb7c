"""The report of a step timer: means per step, metrics for the tracker, a warning with a remedy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusionray.training.config import TrainConfig

# `graphs`: forward and backward passes that run as CUDA graphs, which have no time stamps inside.
PARTS = ("data_wait", "host_to_device", "forward", "backward", "graphs", "communication", "optimizer")
OTHER = "other"
HIGH_COMMUNICATION = 0.30
HIGH_DATA_WAIT = 0.10


@dataclass(frozen=True)
class StepTimes:
    """Means per step since the last summary.

    `seconds`: of each part and of `other`; they sum to `step_seconds`. `overlapped`: of spans that overlap with the
    parts and are in none of them. `memory_gib`: peak so far, of the device, or of the process on a CPU. `own_spread`:
    standard deviation of what this rank itself takes for a step, without waiting for data and others, over its median.
    """

    num_steps: int
    step_seconds: float
    seconds: dict[str, float]
    overlapped: dict[str, float]
    images_per_second: float
    memory_gib: float
    own_spread: float = 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in the step; they sum to 1."""
        return {name: value / max(1e-12, self.step_seconds) for name, value in self.seconds.items()}

    @property
    def total_communication_share(self) -> float:
        """Share of the step in which gradients are exchanged, hidden behind the backward pass or not."""
        busy = self.seconds["communication"] + self.overlapped.get("communication", 0.0)
        return min(1.0, busy / max(1e-12, self.step_seconds))

    def metrics(self) -> dict[str, float]:
        """Return the metrics for the tracker."""
        metrics = {f"time_{name}_ms": 1e3 * value for name, value in self.seconds.items()}
        metrics |= {f"time_overlapped_{name}_ms": 1e3 * value for name, value in self.overlapped.items()}
        shares = self.shares
        metrics |= {f"share_{name}": value for name, value in shares.items() if name != "communication"}
        return {
            **metrics,
            # The exposed share is 0 if the backward pass hides all communication, even on saturated links.
            "exposed_communication_share": shares["communication"],
            "total_communication_share": self.total_communication_share,
            "time_step_ms": 1e3 * self.step_seconds,
            "images_per_second": self.images_per_second,
            "device_memory_gib": self.memory_gib,
            "own_spread": self.own_spread,
        }

    def warning(self, config: TrainConfig) -> str | None:
        """Return one line that says what takes too long and which settings to change; None if nothing does."""
        lines = []
        if self.total_communication_share > HIGH_COMMUNICATION:
            remedy = advise_communication(config, gpu=torch.cuda.is_available())
            lines.append(
                f"{self.total_communication_share:.0%} of a step is spent on the exchange of gradients: {remedy}"
            )
        if self.shares["data_wait"] > HIGH_DATA_WAIT:
            lines.append(f"{self.shares['data_wait']:.0%} of a step is spent waiting for data: {advise_data(config)}")
        return "; ".join(lines) or None


def advise_communication(config: TrainConfig, *, gpu: bool) -> str:
    """Return the remedies that are not in use yet, the strongest first."""
    engine, parallel = config.engine, config.engine.parallel
    remedies = []
    if isinstance(engine.global_batch, int):
        remedies.append(
            f"raise engine.global_batch (now {engine.global_batch}) and with it engine.batch_size, so that a step "
            "computes longer per exchange"
        )
    if parallel.compression == "none":
        remedies.append("set engine.parallel.compression=fp16 (half the bytes)")
    elif parallel.compression in ("fp16", "bf16") and parallel.strategy != "fsdp":
        remedies.append("set engine.parallel.compression=powersgd (a fraction of the bytes)")
    if gpu and parallel.overlap is False:
        remedies.append("set engine.parallel.overlap=true")
    if gpu:
        remedies.append(
            "check that NCCL uses the fast interface (NCCL_DEBUG=INFO shows it, NCCL_SOCKET_IFNAME sets it)"
        )
    return ", ".join(remedies)


def advise_data(config: TrainConfig) -> str:
    """Return the settings that speed up data loading, with their present values."""
    data = config.data
    return (
        f"raise data.decode_threads (now {data.decode_threads or 'by hardware profile'}) or data.prefetch_batches (now "
        f"{data.prefetch_batches}), lower data.shuffle_buffer_rows (now {data.shuffle_buffer_rows}) if only the start "
        "is slow, or put the shards on faster storage"
    )

"""In which numbers the steps are computed: autocast type, matrix-multiplication mode, loss scaling."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Weights, gradients and optimiser states are float32 always; this is what multiplies."""

    name: PrecisionName
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Give the type that matrices are multiplied in."""
        return AUTOCAST_TYPES.get(self.name, torch.float32)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute a block in this precision."""
        dtype = AUTOCAST_TYPES.get(self.name)
        return torch.autocast(self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)

    def set_matmul_mode(self) -> None:
        """Let float32 products on tensor cores be rounded to TF32, except where fp32 was asked for.

        What autocast leaves in float32 (losses, norms of small vectors) gains too. The mode is the process's own.
        """
        torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.name != "fp32"

    def build_scaler(self) -> torch.amp.GradScaler:
        """Build the loss scaler of one phase; it does nothing unless gradients could underflow (fp16).

        Each phase has its own: a gradient penalty and an adversarial loss differ by orders of magnitude.
        """
        # 2^16, torch's default, makes the first dozen steps of a small GAN overflow: they would all be skipped.
        return torch.amp.GradScaler(self.device.type, init_scale=2.0**12, enabled=self.name == "fp16")


def scaler_tensors(scaler: torch.amp.GradScaler) -> dict[str, Tensor]:
    """Return a scaler's state as tensors, empty if it is disabled."""
    state = scaler.state_dict()
    if not state:
        return {}
    return {
        "scale": torch.tensor(float(state["scale"]), dtype=torch.float64),
        "growth": torch.tensor(int(state["_growth_tracker"]), dtype=torch.int64),
    }


def load_scaler(scaler: torch.amp.GradScaler, tensors: dict[str, Tensor]) -> None:
    """Take over a state that `scaler_tensors` returned."""
    if tensors:
        state = scaler.state_dict()
        scaler.load_state_dict({**state, "scale": float(tensors["scale"]), "_growth_tracker": int(tensors["growth"])})

"""Compute precision: autocast dtype, float32 matrix multiplications, loss scaling."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
# Also the dtypes in which workers exchange compressed gradients.
REDUCED_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The precision of forward and backward passes; weights, gradients and optimiser states are always float32."""

    name: PrecisionName
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of matrix multiplications: bfloat16, float16, or float32 for fp32 and tf32."""
        return REDUCED_DTYPES.get(self.name, torch.float32)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context for the forward pass; disabled for fp32 and tf32."""
        dtype = REDUCED_DTYPES.get(self.name)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def apply_to_process(self) -> None:
        """Apply the settings that are global to the process.

        TF32 is allowed in float32 matrix multiplications and convolutions unless the precision is fp32; this also
        applies to operations that autocast leaves in float32. On NVIDIA GPUs, cuDNN measures which algorithm is fastest
        for each convolution: the sizes of a run do not change. MIOpen would search for minutes.
        """
        torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.name != "fp32"
        torch.backends.cudnn.benchmark = self.device.type == "cuda" and torch.version.hip is None

    def build_scaler(self) -> torch.amp.GradScaler:
        """Build the loss scaler of one phase; it is disabled unless the precision is fp16.

        Each phase has its own: a gradient penalty and an adversarial loss differ by orders of magnitude.
        """
        # 2^16, torch's default, makes the first dozen steps of a small GAN overflow: they would all be skipped.
        return torch.amp.GradScaler(self.device.type, init_scale=2.0**12, enabled=self.name == "fp16")


def scaler_state(scaler: torch.amp.GradScaler) -> dict[str, Tensor]:
    """Return the state of a loss scaler: `scale` float64 [] and `growth` int64 []; empty if it is disabled."""
    state = scaler.state_dict()
    if not state:
        return {}
    return {
        "scale": torch.tensor(float(state["scale"]), dtype=torch.float64),
        "growth": torch.tensor(int(state["_growth_tracker"]), dtype=torch.int64),
    }


def load_scaler_state(scaler: torch.amp.GradScaler, tensors: dict[str, Tensor]) -> None:
    """Load a state that `scaler_state` returned; does nothing if it is empty."""
    if tensors:
        state = scaler.state_dict()
        scaler.load_state_dict({**state, "scale": float(tensors["scale"]), "_growth_tracker": int(tensors["growth"])})

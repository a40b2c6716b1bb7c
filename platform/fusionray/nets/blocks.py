"""Building blocks of the generator, and the recomputation of what lies inside a block.

Shape suffixes: N batch, C channels, H rows, W columns, S style (identity code) length.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class ActivationCheckpointedBlock(nn.Module):
    """A unit whose inner activations may be computed again in the backward pass instead of being kept.

    Subclasses define `compute`. The switch is no part of the state: names and exported graphs stay as they are.
    """

    activation_checkpointing = False
    compute: Callable[..., Tensor]

    def forward(self, *inputs: Tensor | None) -> Tensor:
        if not (self.activation_checkpointing and torch.is_grad_enabled() and self.is_differentiated(inputs)):
            return self.compute(*inputs)
        if self.training and any(isinstance(module, _BatchNorm) for module in self.modules()):
            out: Tensor = checkpoint(self.compute, *inputs, use_reentrant=False, context_fn=self.checkpoint_contexts)
        else:
            # A compiled graph takes no contexts: they are asked for only where there is something to protect.
            out = checkpoint(self.compute, *inputs, use_reentrant=False)
        return out

    def is_differentiated(self, inputs: tuple[Tensor | None, ...]) -> bool:
        """Tell whether a backward pass can come here at all."""
        return any(value is not None and value.requires_grad for value in inputs) or any(
            p.requires_grad for p in self.parameters()
        )

    def checkpoint_contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        """Give what surrounds the first computation and the second."""
        return contextlib.nullcontext(), self.protect_statistics()

    @contextlib.contextmanager
    def protect_statistics(self) -> Iterator[None]:
        """Let batch norms note the statistics in copies: the first computation has noted them already."""
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]
        kept = [dict(norm.named_buffers(recurse=False)) for norm in norms]
        # It must note them somewhere: without running statistics it would save other tensors than the first time.
        for norm, buffers in zip(norms, kept, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())
        try:
            yield
        finally:
            for norm, buffers in zip(norms, kept, strict=True):
                for name, buffer in buffers.items():
                    setattr(norm, name, buffer)


def set_activation_checkpointing(network: nn.Module, enabled: bool) -> int:
    """Switch the recomputation of all units of a network; returns how many there are.

    Measured on the fast-128 generator before it saw the source (float32, 4 pictures, one CPU thread): what the forward
    pass keeps falls to 19 %, the peak of the whole step to 51 %, and the step takes 1.3 times as long. What looks at
    the source keeps its activations: with it, 23 % are left.
    """
    units = [module for module in network.modules() if isinstance(module, ActivationCheckpointedBlock)]
    for unit in units:
        unit.activation_checkpointing = enabled
    return len(units)


class ModulatedConv(nn.Module):
    """3x3 convolution: a style scales its weights, which are demodulated to unit variance, and gives its bias.

    The bias is what StyleGAN2 does without: there a style varies what a constant holds already, here it must bring in
    what the target has nothing of, such as the colour of a skin.

    The scaling is applied to input and output instead of to the weights: `conv(x, W * s) / |W * s|` equals
    `conv(x * s, W) / |W * s|`, and this form keeps the batch dynamic in an exported graph.

    Source: StyleGAN2 (Karras et al. 2020), section 2.2 and appendix B.
    """

    def __init__(self, in_channels: int, out_channels: int, style_length: int) -> None:
        super().__init__()
        fan_in = in_channels * 9
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, 3, 3) / math.sqrt(fan_in))
        self.to_scale = nn.Linear(style_length, in_channels)
        nn.init.normal_(self.to_scale.weight, std=1 / math.sqrt(style_length))
        nn.init.ones_(self.to_scale.bias)
        self.to_bias = nn.Linear(style_length, out_channels)
        nn.init.normal_(self.to_bias.weight, std=1 / math.sqrt(style_length))
        nn.init.zeros_(self.to_bias.bias)

    def forward(self, x_NCHW: Tensor, style_NS: Tensor) -> Tensor:
        scale_NC = self.to_scale(style_NS)
        power_OC = self.weight.square().sum(dim=(2, 3))
        # In half precision the sum of squares can overflow: demodulate in float32.
        norm_NO = torch.rsqrt(F.linear(scale_NC.float().square(), power_OC.float()) + 1e-6)
        out = F.conv2d(x_NCHW * scale_NC[:, :, None, None], self.weight, padding=1)
        bias_NO = self.to_bias(style_NS)
        modulated: Tensor = out * norm_NO[:, :, None, None].to(out.dtype) + bias_NO[:, :, None, None].to(out.dtype)
        return modulated


class EncoderBlock(ActivationCheckpointedBlock):
    """Halve the resolution first, where the work is cheapest afterwards, then refine, with a residual path."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(count_groups(in_channels), in_channels)
        self.down = nn.Conv2d(in_channels, out_channels, 2, stride=2)
        self.conv = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def compute(self, x_NCHW: Tensor) -> Tensor:
        out: Tensor = self.conv(F.silu(self.down(F.silu(self.norm(x_NCHW))))) + self.skip(F.avg_pool2d(x_NCHW, 2))
        return out


class FusionBlock(ActivationCheckpointedBlock):
    """Inject the identity, then let a learned gate choose, pixel by pixel, between identity and target attributes.

    The gate is the attentional part of AAD; where it is 0 the target's own feature passes unchanged.

    Source: FaceShifter (Li et al. 2019), section 3.1 (AAD layer), with StyleGAN2 modulation as the identity path.
    """

    def __init__(
        self, in_channels: int, skip_channels: int, out_channels: int, style_length: int, detail_channels: int = 0
    ) -> None:
        super().__init__()
        self.below = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.detail = nn.Conv2d(detail_channels, out_channels, 1, bias=False) if detail_channels else None
        self.attribute = nn.Conv2d(skip_channels, out_channels, 1)
        self.first = ModulatedConv(out_channels, out_channels, style_length)
        self.second = ModulatedConv(out_channels, out_channels, style_length)
        self.gate = nn.Conv2d(out_channels, 1, 3, padding=1)
        # sigmoid(1) = 0.73: begin on the identity side, or the gate closes before the identity path has learned
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)  # type: ignore[arg-type]

    def compute(self, x_NCHW: Tensor, skip_NCHW: Tensor, style_NS: Tensor, detail_NDHW: Tensor | None = None) -> Tensor:
        """Join `x` [N,Cin,h,w] with the target's feature `skip` [N,Cskip,H,W], H = h or 2 h; returns [N,Cout,H,W].

        `detail` [N,D,H,W] is what was found in the source, if anything is looked for there.
        """
        # Narrowed before it is enlarged, and added instead of stacked: both 3x3 convolutions see the output's width.
        below = self.below(x_NCHW)
        if below.shape[-1] != skip_NCHW.shape[-1]:
            below = upsample(below)
        attribute = self.attribute(skip_NCHW)
        joined = below + attribute
        if self.detail is not None:
            joined = joined + self.detail(detail_NDHW)
        hidden = F.silu(self.first(joined, style_NS))
        identity_path = F.silu(self.second(hidden, style_NS))
        gate_N1HW = torch.sigmoid(self.gate(hidden))
        # g a + (1 - g) b, written so that the gate is spread over the channels once
        blended: Tensor = attribute + gate_N1HW * (identity_path - attribute)
        return blended


def upsample(x_NCHW: Tensor) -> Tensor:
    """Double the resolution; bilinear, since pixel shuffle invites checkerboards."""
    return F.interpolate(x_NCHW, scale_factor=2.0, mode="bilinear", align_corners=False)


def count_groups(channels: int) -> int:
    """Choose the number of normalisation groups: 16 channels each where that divides."""
    return math.gcd(channels, max(1, channels // 16))


def count_parameters(module: nn.Module) -> int:
    """Count trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)

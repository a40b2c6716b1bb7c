"""Building blocks of the generator, and activation checkpointing of single blocks.

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
    """A module that can compute its inner activations again in the backward pass instead of storing them.

    Subclasses define `compute`. The switch is not part of the state dict and does not change exported graphs.
    """

    activation_checkpointing = False
    compute: Callable[..., Tensor]

    def forward(self, *inputs: Tensor | None) -> Tensor:
        if not (self.activation_checkpointing and torch.is_grad_enabled() and self.requires_backward(inputs)):
            return self.compute(*inputs)
        if self.training and any(isinstance(module, _BatchNorm) for module in self.modules()):
            out: Tensor = checkpoint(self.compute, *inputs, use_reentrant=False, context_fn=self.checkpoint_contexts)
        else:
            # Compiled graphs do not support context_fn, so only blocks with running statistics use it.
            out = checkpoint(self.compute, *inputs, use_reentrant=False)
        return out

    def requires_backward(self, inputs: tuple[Tensor | None, ...]) -> bool:
        """Return whether a backward pass can reach this block."""
        return any(value is not None and value.requires_grad for value in inputs) or any(
            p.requires_grad for p in self.parameters()
        )

    def checkpoint_contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        """Return the contexts of the forward computation and of the recomputation."""
        return contextlib.nullcontext(), self.protect_statistics()

    @contextlib.contextmanager
    def protect_statistics(self) -> Iterator[None]:
        """Let batch norms update copies of their running statistics: the first computation has updated them already."""
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]
        originals = [dict(norm.named_buffers(recurse=False)) for norm in norms]
        # Copies instead of none: without running statistics the recomputation would save other tensors.
        for norm, buffers in zip(norms, originals, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())
        try:
            yield
        finally:
            for norm, buffers in zip(norms, originals, strict=True):
                for name, buffer in buffers.items():
                    setattr(norm, name, buffer)


def set_activation_checkpointing(network: nn.Module, enabled: bool) -> int:
    """Switch activation checkpointing of all blocks of a network on or off; return their number.

    Measured on the fast-128 generator without source tokens (float32, 4 pictures, one CPU thread): the activations
    that the forward pass stores fall to 19 %, the peak memory of a step to 51 %, and a step takes 1.3 times as long.
    Source encoder and source attention are not checkpointed: with them, 23 % of the activations remain.
    """
    blocks = [module for module in network.modules() if isinstance(module, ActivationCheckpointedBlock)]
    for block in blocks:
        block.activation_checkpointing = enabled
    return len(blocks)


class ModulatedConv(nn.Module):
    """3x3 convolution whose weights a style scales (then demodulated to unit variance), and whose bias it sets.

    StyleGAN2 has no bias from the style. Here the style must add content that the target lacks, such as the colour of
    the skin.

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
        scale_NC, norm_NO = self.modulation(style_NS)
        out = F.conv2d(x_NCHW * scale_NC[:, :, None, None].to(x_NCHW.dtype), self.weight, padding=1)
        bias_NO = self.to_bias(style_NS)
        modulated: Tensor = out * norm_NO[:, :, None, None].to(out.dtype) + bias_NO[:, :, None, None].to(out.dtype)
        return modulated

    def modulation(self, style_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the input channels [N,C] and of the output channels [N,O], float32 under autocast too.

        Under autocast a style whose largest factor is above 1 is divided by it, and its demodulation multiplied: in
        half precision, products of large factors and features, or the sum of their squares, would overflow.

        Source: StyleGAN2-ADA (Karras et al. 2020a), appendix D.1 divides styles in half precision likewise.
        """
        device = style_NS.device.type
        # The meta device has no autocast to ask about.
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            scale_NC = self.to_scale(style_NS)
            return scale_NC, self.demodulation(scale_NC)
        with torch.autocast(device, enabled=False):
            scale_NC = self.to_scale(style_NS.float())
            scale_NC = scale_NC / scale_NC.abs().amax(dim=1, keepdim=True).clamp_min(1)
            return scale_NC, self.demodulation(scale_NC)

    def demodulation(self, scale_NC: Tensor) -> Tensor:
        """Return 1 / |W s| for each output channel, [N,O]."""
        power_OC = self.weight.square().sum(dim=(2, 3))
        return torch.rsqrt(F.linear(scale_NC.square(), power_OC) + 1e-6)


class EncoderBlock(ActivationCheckpointedBlock):
    """Halve the resolution, then refine, with a residual path; refining at the lower resolution costs less."""

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
    """Inject the identity, then blend identity and target features by a learned gate, pixel by pixel.

    The gate is the attention mask of AAD; where it is 0, the target's feature passes unchanged.

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
        # sigmoid(1) = 0.73: begin on the identity side, or the gate closes before the identity path has learned.
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)  # type: ignore[arg-type]

    def compute(self, x_NCHW: Tensor, skip_NCHW: Tensor, style_NS: Tensor, detail_NDHW: Tensor | None = None) -> Tensor:
        """Fuse `x` [N,Cin,h,w] with the target's feature `skip` [N,Cskip,H,W], H = h or 2 h; return [N,Cout,H,W].

        `detail` [N,D,H,W]: features of the source from `SourceAttention`, if the block has `detail_channels`.
        """
        # Project before upsampling, and add instead of concatenating: both 3x3 convolutions have the output's width.
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
        # (1 - g) attribute + g identity, written so that the gate is broadcast over the channels once.
        blended: Tensor = attribute + gate_N1HW * (identity_path - attribute)
        return blended


def upsample(x_NCHW: Tensor) -> Tensor:
    """Double the resolution; bilinear, because pixel shuffle causes checkerboard artefacts."""
    return F.interpolate(x_NCHW, scale_factor=2.0, mode="bilinear", align_corners=False)


def count_groups(channels: int) -> int:
    """Return the number of groups of a group norm: 16 channels per group if `channels` is divisible by that."""
    return math.gcd(channels, max(1, channels // 16))


def count_parameters(module: nn.Module) -> int:
    """Count the parameters that require gradients."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)

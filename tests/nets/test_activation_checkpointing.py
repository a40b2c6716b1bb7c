"""Activations that are computed again in the backward pass: equal gradients, less memory, nothing else changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.config import read_preset
from fusionray.nets.blocks import ActivationCheckpointedBlock, EncoderBlock, FusionBlock, set_activation_checkpointing
from fusionray.nets.discriminator import Discriminator, DiscriminatorConfig
from fusionray.nets.generator import Generator, GeneratorConfig
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig
from tests.support.tiny_fusion import ENCODER

SMALL = GeneratorConfig(size=32, channels=(8, 16, 24), bottleneck_blocks=1, style_length=32)


class Forgetful(ActivationCheckpointedBlock):
    """A unit with dropout: computed again, it must drop the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def compute(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x).tanh(), 0.5, self.training)


def build_generator() -> tuple[Generator, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Generator(SMALL), (F.normalize(torch.randn(2, 512)), torch.rand(2, 3, 32, 32) * 2 - 1)


def build_encoder() -> tuple[IdentityEncoder, tuple[Tensor]]:
    torch.manual_seed(0)
    return IdentityEncoder(ENCODER), (torch.rand(4, 3, 112, 112) * 2 - 1,)


def build_forgetful() -> tuple[Forgetful, tuple[Tensor]]:
    torch.manual_seed(0)
    return Forgetful(), (torch.randn(4, 16),)


def learn(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Give every gradient, and every buffer after the step."""
    torch.manual_seed(1)
    out = network(*inputs)
    tensors = out if isinstance(out, tuple) else (out,)
    torch.stack([value.square().mean() for value in tensors]).sum().backward()
    gradients = {f"grad of {name}": value.grad for name, value in network.named_parameters()}
    assert all(value is not None for value in gradients.values())
    return {**gradients, **dict(network.named_buffers())}  # type: ignore[dict-item]


def count_saved_bytes(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Add up the activations that a forward pass keeps for the backward pass; parameters are there anyway."""
    own = {value.untyped_storage().data_ptr() for value in network.parameters()}
    saved: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        out = network(*inputs)
    del out
    return sum(saved.values())


@pytest.mark.parametrize("build", [build_generator, build_encoder, build_forgetful])
@pytest.mark.parametrize("half", [False, True])
def test_gradients_and_statistics_equal_those_without_checkpointing_bit_for_bit(build: Any, half: bool) -> None:
    network, inputs = build()
    other = copy.deepcopy(network)
    assert set_activation_checkpointing(other, True) > 0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        kept, recomputed = learn(network, inputs), learn(other, inputs)
    assert kept.keys() == recomputed.keys()
    for name, value in kept.items():
        assert torch.equal(value, recomputed[name]), name


def test_running_statistics_are_updated_once_in_the_original_buffers() -> None:
    network, inputs = build_encoder()
    set_activation_checkpointing(network, True)
    before = dict(network.named_buffers())
    learn(network, inputs)
    after = dict(network.named_buffers())
    # The distributed wrapper and the averages hold on to these very tensors.
    assert all(after[name] is buffer for name, buffer in before.items())
    assert all(int(value) == 1 for name, value in after.items() if name.endswith("num_batches_tracked"))


def test_a_frozen_encoder_passes_the_same_gradient_to_the_picture() -> None:
    encoder, (face,) = build_encoder()
    encoder.eval().requires_grad_(False)
    gradients = []
    for enabled in (False, True):
        set_activation_checkpointing(encoder, enabled)
        picture = face.clone().requires_grad_(True)
        encoder(picture)[:, 0].sum().backward()
        gradients.append(picture.grad)
    assert torch.equal(gradients[0], gradients[1])


def test_nothing_is_recomputed_without_a_backward_pass() -> None:
    unit, inputs = build_forgetful()
    calls = []
    unit.linear.register_forward_hook(lambda *_: calls.append(1))
    set_activation_checkpointing(unit, True)
    with torch.no_grad():
        unit(*inputs)
    unit.requires_grad_(False)
    unit(*inputs)
    assert len(calls) == 2
    unit.requires_grad_(True)
    unit(*inputs).sum().backward()
    assert len(calls) == 4


def test_the_switch_counts_the_blocks_and_is_copied_but_not_in_the_state_dict() -> None:
    generator, _ = build_generator()
    names = list(generator.state_dict())
    blocks = [module for module in generator.modules() if isinstance(module, EncoderBlock | FusionBlock)]
    assert set_activation_checkpointing(generator, True) == len(blocks) == 5
    assert all(
        unit.activation_checkpointing
        for unit in copy.deepcopy(generator).modules()
        if isinstance(unit, ActivationCheckpointedBlock)
    )
    assert list(generator.state_dict()) == names
    set_activation_checkpointing(generator, False)
    assert not any(unit.activation_checkpointing for unit in blocks)
    encoder = IdentityEncoder(IdentityEncoderConfig(channels=(8, 8), blocks=(1, 2)))
    assert set_activation_checkpointing(encoder, True) == 3
    # The gradient penalty differentiates the discriminator twice: it keeps its activations.
    assert set_activation_checkpointing(Discriminator(DiscriminatorConfig()), True) == 0


@pytest.mark.parametrize("trained", [False, True])
def test_an_exported_graph_is_the_same(trained: bool) -> None:
    generator, inputs = build_generator()
    generator.requires_grad_(trained)
    batch = {0: torch.export.Dim("N", min=1, max=64)}
    graphs = []
    for enabled in (False, True):
        set_activation_checkpointing(generator, enabled)
        program = torch.export.export(generator, inputs, dynamic_shapes=(batch, batch))
        graphs.append([(node.op, str(node.target)) for node in program.graph.nodes])
    assert graphs[0] == graphs[1]


def test_the_activations_of_fast_128_fall_to_less_than_a_quarter() -> None:
    torch.manual_seed(0)
    config = GeneratorConfig.model_validate(read_preset("fast-128")["recipe"]["generator"])
    generator = Generator(config)
    inputs = torch.rand(1, config.source_length) * 2 - 1, torch.rand(1, 3, 128, 128) * 2 - 1
    kept = count_saved_bytes(generator, inputs)
    set_activation_checkpointing(generator, True)
    recomputed = count_saved_bytes(generator, inputs)
    # Measured: 94.9 MiB and 21.8 MiB for one picture; what looks at the source keeps its own.
    assert recomputed < 0.25 * kept

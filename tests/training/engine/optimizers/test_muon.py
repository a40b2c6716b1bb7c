"""Orthogonal steps: what they are, and beside torch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fusionray.recipes.recipe import OptimizerConfig
from fusionray.training.engine.optimizers.build import (
    build_optimizer,
    count_states,
    create_states,
    optimizer_tensors,
    step_if,
)
from fusionray.training.engine.optimizers.muon import STEP_RMS, Muon, orthogonalize

SETTINGS = OptimizerConfig(kind="muon", base_lr=0.01, muon_rate=2.0, betas=(0.5, 0.99), momentum=0.9)


def build_network() -> nn.Module:
    torch.manual_seed(0)
    # Two convolutions of one shape, a wider one, a head too narrow to be a matrix, a dense layer, and biases.
    convolutions = [nn.Conv2d(24, 16, 1), nn.Conv2d(24, 16, 1), nn.Conv2d(12, 40, 3), nn.Conv2d(16, 4, 3)]
    return nn.ModuleList([*convolutions, nn.Linear(16, 16)])


def give_gradients(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        # In the layout of the weights, as autograd leaves it.
        parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 9, 9)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.03)])
def test_the_nearest_orthogonal_matrix_has_the_same_singular_vectors(
    shape: tuple[int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    # As uneven as gradients are: the longest direction a hundred times the shortest.
    u, _, vh = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(1)), full_matrices=False)
    lengths = torch.logspace(0, -2, min(shape[1:]))
    near = orthogonalize(u * lengths @ vh * 1e-4, dtype).float()
    along = torch.einsum("kor,koi,kri->kr", u, near, vh)
    assert ((along > 0.6) & (along < 1.3)).all()
    # All of it lies along them: nothing was turned.
    assert float((near - u * along[:, None] @ vh).abs().max()) < tolerance


def test_a_matrix_of_zeros_is_unchanged() -> None:
    assert not orthogonalize(torch.zeros(2, 8, 12), torch.float32).any()


def test_convolutions_are_stepped_as_by_torch_and_all_else_as_by_adamw() -> None:
    network = build_network()
    convolutions = [network[0].weight, network[1].weight, network[2].weight]
    others = [parameter for parameter in network.parameters() if parameter.ndim < 3] + [network[3].weight]
    # Torch's own takes matrices only.
    flat = [nn.Parameter(weight.detach().flatten(1).clone()) for weight in convolutions]
    before = [weight.detach().clone() for weight in flat]
    copies = [nn.Parameter(other.detach().clone()) for other in others]
    ours = build_optimizer(network, SETTINGS)
    theirs = [
        torch.optim.Muon(flat, lr=0.02, weight_decay=0.0, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(copies, lr=0.01, betas=(0.5, 0.99), weight_decay=0.0),
    ]
    for seed in range(4):
        give_gradients(network, seed)
        for parameter, competitor in zip([*convolutions, *others], [*flat, *copies], strict=True):
            assert parameter.grad is not None
            competitor.grad = parameter.grad.reshape(competitor.shape).clone()
        for optimizer in (ours, *theirs):
            optimizer.step()
    for weight, competitor, start in zip(convolutions, flat, before, strict=True):
        ours_OI, theirs_OI = weight.detach().flatten(1) - start, competitor.detach() - start
        # Torch multiplies in bfloat16 and takes one round more: singular values differ, directions do not.
        assert float(torch.cosine_similarity(ours_OI.flatten(), theirs_OI.flatten(), dim=0)) > 0.97
        assert float(ours_OI.norm() / theirs_OI.norm()) == pytest.approx(1, abs=0.1)
    for other, competitor in zip(others, copies, strict=True):
        torch.testing.assert_close(other, competitor)


def test_the_layout_of_memory_changes_nothing() -> None:
    networks = [build_network(), build_network().to(memory_format=torch.channels_last)]  # type: ignore[call-overload]
    for network in networks:
        optimizer = build_optimizer(network, SETTINGS)
        for seed in range(2):
            give_gradients(network, seed)
            optimizer.step()
    assert networks[1][2].weight.is_contiguous(memory_format=torch.channels_last)
    for rows, channels in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(rows, channels.contiguous(), rtol=1e-4, atol=1e-6)


def test_a_convolution_takes_a_step_as_long_as_adamws() -> None:
    network = build_network()
    before = network[2].weight.detach().clone()
    give_gradients(network, 0)
    build_optimizer(network, SETTINGS).step()
    moved = (network[2].weight - before).detach().square().mean().sqrt()
    assert float(moved) == pytest.approx(0.02 * STEP_RMS, rel=0.25)


def test_weights_decay_by_their_own_length() -> None:
    network = build_network()
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = network[2].weight.detach().clone()
    build_optimizer(network, SETTINGS.model_copy(update={"weight_decay": 0.1})).step()
    torch.testing.assert_close(network[2].weight, before * (1 - 0.02 * 0.1))


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_a_step_that_is_not_finite_is_left_out(bad: float) -> None:
    network = build_network()
    optimizer = build_optimizer(network, SETTINGS)
    create_states(optimizer)
    give_gradients(network, 0)
    before = copy.deepcopy(network.state_dict())
    states = {name: value.clone() for name, value in name_states(network, optimizer).items()}
    step_if(optimizer, torch.amp.GradScaler("cpu", enabled=False), torch.tensor(bad))
    same = [torch.equal(value, before[name]) for name, value in network.state_dict().items()]
    same += [torch.equal(value, states[name]) for name, value in name_states(network, optimizer).items()]
    assert all(same) if bad else not any(same)


def test_states_are_counted_as_they_are_kept() -> None:
    network = build_network()
    for kind in ("muon", "adamw", "sgd"):
        settings = SETTINGS.model_copy(update={"kind": kind})
        optimizer = build_optimizer(network, settings)
        create_states(optimizer)
        kept = sum(value.numel() for value in name_states(network, optimizer).values() if value.ndim)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        assert count_states(network, settings) * parameters == pytest.approx(kept)


def name_states(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return optimizer_tensors(optimizer, {parameter: name for name, parameter in network.named_parameters()})


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_a_gpu_decides_itself_whether_matrices_are_stepped(bad: float) -> None:
    """As on a GPU, where the host does not ask: all is computed, and nothing changes if a gradient is not finite."""
    steps = []
    for asked in (True, False):
        network = build_network()
        optimizer = build_optimizer(network, SETTINGS.model_copy(update={"weight_decay": 0.1}))
        assert isinstance(optimizer, Muon)
        give_gradients(network, seed=1)
        optimizer.step()
        give_gradients(network, seed=2)
        if bad:
            network[0].weight.grad[0] = torch.nan  # type: ignore[index]
        flag = torch.tensor(bad)
        matrices = [parameter for parameter in network.parameters() if "momentum" in optimizer.state[parameter]]
        if not (asked and bad):
            with torch.no_grad():
                directions = optimizer.start_directions(matrices, None if asked else flag)()
                for group in optimizer.param_groups:
                    optimizer.step_matrices(group, directions, None if asked else flag)
        steps.append([*matrices, *(optimizer.state[parameter]["momentum"] for parameter in matrices)])
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-6 * (1 - bad), atol=0)

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusionray.nets.prelu import PReLU


def learn(layer: nn.PReLU, x: Tensor, gradient: Tensor) -> list[Tensor | None]:
    picture = x.clone().requires_grad_(True)
    # The encoder's features are in half precision while its parameters are not.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        out = layer(picture)
    out.backward(gradient)
    return [out.detach(), picture.grad, layer.weight.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True])
def test_values_and_gradients_are_torch_s_own(dtype: torch.dtype, trained: bool) -> None:
    torch.manual_seed(0)
    own, published = PReLU(8), nn.PReLU(8)
    for layer in (own, published):
        layer.requires_grad_(trained)
        layer.weight.data = torch.linspace(-0.5, 1.5, 8)
    x = torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last).to(dtype)
    x[0, :, 0, 0] = 0.0
    gradient = torch.randn(4, 8, 6, 6).to(dtype)
    for mine, theirs in zip(learn(own, x, gradient), learn(published, x, gradient), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_gradients_are_those_of_finite_differences_twice() -> None:
    torch.manual_seed(0)
    layer = PReLU(3).double()
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_state_and_exported_graph_are_those_of_torch_s_own() -> None:
    own, published = PReLU(3), nn.PReLU(3)
    own.load_state_dict(published.state_dict())
    x = torch.randn(2, 3, 4, 4)
    graphs = []
    for layer in (own, published):
        nodes = torch.export.export(layer, (x,)).graph.nodes
        graphs.append([str(node.target) for node in nodes if node.op == "call_function"])
    assert graphs == [["aten.prelu.default"]] * 2

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusionray.nets.flow import STEP, Mover


def build_wave(side: int) -> torch.Tensor:
    """A picture [1,2,S,S] whose value is its place: x and y in half sides."""
    axis = (torch.arange(side) + 0.5) / side * 2 - 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x, y])[None]


def ask_for(mover: Mover, x: float, y: float) -> None:
    """Let every place be fetched from (x, y) half sides further, whatever is asked."""
    with torch.no_grad():
        mover.flow.bias.copy_(torch.tensor([x, y]) / STEP)


def test_nothing_moves_to_begin_with() -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 32, 32)
    moved, flow = Mover(6, 32)(maps, torch.randn(2, 6, 16, 16))
    assert flow.shape == (2, 2, 32, 32)
    torch.testing.assert_close(moved, maps, rtol=0, atol=1e-5)


def test_a_place_is_fetched_from_where_its_flow_points() -> None:
    mover = Mover(6, 32)
    ask_for(mover, 0.25, 0)  # four pixels from the right
    moved, _ = mover(build_wave(32), torch.zeros(1, 6, 16, 16))
    torch.testing.assert_close(moved[:, 0, :, :28], build_wave(32)[:, 0, :, 4:])
    torch.testing.assert_close(moved[:, 1], build_wave(32)[:, 1])
    # Beyond the crop is its edge.
    torch.testing.assert_close(moved[:, 0, :, 28:], build_wave(32)[:, 0, :, -1:].expand(-1, -1, 4))


def test_a_finer_scale_adds_to_the_flow_of_the_coarser() -> None:
    torch.manual_seed(0)
    mover = Mover(6, 32)
    ask_for(mover, 0.1, -0.2)
    coarser = torch.randn(2, 2, 16, 16)
    _, flow = mover(torch.randn(2, 3, 32, 32), torch.randn(2, 6, 16, 16), coarser)
    wanted = F.interpolate(coarser, scale_factor=2.0, mode="bilinear", align_corners=False)
    torch.testing.assert_close(flow, wanted + torch.tensor([0.1, -0.2])[:, None, None])


def test_a_flow_is_learned_from_what_is_to_be_drawn() -> None:
    torch.manual_seed(0)
    mover = Mover(16, 32)
    optimizer = torch.optim.Adam(mover.parameters(), lr=0.05)
    asking, maps = torch.randn(1, 16, 16, 16), build_wave(32)
    for _ in range(60):
        moved, _ = mover(maps, asking)
        loss = (moved - (maps + 0.1))[..., 4:-4, 4:-4].abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.02

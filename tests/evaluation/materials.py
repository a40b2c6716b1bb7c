"""What a user would bring to an evaluation: networks in a file, frames of a clip."""

from __future__ import annotations

import warnings
from pathlib import Path

import cv2
import torch
from torch import Tensor, nn

from fusionray.data import synthetic
from fusionray.faces.face import Image


class Brightest(nn.Module):
    """Describe a picture by the highest value of each channel."""

    def forward(self, picture: Tensor) -> Tensor:
        """Give [N,3]."""
        return picture.amax(dim=(2, 3))


def save_script(network: nn.Module, path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(network, torch.zeros(1, 3, 8, 8)), str(path))
    return str(path)


def draw_frames(count: int, size: int = 192) -> list[Image]:
    looks = synthetic.neutral_attributes(count)
    looks[:, synthetic.ATTRIBUTE_NAMES.index("yaw")] = torch.linspace(-10, 10, count)
    drawn = synthetic.render(synthetic.sample_identities(1, seed=2).expand(count, -1), looks, size)
    return list((drawn.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).numpy())


def write_pictures(folder: Path, frames: list[Image]) -> Path:
    folder.mkdir()
    for number, frame in enumerate(frames):
        cv2.imwrite(str(folder / f"{number:03d}.png"), cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    return folder

"""A family that only delivers: a network that mixes two pictures, its checkpoint, and what it should make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.recipes.bundle_export import BundleExport, export_pictures
from fusionray.recipes.family import DatasetInfo, RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.recipe import Recipe
from fusionray.types import DecodedRows, PairBatch
from tests.support.tiny_fusion import SIZE


class BlendConfig(RecipeConfig):
    name: Literal["blend"] = "blend"


class Blend(nn.Module):
    """content + share (style - content), share between 0 and 1, through a convolution that changes next to nothing."""

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        nn.init.dirac_(self.convolution.weight)
        # Without rounding torch and ONNX would not differ at all.
        self.convolution.weight.data += 1e-4 * torch.linspace(-1, 1, 81).reshape(3, 3, 3, 3)
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        mixed: Tensor = self.convolution(content + self.share * (style - content))
        return mixed.clamp(-1, 1)


class BlendFamily(RecipeFamily[BlendConfig]):
    """Mix two pictures in equal parts."""

    name = "blend"
    Config = BlendConfig
    task = "faces"
    num_roles = 2
    evaluation = "pictures"

    def collate(self, roles: Sequence[DecodedRows]) -> PairBatch:
        source, target = roles
        return PairBatch.from_rows(source, target)

    def build(self, config: BlendConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]) -> Recipe[Any]:
        raise NotImplementedError

    def dummy_batch(self, config: TrainSettings, count: int) -> PairBatch:
        raise NotImplementedError

    def inference_example(self, recipe: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
        raise NotImplementedError

    def reference(self, pictures: Sequence[Tensor]) -> Tensor:
        content, style = pictures
        return (content + style) / 2

    def load_model(self, checkpoint: str) -> Blend:
        network = Blend()
        load_weights(network, load_tensors(checkpoint, "averages.mixer."), checkpoint)
        return network.eval().requires_grad_(False)

    def export(self, checkpoint: str) -> BundleExport:
        return export_pictures(
            "blend", self.load_model(checkpoint), ("style_of", "content_of"), SIZE, make_inputs=self.pair_crops
        )

    def pair_crops(self, crops: Tensor) -> tuple[Tensor, ...]:
        pictures = crops / 127.5 - 1
        return pictures, pictures.roll(1, 0)


def save_blend(folder: Path, shards: str = "x", share: float = 0.5) -> str:
    """Write the only checkpoint of a run that has learned to mix."""
    config = {
        "run": {"name": "mix"},
        "data": {"shards": shards, "size": SIZE, "template": "arcface_128"},
        "recipe": {"name": "blend"},
    }
    info = CheckpointInfo(config=config, num_people=0, data_digest="d", images_seen=0, seconds=0.0, metrics={})
    writer = CheckpointWriter(str(folder), keep=1)
    writer.begin({f"averages.mixer.{name}": value for name, value in Blend(share).state_dict().items()}, info)
    writer.close()
    return str(folder)

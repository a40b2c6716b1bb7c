"""A second model family in one file: two pictures in, one out, the second in the colours of the first.

No faces, no people, no alignment. What it is for is the platform: nothing outside this file knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.checkpoint.info import read_info
from fusionray.checkpoint.models import load_weights
from fusionray.checkpoint.reader import load_tensors
from fusionray.config import in_unit
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.bundle_export import BundleExport, export_pictures
from fusionray.recipes.family import DatasetInfo, RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.recipes.registry import register
from fusionray.types import Batch, DecodedRows


class ColourTransferConfig(RecipeConfig):
    """Colour-transfer recipe: a target picture in the colours of a source picture."""

    name: Literal["colour_transfer"] = Field("colour_transfer", description="Selects the colour-transfer recipe.")
    width: int = Field(8, ge=1, description="Hidden units.", json_schema_extra=in_unit("units"))
    jitter: float = Field(
        0.1, ge=0, description="Largest random change of brightness.", json_schema_extra=in_unit("share")
    )
    optimizer: OptimizerConfig = OptimizerConfig(base_lr=1e-2)


@dataclass(frozen=True)
class PicturePairs(Batch):
    """Pairs of pictures [N,3,S,S]: uint8 as they are read, float in [-1,1] as they are learned from."""

    source: Tensor
    target: Tensor


def measure_colours(picture_N3SS: Tensor) -> tuple[Tensor, Tensor]:
    """Measure mean and deviation of each colour, [N,3,1,1] each."""
    return picture_N3SS.mean(dim=(2, 3), keepdim=True), picture_N3SS.std(dim=(2, 3), keepdim=True) + 1e-3


def transfer_colours(source: Tensor, target: Tensor) -> Tensor:
    """Give a target the mean and the deviation of a source's colours: what the network is to learn."""
    (source_mean, source_deviation), (mean, deviation) = measure_colours(source), measure_colours(target)
    return (target - mean) / deviation * source_deviation + source_mean


class Painter(nn.Module):
    """Recolour a target by a scale and a shift of each colour, read off both pictures' colours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 6))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map two pictures float32 [N,3,S,S] in [-1,1] to one."""
        seen = torch.cat([part.flatten(1) for picture in (source, target) for part in measure_colours(picture)], dim=1)
        scale_N3, shift_N3 = self.layers(seen).chunk(2, dim=1)
        return target * (1 + scale_N3[:, :, None, None]) + shift_N3[:, :, None, None]


class ColourTransferRecipe:
    """Learn the transfer by its result."""

    ema_names = frozenset({"painter"})

    def __init__(self, config: ColourTransferConfig) -> None:
        self.config = config
        self.networks: Mapping[str, nn.Module] = {"painter": Painter(config.width)}
        self.frozen: Mapping[str, nn.Module] = {}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"painter": config.optimizer}
        self.phases = (Phase("paint", "painter", self.paint),)

    def prepare(self, batch: PicturePairs) -> PicturePairs:
        """Change the brightness of the sources, so that resuming needs the same random numbers."""
        change = (torch.rand(len(batch), 1, 1, 1, device=batch.source.device) * 2 - 1) * self.config.jitter
        return PicturePairs(to_float(batch.source) + change, to_float(batch.target))

    def paint(self, step: PhaseInput[PicturePairs]) -> Losses:
        """Compare with the exact transfer."""
        source, target = step.batch.source, step.batch.target
        loss = (step.networks["painter"](source, target) - transfer_colours(source, target)).abs().mean()
        return Losses(loss, {"colours": loss})

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing."""

    @torch.no_grad()
    def preview(self, networks: Mapping[str, nn.Module], batch: PicturePairs) -> Tensor:
        """Draw rows of source, target and result."""
        source, target = to_float(batch.source), to_float(batch.target)
        return torch.stack([to_uint8(each) for each in (source, target, networks["painter"](source, target))], dim=1)

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: PicturePairs) -> dict[str, Tensor]:
        """Measure the distance to the exact transfer."""
        source, target = to_float(batch.source), to_float(batch.target)
        error = networks["painter"](source, target) - transfer_colours(source, target)
        return {"colour_error": error.abs().mean(dim=(1, 2, 3))}

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Average the distances."""
        return {f"validation_{name}": float(column.mean()) for name, column in columns.items()}


class ColourTransferFamily(RecipeFamily[ColourTransferConfig]):
    """The toy, as the platform sees it."""

    name = "colour_transfer"
    Config = ColourTransferConfig
    task = "pictures"
    num_roles = 2
    evaluation = "pictures"

    def collate(self, roles: Sequence[DecodedRows]) -> PicturePairs:
        """Pair sources and targets."""
        source, target = roles
        return PicturePairs(source.image, target.image)

    def build(
        self, config: ColourTransferConfig, dataset: DatasetInfo, dependencies: Mapping[str, Any]
    ) -> ColourTransferRecipe:
        """Build the painter; it takes pictures of any size."""
        return ColourTransferRecipe(config)

    def describe(self, recipe: ColourTransferRecipe) -> dict[str, Any]:
        """Say how wide the painter is."""
        return {"painter_width": recipe.config.width}

    def dummy_batch(self, config: TrainSettings, count: int) -> PicturePairs:
        """Draw noise."""
        generator = torch.Generator().manual_seed(config.run.seed)
        shape = (2, count, 3, config.data.size, config.data.size)
        return PicturePairs(*torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))

    def inference_example(self, recipe: ColourTransferRecipe) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Recolour one picture."""
        return recipe.networks["painter"], (torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8))

    def load_model(self, checkpoint: str) -> Painter:
        """Load the averaged painter."""
        painter = Painter(read_info(checkpoint).metadata["painter_width"])
        load_weights(painter, load_tensors(checkpoint, "averages.painter."), checkpoint)
        return painter.eval().requires_grad_(False)

    def reference(self, pictures: Sequence[Tensor]) -> Tensor:
        """Transfer the colours exactly."""
        source, target = pictures
        return transfer_colours(source, target)

    def export(self, checkpoint: str) -> BundleExport:
        """Give the painter for pictures of the size that it learned from."""
        size: int = read_info(checkpoint).config["data"]["size"]
        return export_pictures(
            self.name, self.load_model(checkpoint), ("source", "target"), size, make_inputs=pair_neighbours
        )


def pair_neighbours(crops: Tensor) -> tuple[Tensor, ...]:
    """Take the colours of each crop's neighbour."""
    pictures = to_float(crops)
    return pictures.roll(1, 0), pictures


register(ColourTransferFamily())

"""Face-parsing recipe: train a parser of heads on synthetic people, whose parts are known at every pixel.

The crops of the shards are the pictures; the renderer draws the parts of the same people in the same views. Both are
then changed until only the places of the parts are left to learn from (`recipes.face_parsing.part_randomisation`).

Shape suffixes: N batch, P parts, S side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.data import synthetic
from fusionray.nets.face_parser import FaceParser, FaceParserConfig
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.affine import build_grid, unit_to_signed
from fusionray.recipes.face_parsing.part_randomisation import PartRandomisation, RandomisationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.types import Batch

FACE, EARS, NECK, CLOTHES, GLASSES = map(synthetic.PARTS.index, ("face", "ears", "neck", "clothes", "glasses"))
SKIN = (FACE, EARS, NECK)
# Small parts: without more weight they are given up for their neighbours.
WEIGHTS = {EARS: 4.0, NECK: 2.0, GLASSES: 2.0}
# Of example pictures: one colour for each part, RGB in [-1,1].
SHOWN_COLOURS = (
    (-1, -1, -1),
    (-0.2, -0.6, -0.9),
    (1, 0.2, -0.2),
    (-0.5, -0.5, 0.6),
    (1, 0.7, 0.4),
    (1, -0.4, -0.4),
    (-1, 1, -1),
)
PREVIEWED = 8


class FaceParsingConfig(RecipeConfig):
    """Face-parsing recipe: a network that tells face, ears, neck, hair, glasses, clothes and background apart."""

    name: Literal["face_parsing"] = Field("face_parsing", description="Selects the face-parsing recipe.")
    parser: FaceParserConfig = FaceParserConfig()
    randomisation: RandomisationConfig = RandomisationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01)


@dataclass(frozen=True)
class RenderedHeads(Batch):
    """Crops `image` uint8 [N,3,S,S] of synthetic people, and what renders them, all float32.

    `identity` and `attributes` as the synthetic world has them; `view` [N,2,3] from crop to picture, unit squares.
    """

    image: Tensor
    identity: Tensor
    attributes: Tensor
    view: Tensor


@dataclass(frozen=True)
class HeadsWithParts(Batch):
    """Prepared batch: `picture` [N,3,S,S] in [-1,1], `parts` [N,P,S,S]; `known` [N,1,S,S]: 1 inside of the picture."""

    picture: Tensor
    parts: Tensor
    known: Tensor


class FaceParsingRecipe:
    """Train a parser to say what each pixel of a head shows."""

    ema_names = frozenset({"parser"})

    def __init__(self, config: FaceParsingConfig) -> None:
        self.config = config
        self.randomisation = PartRandomisation(config.randomisation, SKIN, CLOTHES)
        self.networks: Mapping[str, nn.Module] = {"parser": FaceParser(config.parser, len(synthetic.PARTS))}
        self.frozen: Mapping[str, nn.Module] = {"randomisation": self.randomisation}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"parser": config.optimizer}
        self.phases = (Phase("parse", "parser", self.parse),)

    def prepare(self, batch: RenderedHeads) -> HeadsWithParts:
        """Render the parts of the crops, and change both."""
        return HeadsWithParts(*self.randomisation(to_float(batch.image), *render_truth(batch)))

    def parse(self, step: PhaseInput[HeadsWithParts]) -> Losses:
        """Cross-entropy with the share of each part in each pixel, where the crop shows the picture.

        Small parts weigh more.
        """
        scores = step.networks["parser"](step.batch.picture).float()
        loss_NPSS = step.batch.parts * scores.log_softmax(dim=1)
        loss_N1SS = -sum(WEIGHTS.get(part, 1.0) * loss_NSS for part, loss_NSS in enumerate(loss_NPSS.unbind(1)))[
            :, None
        ]
        loss = (loss_N1SS * step.batch.known).sum() / step.batch.known.sum().clamp_min(1.0)
        return Losses(loss, {"parsing": loss})

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing: there are no adaptive modules."""

    @torch.no_grad()
    def preview(self, networks: Mapping[str, nn.Module], batch: RenderedHeads) -> Tensor:
        """Return rows of crop, changed crop, its true parts and those that the parser sees: uint8 [R,4,3,S,S]."""
        some = batch.head(PREVIEWED)
        prepared = self.prepare(some)
        seen = networks["parser"](prepared.picture).softmax(dim=1)
        columns = [to_float(some.image), prepared.picture, show_parts(prepared.parts), show_parts(seen)]
        return to_uint8(torch.stack(columns, dim=1))

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: RenderedHeads) -> dict[str, Tensor]:
        """Count the pixels [N] of each part, and of all skin, that truth and parser share, and that either has."""
        parts, known = render_truth(batch)
        known_NSS = known[:, 0] > 0.5
        wanted, found = (shares.argmax(dim=1) for shares in (parts, networks["parser"](to_float(batch.image)).float()))
        columns: dict[str, Tensor] = {}
        for name, numbers in {**{part: (number,) for number, part in enumerate(synthetic.PARTS)}, "skin": SKIN}.items():
            here, there = (sum(shown == number for number in numbers) > 0 for shown in (wanted, found))
            columns[f"{name}_both"] = (here & there & known_NSS).sum((1, 2)).float()
            columns[f"{name}_either"] = ((here | there) & known_NSS).sum((1, 2)).float()
        return columns

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the intersection over union of each part and of all skin, over all pixels; 1 of what is nowhere."""
        names = [name.removesuffix("_both") for name in columns if name.endswith("_both")]
        found = {name: (columns[f"{name}_both"].sum(), columns[f"{name}_either"].sum()) for name in names}
        return {
            f"validation_iou_{name}": float(both / either) if either else 1.0 for name, (both, either) in found.items()
        }


@torch.no_grad()
def render_truth(batch: RenderedHeads) -> tuple[Tensor, Tensor]:
    """Return the parts [N,P,S,S] of crops, and where [N,1,S,S] the crop lies inside of its picture."""
    size = batch.image.shape[-1]
    parts = synthetic.render_parts(batch.identity, batch.attributes, size, batch.view)
    inside = (build_grid(unit_to_signed(batch.view), size).abs() <= 1).all(dim=-1)
    return parts, inside[:, None].float()


def show_parts(shares_NPSS: Tensor) -> Tensor:
    """Draw parts in colours, [N,3,S,S] in [-1,1]."""
    colours = torch.tensor(SHOWN_COLOURS, dtype=torch.float32, device=shares_NPSS.device)
    return torch.einsum("npij,pc->ncij", shares_NPSS, colours)

"""A synthetic world in a moment: rendered people as shards with every split, aligned by their exact points; and models.

The models learned nothing: what is measured of them is the measuring.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.crop import FaceCropper
from fusionray.data.prepare.synthetic_input import parse_synthetic
from fusionray.data.shards import Manifest, Split, write_manifest, write_shard
from fusionray.faces.align import load_template
from fusionray.faces.face import Face, Image
from fusionray.nets.fusion import FusionNetwork
from fusionray.nets.generator import GeneratorConfig
from fusionray.nets.identity import IdentityEncoder
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.attributes import AttributesRecipe, AttributesRecipeConfig
from fusionray.training.config import DataConfig, RunConfig, TrainConfig
from tests.support.tiny_fusion import ENCODER, SIZE, build_config
from tests.support.tiny_manifest import build_manifest

TEMPLATE = "arcface_128"
PEOPLE: dict[Split, int] = {"train": 2, "validation": 4, "test": 6}


class NoDetector:
    """Stand where a detector is asked for: the points are exact."""

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:
        """Refuse to look."""
        raise AssertionError("the points of this world are known")


def write_world(folder: Path, *, pictures: int = 4, photographs: bool = False, size: int = SIZE) -> Manifest:
    """Write PEOPLE with `pictures` each, a file a split; as photographs they come without their parameters."""
    source = parse_synthetic(f"synthetic://people={sum(PEOPLE.values())},images={pictures},size=96,seed=7")
    kept = {"landmarks": "exact", "image_format": "png", "min_sharpness": 0, "min_face_pixels": 1}
    config = PrepareConfig(input="x", output="x", size=size, **kept)
    cropper = FaceCropper(config, load_template(TEMPLATE), NoDetector())
    # The pictures of a person lie together, and so do the people of a split.
    rows = [cropper.build(picture) for picture in source.read(source.list_entries().entries)]  # type: ignore[arg-type]
    if photographs:
        hidden = ("identity_parameters", "attribute_parameters", "view")
        rows = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    infos = []
    for split, people in PEOPLE.items():
        chosen, rows = rows[: people * pictures], rows[people * pictures :]
        infos.append(write_shard(str(folder), f"shard-{split}.parquet", split, chosen))
    manifest = build_manifest(infos, size, template=TEMPLATE, synthetic=not photographs)
    write_manifest(str(folder), manifest)
    return manifest


def save_fusion(folder: Path, *, seed: int = 5, generator: GeneratorConfig | None = None, shards: str = "x") -> None:
    """Write the only checkpoint of a fusion run, its encoder another one than `save_encoder` makes."""
    torch.manual_seed(seed)
    recipe = build_config(**({"generator": generator} if generator else {}))
    data = DataConfig(shards=shards, size=recipe.generator.size)
    config = TrainConfig(run=RunConfig(name="tiny"), data=data, recipe=recipe)
    # Batch statistics of a network that learned nothing would map every face to one point.
    encoder, network = IdentityEncoder(ENCODER), FusionNetwork(recipe.generator, crop_to_arcface_affine(TEMPLATE))
    tensors = {f"averages.generator.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"frozen.identity.{name}": value for name, value in encoder.state_dict().items()}
    save(folder, config, tensors, identity_encoder=ENCODER.model_dump(mode="json"))


def save_reader(folder: Path) -> None:
    """Write the only checkpoint of a run that learned to read attributes."""
    torch.manual_seed(6)
    recipe = AttributesRecipe(AttributesRecipeConfig(encoder=ENCODER), face_view_23=crop_to_arcface_affine(TEMPLATE))
    config = TrainConfig(data=DataConfig(shards="x", size=SIZE), recipe=recipe.config)
    tensors = {f"averages.reader.{name}": value for name, value in recipe.networks["reader"].state_dict().items()}
    save(folder, config, tensors, attribute_reader=recipe.reader_config.model_dump(mode="json"))


def save(folder: Path, config: TrainConfig, tensors: dict[str, torch.Tensor], **metadata: object) -> None:
    info = CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=4,
        data_digest="d",
        images_seen=0,
        seconds=0.0,
        metrics={},
        metadata=metadata,
    )
    writer = CheckpointWriter(str(folder), keep=1)
    writer.begin(tensors, info)
    writer.close()

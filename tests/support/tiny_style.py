"""Style transfer at its smallest: recipes, checkpoints and bundles made in this process, and shards of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionray.bundle.bundle import Bundle
from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.config import validate
from fusionray.data.shards import Manifest, ShardInfo, Split, build_picture_row, write_manifest, write_shard
from fusionray.data.synthetic.pictures import draw_contents, draw_style
from fusionray.export.export import ExportConfig, export
from fusionray.faces.image_files.decode import encode_image
from fusionray.nets.picture_encoder import PictureEncoder, PictureEncoderConfig
from fusionray.recipes.registry import build_recipe
from fusionray.recipes.style_transfer.perceptual import PerceptualState
from fusionray.recipes.style_transfer.recipe import StylePairs
from fusionray.training.config import TrainConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import state_tensors
from tests.support.tiny_manifest import build_manifest

SIZE = 32
ENCODER = {"channels": [6, 8, 10, 12], "embedding_length": 8}
NETWORK = {"full_channels": 4, "half_channels": 8, "quarter_channels": 12, "code_length": 8}


def build_config(recipe: dict[str, Any] | None = None, **sections: Any) -> TrainConfig:
    """Build the configuration of a run of style transfer, or of another recipe."""
    tree: dict[str, Any] = {
        "run": {"name": "tiny"},
        "data": {"shards": "none", "size": SIZE},
        "recipe": {"name": "style_transfer", "network": NETWORK, "optimizer": {"base_lr": 1e-2}}
        if recipe is None
        else recipe,
        "engine": {
            "global_batch": 4,
            "precision": "fp32",
            "ema_half_life_images": 20,
            "schedule": {"warmup_images": 0},
        },
        **sections,
    }
    return validate(TrainConfig, tree, "tests")


def build_encoder_config() -> TrainConfig:
    """Build the configuration of a run of the picture encoder."""
    return build_config({"name": "picture_encoder", "encoder": ENCODER, "view": 16})


def draw_perceptual(seed: int = 0) -> PerceptualState:
    """Draw a picture encoder that has learned nothing: also its features differ between styles."""
    torch.manual_seed(seed)
    encoder = PictureEncoder(PictureEncoderConfig.model_validate(ENCODER))
    return PerceptualState("encoder", encoder.config.model_dump(mode="json"), encoder.state_dict())


def draw_pairs(count: int, size: int = SIZE, seed: int = 0) -> StylePairs:
    """Draw synthetic styles and contents."""
    styles, contents = (
        [draw_style(seed, number, size) for number in range(count)],
        draw_contents(seed, range(count), size),
    )
    return StylePairs(*(torch.from_numpy(np.stack(part)).permute(0, 3, 1, 2) for part in (styles, contents)))


def start_engine(config: TrainConfig, batch: int = 4) -> Engine:
    """Start a run of any of the two recipes, without Ray, that takes `batch` rows a step."""
    dependencies = {"recipe.perceptual": draw_perceptual()}
    recipe = build_recipe(config, config.dataset_info(num_people=0, synthetic=False), dependencies)
    settings = config.engine.model_copy(update={"global_batch": batch})
    return Engine(recipe, settings, total_images=4000, device=torch.device("cpu"))


def write_checkpoint(engine: Engine, config: TrainConfig, folder: Path) -> str:
    """Write the state of an engine as a run folder."""
    writer = CheckpointWriter(str(folder), keep=1)
    info = CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=0,
        data_digest="none",
        images_seen=engine.images_seen,
        seconds=0.0,
        metrics={},
        metadata=config.family.describe(engine.recipe),
    )
    writer.begin(state_tensors(engine), info)
    writer.close()
    return str(folder)


def write_style_bundle(folder: Path) -> Bundle:
    """Export a network that has taken a step."""
    config = build_config()
    engine = start_engine(config)
    engine.step(draw_pairs(4))
    run = write_checkpoint(engine, config, folder / "run")
    return export(ExportConfig(checkpoint=run, output=str(folder / "bundle")))


def write_picture_shards(folder: Path, count: int, size: int = SIZE) -> Manifest:
    """Write `count` contents and as many styles to each split."""
    shards: list[ShardInfo] = []
    names: tuple[Split, ...] = ("train", "validation", "test")
    for seed, split in enumerate(names):
        pictures = {f"contents/{seed}-{n:03d}": p for n, p in enumerate(draw_contents(seed, range(count), size))}
        pictures |= {f"styles/{seed}-{n:03d}": draw_style(seed, n, size) for n in range(count)}
        rows = [build_picture_row(encode_image(p, "png"), name, size, size) for name, p in pictures.items()]
        shards.append(write_shard(str(folder), f"shard-{split}-00000.parquet", split, rows))
    manifest = build_manifest(shards, size, task="pictures", template="")
    write_manifest(str(folder), manifest)
    return manifest

"""Write a bundle as a model for the FaceFusion program: NAME.onnx, NAME.hash, and NAME.json for its model table.

The embeddings of FaceFusion's own encoder do not fit a generator that learned from another one. So encoder and
generator are merged into one graph that takes the source as a picture, aligned in one of the two ways that FaceFusion
aligns one. Both pictures and the output are RGB in 0..1. The graph applies the mask, because FaceFusion uses only the
first output.

Source: facefusion/facefusion, facefusion/processors/modules/face_swapper/core.py (prepare_source_frame,
prepare_crop_frame, normalize_crop_frame) and facefusion/hash_helper.py (CRC-32 in eight hexadecimal digits).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import BundleInvalid, ParityFailed
from fusionray.export.merge_graphs import merge_models
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engine import open_engine
from fusionray.runtime.providers import CPU
from fusionray.runtime.signature import fixed_batch
from fusionray.runtime.source_encoding import open_source_encoder

# FaceFusion's types of models whose source is a picture, by template and size of the source crop.
SOURCE_TYPES = {("arcface_112", 112): "blendswap", ("ffhq_512", 256): "uniface"}
# FaceFusion's names of the templates.
TEMPLATES = {"arcface_112": "arcface_112_v2"} | {
    name: name for name in ("arcface_112_v1", "arcface_128", "ffhq_512", "mtcnn_512")
}
# Of 255 levels: both results are rounded, and the order of arithmetic differs.
TOLERANCE_LEVELS = 2
TRIALS = 4


@dataclass(frozen=True)
class FaceFusionModel:
    """Paths of the three files; `entry` is JSON that the user copies into FaceFusion's model table."""

    model: Path
    hash: Path
    entry: Path


def write_facefusion(bundle: Bundle, folder: str | Path) -> FaceFusionModel:
    """Write a bundle as a model for FaceFusion, and check that both give the same picture.

    Raises: BundleInvalid if FaceFusion cannot align pictures for its models; ParityFailed.
    """
    described = bundle.description
    model_type, template = choose_type(bundle), TEMPLATES.get(described.template)
    if template is None:
        raise BundleInvalid(
            f"{bundle.folder}: its crops are cut at {described.template}, which FaceFusion does not have (it has "
            f"{', '.join(sorted(TEMPLATES.values()))})"
        )
    data = merge_models(bundle).SerializeToString()
    target = Path(folder).expanduser().absolute()
    target.mkdir(parents=True, exist_ok=True)
    paths = FaceFusionModel(*(target / f"{described.name}.{suffix}" for suffix in ("onnx", "hash", "json")))
    unchecked = target / f".{described.name}.part.onnx"
    try:
        unchecked.write_bytes(data)
        check_parity(bundle, unchecked)
        unchecked.rename(paths.model)
    finally:
        unchecked.unlink(missing_ok=True)
    paths.hash.write_text(hash_content(data), encoding="ascii")
    entry = build_table_entry(bundle, model_type, template)
    paths.entry.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    return paths


def choose_type(bundle: Bundle) -> str:
    """Choose FaceFusion's type of models, which determines how it aligns source pictures.

    Raises: BundleInvalid if no type fits the bundle, or its models have a fixed batch of several faces.
    """
    bundle.require_task(FACE_FUSION)
    described = bundle.description
    size = bundle.source_shape[-1] if described.source_is_picture else 112
    model_type = SOURCE_TYPES.get((described.identity_template, size))
    if model_type is None:
        known = ", ".join(f"{name} at {side} px" for name, side in SOURCE_TYPES)
        raise BundleInvalid(
            f"{bundle.folder}: its sources are cut at {described.identity_template}, {size} px, and FaceFusion cuts "
            f"them at {known} only"
        )
    for file in described.tensors:
        batch = fixed_batch(bundle, file)
        if batch not in (None, 1):
            raise BundleInvalid(f"{bundle.folder}/{file}: takes {batch} faces at a time, and FaceFusion gives it one")
    return model_type


def hash_content(data: bytes) -> str:
    """Return the content of FaceFusion's hash file of a model: the CRC-32 in eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def build_table_entry(bundle: Bundle, model_type: str, template: str) -> dict[str, Any]:
    """Build the entry of FaceFusion's model table, with instructions where to copy it."""
    described, name = bundle.description, bundle.description.name
    size = described.size
    boosts = [side for side in (size, *range(256, 1025, 128)) if side >= size and side % size == 0]
    return {
        "how": (
            f"Copy {name}.onnx and {name}.hash into .assets/models; add `entry` as '{name}' to create_static_model_set "
            "of facefusion/processors/modules/face_swapper/core.py, `hashes` and `sources` naming the two files, and "
            "`pixel_boost` to face_swapper_set of choices.py in the same folder."
        ),
        "model": name,
        "entry": {
            "__metadata__": {"vendor": "fusionray", "license": described.licence},
            "type": model_type,
            "template": template,
            "size": [size, size],
            "mean": [0.0, 0.0, 0.0],
            "standard_deviation": [1.0, 1.0, 1.0],
        },
        "pixel_boost": [f"{side}x{side}" for side in dict.fromkeys(boosts)],
    }


def check_parity(bundle: Bundle, model: Path) -> None:
    """Compare the merged model with the bundle on random crops.

    Raises: ParityFailed.
    """
    settings = RuntimeConfig(providers=(CPU,))
    random = np.random.default_rng(0)
    encoder, fuser = open_source_encoder(bundle, settings), CropFuser(bundle, settings)
    engine = open_engine(model, settings)
    largest = 0
    for _ in range(TRIALS):
        face, crop = (
            random.integers(0, 256, (1, side, side, 3), dtype=np.uint8) for side in (encoder.size, fuser.size)
        )
        (found,) = engine.run(["output"], {"source": to_unit(face), "target": to_unit(crop)})
        fused = fuser.fuse(encoder.encode_crops(face), crop)
        wanted = crop + fused.masks[..., None] * (fused.crops.astype(np.float32) - crop)
        pixels = np.clip(found, 0.0, 1.0).transpose(0, 2, 3, 1) * 255.0
        largest = max(largest, int(np.ceil(np.abs(pixels - wanted).max())))
    if largest > TOLERANCE_LEVELS:
        raise ParityFailed(
            f"{bundle.folder}: the merged model and the bundle differ by {largest} of 255 levels, more than "
            f"{TOLERANCE_LEVELS}; nothing was written"
        )


def to_unit(crops_NHWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert uint8 NHWC RGB crops to FaceFusion's inputs: float32 NCHW in 0..1."""
    return np.ascontiguousarray(crops_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255.0))

"""Write a bundle as a model for the FaceFusion program: NAME.onnx, NAME.hash, and NAME.json for its model table.

The embeddings of FaceFusion's own encoder do not fit a generator that learned from another one. So encoder and
generator are merged into one graph that takes the source as a picture, aligned in one of the two ways that FaceFusion
aligns one. Both pictures and the output are RGB in 0..1. The graph applies the mask, because FaceFusion uses only the
first output.

FaceFusion pastes the whole crop, the surroundings of the face included. So the graph takes a crop of 512 px or more
whatever the generator's size, and applies the mask at the size of the crop. Pixel boost runs a model on every k-th
pixel of a larger crop; at the generator's own size, such pictures alias, so the faces and masks of neighbouring pixels
would differ.

Source: facefusion/facefusion, in facefusion/processors/modules/face_swapper core.py (prepare_source_frame, swap_face,
prepare_crop_frame, normalize_crop_frame) and choices.py (the sizes; the first one is the default), in
facefusion/processors/pixel_boost.py, and in facefusion/hash_helper.py (CRC-32 in eight hexadecimal digits).
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import BundleInvalid, ParityFailed
from fusionray.export.merge_graphs import merge_models
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.engines.signature import fixed_batch
from fusionray.runtime.source_encoding import open_source_encoder

# FaceFusion's types of models whose source is a picture, by template and size of the source crop.
SOURCE_TYPES = {("arcface_112", 112): "blendswap", ("ffhq_512", 256): "uniface"}
# FaceFusion's names of the templates.
TEMPLATES = {"arcface_112": "arcface_112_v2"} | {
    name: name for name in ("arcface_112_v1", "arcface_128", "ffhq_512", "mtcnn_512")
}
# The sizes of crops in FaceFusion's choices of pixel boost.
LISTED_SIZES = (128, 256, 384, 512, 768, 1024)
# A face in a picture of 1080 lines seldom has more pixels.
SMALLEST_CROP = 512
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
    data = merge_models(bundle, choose_crop_size(described.size)).SerializeToString()
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
    # FaceFusion compares the whole content of the file, so a newline at its end would make the hash wrong.
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


def choose_crop_size(size: int) -> int:
    """Choose the side of the target crop for a generator of `size`: the first multiple of at least 512 px.

    Sizes that FaceFusion lists come first, because its users know them.
    """
    listed = [side for side in LISTED_SIZES if side >= SMALLEST_CROP and side % size == 0]
    return listed[0] if listed else math.ceil(SMALLEST_CROP / size) * size


def build_table_entry(bundle: Bundle, model_type: str, template: str) -> dict[str, Any]:
    """Build the entry of FaceFusion's model table, with instructions where to copy it."""
    described, name = bundle.description, bundle.description.name
    size = choose_crop_size(described.size)
    boosts = [side for side in LISTED_SIZES if side % size == 0] or [size]
    return {
        "how": list_steps(name),
        "model": name,
        "entry": {
            "__metadata__": {"vendor": "fusionray", "license": described.licence},
            "type": model_type,
            "template": template,
            "size": [size, size],
            "mean": [0.0, 0.0, 0.0],
            "standard_deviation": [1.0, 1.0, 1.0],
        },
        "pixel_boost": [f"{side}x{side}" for side in boosts],
    }


def list_steps(name: str) -> list[str]:
    """Return the steps by which a user adds the model to FaceFusion."""
    folder = "facefusion/processors/modules/face_swapper"

    def locate(kind: str, suffix: str) -> str:
        return f"'{kind}': {{'face_swapper': {{'path': resolve_relative_path('../.assets/models/{name}.{suffix}')}}}}"

    return [
        f"Copy {name}.onnx and {name}.hash into .assets/models. Do not edit {name}.hash: if a newline follows its "
        f"digits, FaceFusion takes {name}.onnx for damaged and deletes it.",
        f"In {folder}/types.py, add '{name}' to the names in FaceSwapperModel; the command line refuses other names.",
        f"In {folder}/core.py, add '{name}' with `entry` to the table in create_static_model_set, and to that entry "
        f"{locate('hashes', 'hash')} and {locate('sources', 'onnx')}.",
        f"In {folder}/choices.py, add '{name}' with `pixel_boost` to face_swapper_set; its first size is the default.",
    ]


def check_parity(bundle: Bundle, model: Path) -> None:
    """Compare the merged model with the bundle on random crops, each of whose pixels is enlarged to a square.

    Raises: ParityFailed.
    """
    settings = RuntimeConfig(providers=(CPU,))
    random = np.random.default_rng(0)
    encoder, fuser = open_source_encoder(bundle, settings), CropFuser(bundle, settings)
    engine = open_engine(model, settings)
    size = choose_crop_size(fuser.size)
    factor = size // fuser.size
    largest = 0
    for _ in range(TRIALS):
        face, crop = (
            random.integers(0, 256, (1, side, side, 3), dtype=np.uint8) for side in (encoder.size, fuser.size)
        )
        enlarged = crop.repeat(factor, axis=1).repeat(factor, axis=2)
        (found,) = engine.run(["output"], {"source": to_unit(face), "target": to_unit(enlarged)})
        fused = fuser.fuse(encoder.encode_crops(face), crop)
        colour = cv2.resize(fused.crops[0], (size, size), interpolation=cv2.INTER_CUBIC)
        mask = cv2.resize(fused.masks[0], (size, size), interpolation=cv2.INTER_LINEAR)
        wanted = enlarged[0] + mask[..., None] * (colour.astype(np.float32) - enlarged[0])
        pixels = np.clip(found[0], 0.0, 1.0).transpose(1, 2, 0) * 255.0
        largest = max(largest, int(np.ceil(np.abs(pixels - wanted).max())))
    if largest > TOLERANCE_LEVELS:
        raise ParityFailed(
            f"{bundle.folder}: the merged model and the bundle differ by {largest} of 255 levels, more than "
            f"{TOLERANCE_LEVELS}; nothing was written"
        )


def to_unit(crops_NHWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert uint8 NHWC RGB crops to FaceFusion's inputs: float32 NCHW in 0..1."""
    return np.ascontiguousarray(crops_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255.0))

"""A bundle as a model that the FaceFusion program can run: NAME.onnx, NAME.hash and what its model table has to say.

Its embedder is not ours, and what it computes means nothing to a generator that learned from another encoder. So the
encoder goes into the file: the model takes the source as a picture, in one of the two ways that the program cuts one,
and whatever the bundle does between source and generator happens inside. Both pictures and the result are RGB in 0..1,
and the mask is applied, since the program looks at the first output only.

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
from fusionray.export.merge_graphs import join_models
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engine import open_engine
from fusionray.runtime.session import CPU
from fusionray.runtime.signature import fixed_batch
from fusionray.runtime.source_encoding import open_source_encoder

# How the program cuts a source that is a picture, by the type of a model: template, as it is called here, and size.
SOURCE_TYPES = {("arcface_112", 112): "blendswap", ("ffhq_512", 256): "uniface"}
# What it calls the templates.
TEMPLATES = {"arcface_112": "arcface_112_v2"} | {
    name: name for name in ("arcface_112_v1", "arcface_128", "ffhq_512", "mtcnn_512")
}
# Of 255: rounding of the one and of the other, and what arithmetic in another order makes of it.
TOLERANCE_LEVELS = 2
TRIALS = 4


@dataclass(frozen=True)
class FaceFusionModel:
    """The three files: `entry` is JSON for the reader to carry over into the program's model table."""

    model: Path
    hash: Path
    entry: Path


def write_facefusion(bundle: Bundle, folder: str | Path) -> FaceFusionModel:
    """Write a bundle as a model of the FaceFusion program, and check that it computes what the bundle does.

    Raises: BundleInvalid if the program could not feed it; ParityFailed.
    """
    described = bundle.description
    kind, template = choose_type(bundle), TEMPLATES.get(described.template)
    if template is None:
        raise BundleInvalid(
            f"{bundle.folder}: its crops are cut at {described.template}, which FaceFusion does not know (it has "
            f"{', '.join(sorted(TEMPLATES.values()))})"
        )
    data = join_models(bundle).SerializeToString()
    target = Path(folder).expanduser().absolute()
    target.mkdir(parents=True, exist_ok=True)
    paths = FaceFusionModel(*(target / f"{described.name}.{suffix}" for suffix in ("onnx", "hash", "json")))
    trial = target / f".{described.name}.part.onnx"
    try:
        trial.write_bytes(data)
        check_parity(bundle, trial)
        trial.rename(paths.model)
    finally:
        trial.unlink(missing_ok=True)
    paths.hash.write_text(hash_content(data), encoding="ascii")
    entry = describe_entry(bundle, kind, template)
    paths.entry.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    return paths


def choose_type(bundle: Bundle) -> str:
    """Choose the type of model for which the program cuts sources as this bundle needs them.

    Raises: BundleInvalid if there is none, or the models take no single face.
    """
    bundle.require_task(FACE_FUSION)
    described = bundle.description
    size = bundle.source_shape[-1] if described.source_is_picture else 112
    kind = SOURCE_TYPES.get((described.identity_template, size))
    if kind is None:
        known = ", ".join(f"{name} at {side} px" for name, side in SOURCE_TYPES)
        raise BundleInvalid(
            f"{bundle.folder}: its sources are cut at {described.identity_template}, {size} px, and FaceFusion cuts "
            f"them at {known} only"
        )
    for file in described.tensors:
        batch = fixed_batch(bundle, file)
        if batch not in (None, 1):
            raise BundleInvalid(f"{bundle.folder}/{file}: takes {batch} faces at a time, and FaceFusion gives it one")
    return kind


def hash_content(data: bytes) -> str:
    """Compute the content of the hash file that the program expects next to a model."""
    return f"{zlib.crc32(data):08x}"


def describe_entry(bundle: Bundle, kind: str, template: str) -> dict[str, Any]:
    """Say what the program's model table has to hold, and where else its name belongs."""
    described, name = bundle.description, bundle.description.name
    size = described.size
    boosts = [side for side in (size, *range(256, 1025, 128)) if side >= size and side % size == 0]
    return {
        "how": (
            f"Copy {name}.onnx and {name}.hash into .assets/models; add `entry` as '{name}' to create_static_model_set "
            "of facefusion/processors/modules/face_swapper/core.py, `hashes` and `sources` naming the two files, and "
            "`pixel_boost` to face_swapper_set of choices.py beside it."
        ),
        "model": name,
        "entry": {
            "__metadata__": {"vendor": "fusionray", "license": described.licence},
            "type": kind,
            "template": template,
            "size": [size, size],
            "mean": [0.0, 0.0, 0.0],
            "standard_deviation": [1.0, 1.0, 1.0],
        },
        "pixel_boost": [f"{side}x{side}" for side in dict.fromkeys(boosts)],
    }


def check_parity(bundle: Bundle, model: Path) -> None:
    """Compare the model with what the bundle itself makes of the same crops.

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
            f"{bundle.folder}: as one model it differs by {largest} of 255 from the bundle, more than "
            f"{TOLERANCE_LEVELS}; nothing was written"
        )


def to_unit(crops_NHWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn RGB crops into what the program feeds: NCHW in 0..1."""
    return np.ascontiguousarray(crops_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255.0))

"""Inputs of the benchmark: a bundle, pictures of synthetic people, and bodies of requests."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fusionray import __version__
from fusionray.benchmarks.setup import TrainBenchConfig, build_setup
from fusionray.bundle.bundle import Bundle, read_bundle, write_bundle
from fusionray.bundle.description import BundleDescription, Lineage, Parity
from fusionray.data import synthetic
from fusionray.export.export import write_graphs
from fusionray.recipes.bundle_export import BundleExport
from fusionray.recipes.registry import find_family

BOUNDARY = "fusionray-bench"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
# Rendered pictures are smoother than photographs; this noise gives their files the same length.
NOISE = 5.0


@dataclass(frozen=True)
class Body:
    """Body and media type of a request."""

    data: bytes
    media_type: str


def find_bundle(location: str | None, preset: str, output: Path) -> Bundle:
    """Open the named bundle, or one with the preset's shapes, which is made once in the output folder.

    Raises: BundleInvalid, ConfigInvalid.
    """
    if location is not None:
        return read_bundle(location)
    folder = output / f"bundle-{preset}"
    return read_bundle(folder) if folder.exists() else make_bundle(preset, folder)


def make_bundle(preset: str, folder: Path) -> Bundle:
    """Export the untrained networks of a preset, which are as fast as trained ones.

    Raises: ConfigInvalid.
    """
    setup = build_setup(TrainBenchConfig(output=str(folder)), preset, torch.device("cpu"))
    recipe = setup.build_recipe()
    delivery = find_family(setup.config.recipe.name).export_recipe(recipe, setup.config.data.template)
    return write_untrained(delivery, preset, folder)


def write_untrained(delivery: BundleExport, preset: str, folder: Path) -> Bundle:
    """Write the graphs of untrained networks as a bundle."""
    with TemporaryDirectory(prefix="fusionray-bench-") as temporary:
        files = write_graphs(delivery.graphs, np.random.default_rng(0), Path(temporary))
        description = BundleDescription(
            task=delivery.task,
            name=f"untrained-{preset}",
            **delivery.description,
            licence="Apache-2.0",
            lineage=Lineage(data_manifest="none", config={"preset": preset}, code_version=__version__),
            parity=Parity(tolerance=0.0, largest_difference=0.0),
        )
        return write_bundle(folder, files, description)


def draw_person(seed: int, pixels: int) -> bytes:
    """Draw a synthetic person who faces the viewer; a JPEG file with the noise of a camera."""
    image_N3SS = synthetic.render(synthetic.sample_identities(1, seed), synthetic.neutral_attributes(1), pixels)
    smooth: NDArray[np.float32] = image_N3SS[0].permute(1, 2, 0).numpy() * 255
    noise = np.random.default_rng(seed).normal(0.0, NOISE, smooth.shape)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_form(files: dict[str, bytes], fields: dict[str, str]) -> Body:
    """Encode a form as browsers do (RFC 7578)."""
    lines = bytearray()
    for name, data in files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}.jpg"\r\nContent-Type: image/jpeg'
        lines += f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n"
    for name, value in fields.items():
        lines += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    lines += f"--{BOUNDARY}--\r\n".encode()
    return Body(bytes(lines), FORM_TYPE)
